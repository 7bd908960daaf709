"""Every trouble at every call that the S3 door's objects make: nothing lost, and order holds."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from cachetier.drain import channel
from cachetier.drain.pace import remote_health
from cachetier.drain.schedule import object_order
from cachetier.drain.upload import uploader
from cachetier.remote import stall_guard
from cachetier.remote.s3 import store as s3
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Trouble, can_strike
from tests.faults.counting import count
from tests.faults.slices import everything, share_of
from tests.integration import fault_matrix
from tests.integration.fault_matrix import PLACES, WITH_BODY, Stage, fault_at
from tests.integration.object_fault_matrix import (
    LATE_SECONDS,
    SINGLE_PUT_BYTES,
    WRITES,
    DoorNode,
    Program,
    Watched,
    exists,
)

CALLS = (*fault_matrix.CALLS, "DeleteObject")
PAIRS = [pair for pair in product(Trouble, CALLS) if exists(*pair)]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def watched(seaweed_s3: S3Endpoint) -> Watched:
    return Watched(seaweed_s3.store())


@pytest.fixture(scope="module")
def stage(seaweed_s3: S3Endpoint, watched: Watched) -> Iterator[Stage]:
    with (
        S3Proxy(
            seaweed_s3.url, trickle_seconds=0.1, late_seconds=LATE_SECONDS, troubles=watched
        ) as proxy,
        Stage.of(proxy, seaweed_s3) as made,
    ):
        yield made


def shorten_times(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channel, "QUIET_SECONDS", 0.002)
    patch.setattr(remote_health, "PROBE_SECONDS", 0.02)
    patch.setattr(stall_guard, "LOOK_SECONDS", 0.05)
    patch.setattr(s3, "LONG_ANSWERS", {})
    for module in (uploader, object_order):
        patch.setattr(module, "SINGLE_PUT_BYTES", SINGLE_PUT_BYTES)


@pytest.fixture(scope="module")
def node(seaweed_s3: S3Endpoint, stage: Stage) -> Iterator[DoorNode]:
    with tempfile.TemporaryDirectory(prefix="ct-") as name:  # a socket's path must be short
        opened = DoorNode(Path(name), stage, seaweed_s3.bucket)
        with pytest.MonkeyPatch.context() as patch:
            shorten_times(patch)
            with opened.running():
                yield opened


@pytest.fixture(scope="module")
def usual() -> dict[bool, Counter[str]]:
    """What a program asks of the bucket when it meets no trouble; by whether it has parts."""
    return {}


def calls_of(
    node: DoorNode, watched: Watched, usual: dict[bool, Counter[str]], *, with_parts: bool
) -> Counter[str]:
    """Return the calls of a program that meets no trouble, which runs once."""
    if with_parts not in usual:
        clean = Program(node, watched, f"clean-{with_parts}/", with_parts=with_parts)
        before = watched.seen.copy()
        clean.act()
        node.settle()
        usual[with_parts] = watched.seen - before
    return usual[with_parts]


@pytest.mark.parametrize(("trouble", "call"), share_of(PAIRS), ids=str)
def test_what_was_acknowledged_meets_it_and_arrives_in_order(
    node: DoorNode,
    stage: Stage,
    watched: Watched,
    usual: dict[bool, Counter[str]],
    trouble: Trouble,
    call: str,
    request: pytest.FixtureRequest,
) -> None:
    if trouble is Trouble.WRONG_CHECKSUM and not stage.direct.keeps_digests:
        pytest.skip("the server's answers have no checksum")
    with_parts = call in ("UploadPart", "CompleteMultipartUpload")
    calls = calls_of(node, watched, usual, with_parts=with_parts)[call]
    one = PLACES[PAIRS.index((trouble, call)) % len(PLACES)]
    places = PLACES if everything() else [one]
    for place in places:
        name = f"{trouble}-{call}-{place}/".lower()
        program = Program(node, watched, name, with_parts=with_parts)
        fired = watched.struck[trouble, call]
        watched.add(fault_at(trouble, call, place, calls))
        program.act()
        program.read_back()
        node.settle()
        assert watched.struck[trouble, call] == fired + 1, place
        watched.clear()
        if trouble is Trouble.LATE:
            time.sleep(2 * LATE_SECONDS)  # what comes late changes nothing any more
        assert watched.broken == []
        assert watched.looks >= WRITES
        program.judge(stage.direct)
        # Of one that began and was not heard of nobody knows that it is ours: see docs/s3.md.
        assert program.unfinished(stage.direct) <= (call == "CreateMultipartUpload")
    assert node.conflicts() == 0
    count(request, "cells of the object fault matrix", len(places))


def test_every_cell_of_it_is_there() -> None:
    assert {call for _, call in PAIRS} == set(CALLS)
    assert {trouble for trouble, _ in PAIRS} == set(Trouble)
    assert all(can_strike(trouble, call, has_body=call in WITH_BODY) for trouble, call in PAIRS)
    assert len(PAIRS) * len(PLACES) >= 288
