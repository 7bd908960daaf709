"""Saving past the service, and S3 is in trouble too: bounded, named, and never half a step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cachetier_client.bucket_format.documents import PartDocument, PartReference, decode
from cachetier_client.errors import (
    CachetierClientError,
    ServiceUnavailableError,
)

from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, Troubles, When, first
from tests.client.fakes import FakeClock
from tests.fakes.bodies import noise
from tests.integration.fallbacks import RUN, Place, place, until
from tests.integration.needs import needs_weed

LARGE = (33 << 20) + 5  # three parts
SMALL = b"small" * 100
SAVE = "a-save"


@pytest.fixture
def proxy(moto_s3: S3Endpoint) -> Iterator[S3Proxy]:
    with S3Proxy(moto_s3.url, trickle_seconds=0.1) as started:
        yield started


@pytest.fixture
def past(moto_s3: S3Endpoint, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A bucket that ranks reach through the proxy, and the test past it."""
    with place(moto_s3, monkeypatch) as made:
        monkeypatch.setenv("CACHETIER_REMOTE_ENDPOINT", proxy.url)
        yield made


def save(past: Place, save_id: str = SAVE, **options: Any) -> None:
    with past.client(**options) as client:
        with client.checkpoint(
            RUN, 1, rank=0, world_size=1, save_id=save_id, timeout_seconds=30
        ) as checkpoint:
            checkpoint.put(noise(LARGE), "large")
            checkpoint.put(SMALL, "small")
            with checkpoint.open("stream") as stream:
                stream.write(noise(LARGE))


def is_whole(past: Place) -> bool:
    objects = past.bucket.objects
    bodies = {"large": noise(LARGE), "small": SMALL, "stream": noise(LARGE)}
    return past.is_published(1) and all(
        objects.get(f"p/run/1/{name}") == body for name, body in bodies.items()
    )


OPERATIONS = (
    *("PutObject", "HeadObject", "GetObject", "ListObjectsV2"),
    *("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"),
)
PASSING = [
    *((Trouble.SLOW_DOWN, operation) for operation in OPERATIONS),
    *((Trouble.LOST_REPLY, operation) for operation in ("PutObject", *OPERATIONS[4:])),
    *((Trouble.RESET, operation) for operation in ("PutObject", "UploadPart")),
    (Trouble.ERROR_IN_200, "CompleteMultipartUpload"),
    (Trouble.CUT_REPLY, "CompleteMultipartUpload"),
    (Trouble.CLOSED, "GetObject"),
    (Trouble.BAD_GATEWAY, "UploadPart"),
    (Trouble.NO_SUCH_UPLOAD, "CompleteMultipartUpload"),
]


@pytest.mark.parametrize(
    "chosen", [PASSING[:6], PASSING[6:12], PASSING[12:]], ids=["slow", "lost", "cut"]
)
def test_trouble_that_passes_costs_time_and_nothing_else(
    past: Place, proxy: S3Proxy, chosen: list[tuple[Trouble, str]]
) -> None:
    for trouble, operation in chosen:
        proxy.troubles.add(Fault(trouble, operation, first(1)))
    save(past)
    assert is_whole(past)
    assert {*chosen} <= {*proxy.troubles.struck}, "a fault did not fire"


