"""Every trouble at every call, at its first, middle and last: nothing lost, nothing left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from cachetier.drain import channel
from cachetier.drain.pace import remote_health
from cachetier.drain.upload import uploader
from cachetier.remote import stall_guard
from cachetier.remote.s3 import store as s3
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Trouble
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.integration.fault_matrix import (
    CALLS,
    NOT_THERE,
    PAIRS,
    PART_BYTES,
    PLACES,
    SINGLE_PUT_BYTES,
    Scene,
    Stage,
    exists,
    fault_at,
)

# What one fault may cost beyond a clean run: all requests of the largest shard once more, a claim
# or a publication decided anew, probes and looks at what is unfinished.
EXTRA_REQUESTS = 20
LATE_SECONDS = 0.5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Control:
    """What a checkpoint asks of the server when it meets no trouble; by whether it has parts."""

    calls: dict[bool, Counter[str]]


@pytest.fixture(scope="module")
def stage(seaweed_s3: S3Endpoint) -> Iterator[Stage]:
    with (
        S3Proxy(seaweed_s3.url, trickle_seconds=0.1, late_seconds=LATE_SECONDS) as proxy,
        Stage.of(proxy, seaweed_s3) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> Iterator[None]:
    monkeypatch.setattr(channel, "QUIET_SECONDS", 0.002)
    monkeypatch.setattr(remote_health, "PROBE_SECONDS", 0.02)
    monkeypatch.setattr(stall_guard, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(s3, "LONG_ANSWERS", {})
    monkeypatch.setattr(uploader, "SINGLE_PUT_BYTES", SINGLE_PUT_BYTES)
    monkeypatch.setattr(uploader, "upload_part_bytes_for", lambda *_args, **_named: PART_BYTES)
    yield
    stage.proxy.troubles.clear()


@pytest.fixture(scope="module")
def control() -> Control:
    return Control({})


def usual_calls(control: Control, folder: Path, stage: Stage, *, with_parts: bool) -> Counter[str]:
    """Return the calls of the control run, which is made once: of a step after the first."""
    if with_parts not in control.calls:
        folder.mkdir()
        name = f"clean-{with_parts}".lower()
        scene = Scene.of(folder, stage, name, with_parts=with_parts, patient=True)
        with scene.node.draining():
            scene.save(1)
            scene.settle(1)
            before = stage.proxy.troubles.seen.copy()
            scene.save(2)
            scene.settle(2)
        scene.judge(2)
        scene.node.close()
        control.calls[with_parts] = stage.proxy.troubles.seen - before
    return control.calls[with_parts]


@pytest.mark.parametrize(("trouble", "call"), share_of(PAIRS), ids=str)
def test_a_checkpoint_meets_it_and_arrives(
    tmp_path: Path,
    stage: Stage,
    control: Control,
    trouble: Trouble,
    call: str,
    request: pytest.FixtureRequest,
) -> None:
    if trouble is Trouble.WRONG_CHECKSUM and not stage.direct.keeps_digests:
        pytest.skip("the server's answers have no checksum")
    with_parts = call == "UploadPart"
    usual = usual_calls(control, tmp_path / "control", stage, with_parts=with_parts)
    proxy = stage.proxy
    run = f"{trouble}-{call}".lower()
    scene = Scene.of(tmp_path, stage, run, with_parts=with_parts)
    with scene.node.draining():
        for step, place in enumerate(PLACES, start=1):
            fired, requests = proxy.troubles.struck[trouble, call], proxy.requests
            proxy.troubles.add(fault_at(trouble, call, place, usual[call]))
            scene.save(step)
            scene.settle(step)
            assert proxy.troubles.struck[trouble, call] == fired + 1, place
            assert proxy.requests - requests <= usual.total() + EXTRA_REQUESTS, place
            proxy.troubles.clear()
            if trouble is Trouble.LATE:
                time.sleep(2 * LATE_SECONDS)  # what comes late changes nothing any more
            began_late = (trouble, call) == (Trouble.LATE, "CreateMultipartUpload")
            scene.judge(step, begun_late=int(began_late))
    # Nothing counted as verified that was not there; only an answer to HEAD itself can tell a lie.
    assert call == "HeadObject" or "lost" not in scene.node.seen.codes
    assert scene.node.told() == []
    scene.node.close()
    count(request, "cells of the S3 fault matrix", len(PLACES))


def test_every_cell_is_there_or_named_with_the_reason_why_not() -> None:
    pairs = set(product(Trouble, CALLS))

    assert set(PAIRS) | NOT_THERE.keys() == pairs
    assert not set(PAIRS) & NOT_THERE.keys()
    assert all(exists(*pair) for pair in PAIRS)
    assert not any(exists(*pair) for pair in NOT_THERE)
    assert len(Trouble) >= 16
    assert len(PAIRS) * len(PLACES) >= 288