@needs_weed
def test_a_bit_that_flips_on_the_way_is_noticed_by_the_store_and_sent_again(
    seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles = Troubles([Fault(Trouble.CORRUPT, "UploadPart", first(1))])
    troubles.add(Fault(Trouble.CORRUPT, "PutObject", When(start=2, times=1)))
    with place(seaweed_s3, monkeypatch) as past, S3Proxy(seaweed_s3.url, troubles=troubles) as way:
        monkeypatch.setenv("CACHETIER_REMOTE_ENDPOINT", way.url)
        save(past)
        assert is_whole(past)
    assert troubles.fired[Trouble.CORRUPT] == 2


def test_a_bit_that_flips_on_the_way_is_noticed_by_reading_back(
    past: Place, proxy: S3Proxy
) -> None:
    proxy.troubles.add(Fault(Trouble.CORRUPT, "UploadPart", first(1)))
    save(past)
    assert is_whole(past)
    assert proxy.troubles.fired[Trouble.CORRUPT] == 1


def test_with_s3_away_too_the_error_names_both_in_time(past: Place, proxy: S3Proxy) -> None:
    proxy.stop()
    clock = FakeClock()
    began = clock.time
    with past.client(clock=clock) as client, pytest.raises(ServiceUnavailableError) as caught:
        client.put_shard(
            SMALL, step=1, name="x", rank=0, world_size=1, save_id=SAVE, timeout_seconds=30
        )
    assert clock.time - began <= 30
    assert "the service is away" in str(caught.value)
    assert f"s3://{past.name}/p" in str(caught.value)
    assert caught.value.step == 1


def test_s3_that_goes_away_for_good_ends_the_save_in_time_and_nothing_is_published(
    past: Place, proxy: S3Proxy
) -> None:
    proxy.troubles.add(Fault(Trouble.SLOW_DOWN, "UploadPart", When(start=2, times=None)))
    with pytest.raises(CachetierClientError, match="S3 cannot replace it"):
        save(past, clock=FakeClock())
    assert proxy.troubles.fired[Trouble.SLOW_DOWN]
    assert not past.is_published(1)
    proxy.troubles.clear()
    save(past, save_id="again")
    manifest = past.manifest(1)
    assert manifest is not None
    assert manifest.save_id == "again"


def test_a_service_that_comes_back_while_s3_is_away_takes_the_shard(
    past: Place, proxy: S3Proxy, moto_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier_client.fallback.service_health.PROBE_SECONDS", 0.2)
    proxy.stop()
    node = past.node()
    with past.client() as client:
        node.start_without_waiting()
        receipt = client.put_shard(
            SMALL, step=1, name="x", rank=0, world_size=1, save_id=SAVE, timeout_seconds=60
        )
        assert receipt.level == "local"
        assert client.fallback_shards == 0
    node.close()


def test_a_bucket_that_lets_nobody_in_leaves_the_wait_for_the_service(
    past: Place, proxy: S3Proxy
) -> None:
    proxy.troubles.add(Fault(Trouble.ACCESS_DENIED, None, When(times=None)))
    with past.client(clock=FakeClock()) as client:
        with pytest.raises(ServiceUnavailableError, match="AccessDenied"):
            client.put_shard(SMALL, step=1, name="x", rank=0, world_size=1, save_id=SAVE)
        with past.node():
            put: dict[str, Any] = {
                "step": 1,
                "name": "x",
                "rank": 0,
                "world_size": 1,
                "save_id": SAVE,
            }
            assert client.put_shard(SMALL, **put).level == "local"
    assert proxy.troubles.fired[Trouble.ACCESS_DENIED]


def test_an_object_of_somebody_else_is_never_overwritten(past: Place) -> None:
    theirs = b"not ours"
    objects = past.bucket.objects
    objects.put("p/run/1/x", theirs, digest=0)
    with (
        past.client(clock=FakeClock()) as client,
        pytest.raises(ServiceUnavailableError, match="other bytes"),
    ):
        client.put_shard(SMALL, step=1, name="x", rank=0, world_size=1, save_id=SAVE)
    assert objects.get("p/run/1/x") == theirs


def test_a_shard_that_vanishes_before_the_seal_keeps_the_part_from_being_sealed(
    past: Place,
) -> None:
    with past.client() as client:
        checkpoint = client.checkpoint(RUN, 1, rank=0, world_size=1, save_id=SAVE)
        checkpoint.put(SMALL, "x")
        past.bucket.objects.delete("p/run/1/x")
        with pytest.raises(CachetierClientError, match="missing in the bucket"):
            checkpoint.seal()
        assert not past.is_published(1)


RANK = """
import os, sys
from cachetier_client import Client
with Client(f"unix://{sys.argv[1]}", run="run") as client:
    with client.checkpoint("run", 1, rank=0, world_size=1, save_id="killed") as checkpoint:
        checkpoint.put(b"first", "first")
        checkpoint.put(os.urandom(64 << 20), "large")
"""


def test_a_rank_that_is_killed_in_the_middle_of_an_upload_publishes_nothing(
    past: Place, proxy: S3Proxy
) -> None:
    proxy.troubles.add(Fault(Trouble.STALL, "UploadPart", When(start=2, times=None)))
    socket = str(past.scratch / "none.sock")
    rank = subprocess.Popen([sys.executable, "-c", RANK, socket], env=dict(os.environ))
    until(lambda: proxy.troubles.fired[Trouble.STALL] > 0)
    rank.send_signal(signal.SIGKILL)
    rank.wait()

    assert not past.is_published(1)
    left = list(past.bucket.objects.list_uploads("p/run/1/"))
    assert [key for key, _ in left] == ["p/run/1/large"]  # the bucket's lifecycle ends it
    proxy.troubles.clear()
    save(past, save_id="after")
    assert past.is_published(1)


# --- a restore cannot tell -----------------------------------------------------------------------


def described(past: Place, step: int) -> dict[str, Any]:
    """Return all that lies in the bucket of a step, without what names the step or the moment."""
    objects, manifest = past.bucket.objects, past.manifest(step)
    assert manifest is not None
    part_key = f"p/run/{step}/.cachetier/rank-0.json"
    part = decode(PartDocument, objects.get(part_key), part_key)
    heads = {shard.name: objects.head(f"p/run/{step}/{shard.name}") for shard in part.shards}
    parts = tuple(replace_digest(each) for each in manifest.parts)
    return {
        "keys": [key.split("/", 3)[3] for key in past.all_keys() if f"/{step}/" in key],
        "part": replace(part, step=0),
        "manifest": replace(
            manifest,
            run="",
            step=0,
            location="",
            nonce="",
            started_at=0.0,
            published_at=0.0,
            parts=parts,
        ),
        "objects": {
            name: (head.size_bytes, head.digest, sorted(head.metadata), head.encoding)
            for name, head in heads.items()
            if head is not None
        },
    }


def replace_digest(reference: PartReference) -> PartReference:
    return replace(reference, digest="0" * 16)  # the part names its step


@needs_weed
def test_what_lies_in_the_bucket_is_what_the_drain_would_have_put_there(
    seaweed_s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(seaweed_s3, monkeypatch) as past:
        for step in (1, 2):
            node = past.node().start() if step == 1 else None
            with past.client() as client:
                with client.checkpoint(RUN, step, rank=0, world_size=1, save_id=SAVE) as checkpoint:
                    checkpoint.put(noise(LARGE), "large")
                    checkpoint.put(SMALL, "sub/small")
                    checkpoint.put(b"", "empty")
                if node is not None:
                    client.wait(RUN, step, "durable", 60)
                assert client.fallback_shards == (0 if step == 1 else 3)
            if node is not None:
                node.close()
        assert described(past, 1) == described(past, 2)
