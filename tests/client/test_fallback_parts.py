"""What a part that went straight to S3 may still do: nothing that somebody was promised is lost."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    DeadlineError,
    SealedError,
    ServiceUnavailableError,
)
from cachetier_client.fallback.direct import parts
from cachetier_client.fallback.direct.uploads import is_there
from cachetier_client.identity.names import SaveIds

from tests.client.fake_bucket import FakeBucket, error
from tests.client.fake_service import FakeService
from tests.client.fakes import FakeClock

IDS: dict[str, Any] = {"run": "r", "step": 1, "rank": 0, "world_size": 1, "save_id": "s"}
SEAL: dict[str, Any] = {"rank": 0, "world_size": 1, "save_id": "s"}
PART_KEY = "p/r/1/.cachetier/rank-0.json"
MANIFEST_KEY = "p/r/1/.cachetier/manifest.json"


def state_of(bucket: FakeBucket) -> str:
    return str(json.loads(bucket.objects[MANIFEST_KEY].body)["state"])


# --- sealed by the service, which then goes away --------------------------------------------------


def test_nothing_is_added_past_the_service_to_a_part_that_it_has_sealed(
    service: FakeService, bucket: FakeBucket
) -> None:
    with Client(service.url, clock=FakeClock()) as client:
        client.put_shard(b"first", name="a", **IDS)
        client.seal("r", 1, **SEAL)
        service.stop()
        for name, body in (("a", b"other"), ("b", b"late")):
            with pytest.raises(ServiceUnavailableError):
                client.put_shard(body, name=name, **IDS)
        with pytest.raises(ServiceUnavailableError):
            client.seal("r", 1, **SEAL)
        service.start()
        assert client.put_shard(b"first", name="a", **IDS).level == "local"
    assert not bucket.objects


def test_other_bytes_of_a_shard_that_the_service_holds_wait_for_it(
    service: FakeService, bucket: FakeBucket
) -> None:
    clock = FakeClock()
    with Client(service.url, clock=clock) as client:
        client.put_shard(b"first", name="a", **IDS)
        service.stop()
        with pytest.raises(SealedError, match="holds other bytes"):
            client.put_shard(b"other", name="a", timeout_seconds=20, **IDS)
        assert sum(clock.naps) > 10
        service.start()
        clock.time += 5
        assert client.put_shard(b"other", name="a", **IDS).level == "local"
    assert not bucket.objects


@pytest.mark.parametrize("before", [0, 1])
def test_a_large_shard_turns_back_to_a_service_that_returns_unless_the_part_went_past_it(
    service: FakeService, bucket: FakeBucket, before: int
) -> None:
    clock, send = FakeClock(), bucket.send
    body = os.urandom(70 << 20)

    def slow(method: str, key: str, *args: Any, **options: Any) -> Any:
        if "uploadId" in (options.get("query") or {}) and method == "PUT":
            clock.time += 6
            if bucket.seen["PUT"] == 2 + before:
                service.start()
        return send(method, key, *args, **options)

    bucket.send = slow  # type: ignore[method-assign]
    with Client(service.url, clock=clock, threads=1) as client:
        client.put_shard(b"x", name="another", **{**IDS, "step": 2})
        service.stop()
        for number in range(before):
            client.put_shard(b"x", name=f"before-{number}", **IDS)
        level = client.put_shard(body, name="a", **IDS).level
        assert level == ("durable" if before else "local")
        assert not bucket.uploads
        assert ("p/r/1/a" in bucket.objects) == bool(before)
        client.seal("r", 1, **SEAL)
    assert len(service.sealed) == 1 - before


def test_another_client_of_the_process_goes_on_where_the_part_is(
    service: FakeService, bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with Client(service.url, clock=clock) as client:
        service.stop()
        client.put_shard(b"direct", name="a", **IDS)
        client.put_shard(b"taken back", name="a", **{**IDS, "step": 2})
    monkeypatch.delenv("CACHETIER_REMOTE")
    service.start()
    with Client(service.url, clock=clock) as client:  # it has not met the service yet
        assert client.seal("r", 1, **SEAL) == (0,)
    with Client(service.url, clock=clock) as client:
        client._caller.abort_rank(SaveIds("r", 2, "s", 0, 1), 5.0)
    assert not service.sealed
    assert state_of(bucket) == "published"
    assert "p/r/2/a" not in bucket.objects


# --- one name, several ranks ----------------------------------------------------------------------


def test_a_rank_does_not_replace_the_shard_of_another_of_the_same_process(
    alone: Client, bucket: FakeBucket
) -> None:
    ids = {**IDS, "world_size": 2}
    alone.put_shard(b"of rank 0", name="a", **ids)
    with pytest.raises(ServiceUnavailableError, match="holds other bytes"):
        alone.put_shard(b"of rank 1", name="a", **{**ids, "rank": 1})
    assert bucket.objects["p/r/1/a"].body == b"of rank 0"


def test_a_forked_child_does_not_replace_what_its_parent_put(
    alone: Client, bucket: FakeBucket
) -> None:
    alone.put_shard(b"of the parent", name="a", **IDS)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            alone.put_shard(b"of the child", name="a", **IDS)
        except ServiceUnavailableError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert alone.put_shard(b"of the parent again", name="a", **IDS).level == "durable"


# --- sealed, and then? ----------------------------------------------------------------------------


def test_a_part_whose_document_is_written_cannot_be_aborted(
    alone: Client, bucket: FakeBucket
) -> None:
    answer = bucket._answer

    def refusing(method: str, key: str, query: dict[str, str], *rest: Any) -> Any:
        if "list-type" in query:
            return error(403, "AccessDenied")
        return answer(method, key, query, *rest)

    bucket._answer = refusing  # type: ignore[assignment,method-assign]
    with pytest.raises(ServiceUnavailableError, match="AccessDenied") as failed:
        with alone.checkpoint("r", 1, **SEAL) as checkpoint:
            checkpoint.put(b"x", "a")
    assert "cannot be aborted" in failed.value.__notes__[0]
    bucket._answer = answer  # type: ignore[method-assign]

    with pytest.raises(SealedError):  # another rank may publish what the document says
        alone.put_shard(b"other", name="a", **IDS)
    assert bucket.objects["p/r/1/a"].body == b"x"
    alone.seal("r", 1, **SEAL)
    assert state_of(bucket) == "published"


def test_nothing_is_added_to_a_part_that_waits_for_its_service(
    service: FakeService, bucket: FakeBucket
) -> None:
    with Client(service.url, clock=FakeClock()) as client:
        client.put_shard(b"held", name="a", **IDS)
        service.stop()
        client.put_shard(b"direct", name="b", **IDS)
        client.seal("r", 1, **SEAL)
        with pytest.raises(SealedError):
            client.put_shard(b"late", name="c", **IDS)
        with pytest.raises(SealedError):
            client.put_shard(b"other", name="b", **IDS)
        assert client.put_shard(b"direct", name="b", **IDS).level == "durable"
        assert client.seal("r", 1, **SEAL) == (0,)
    assert bucket.objects["p/r/1/b"].body == b"direct"


def test_a_part_that_waits_for_its_service_cannot_be_aborted(
    service: FakeService, bucket: FakeBucket
) -> None:
    with Client(service.url, clock=FakeClock()) as client:
        client.put_shard(b"held", name="a", **IDS)
        service.stop()
        client.put_shard(b"direct", name="b", **IDS)
        client.seal("r", 1, **SEAL)
        part = SaveIds("r", 1, "s", 0, 1)
        with pytest.raises(SealedError):
            client._caller.abort_rank(part, 5.0)
    assert bucket.objects["p/r/1/b"].body == b"direct"


def test_a_part_that_follows_does_not_grow_once_its_leader_has_sealed(
    alone: Client, bucket: FakeBucket
) -> None:
    ids = {**IDS, "world_size": 2}
    follows: dict[str, Any] = {"rank": 1, "world_size": 2, "save_id": "s", "follows": True}
    alone.put_shard(b"x", name="a", **{**ids, "rank": 1})
    alone.seal("r", 1, **follows)
    alone.put_shard(b"x", name="leader", **ids)
    alone.seal("r", 1, **{**SEAL, "world_size": 2})
    assert state_of(bucket) == "published"

    document = bucket.objects["p/r/1/.cachetier/rank-1.json"].body
    with pytest.raises(SealedError):
        alone.put_shard(b"late", name="b", **{**ids, "rank": 1})
        alone.seal("r", 1, **follows)
    assert bucket.objects["p/r/1/.cachetier/rank-1.json"].body == document


def test_a_part_that_follows_at_the_service_does_not_grow_past_it_once_its_leader_has_sealed(
    service: FakeService, bucket: FakeBucket
) -> None:
    ids = {**IDS, "world_size": 2}
    follows: dict[str, Any] = {"rank": 1, "world_size": 2, "save_id": "s", "follows": True}
    with Client(service.url, clock=FakeClock()) as client:
        client.put_shard(b"x", name="a", **{**ids, "rank": 1})
        client.seal("r", 1, **follows)
        service.stop()
        client.put_shard(b"x", name="leader", **ids)
        client.seal("r", 1, **{**SEAL, "world_size": 2})
        client.put_shard(b"late", name="b", **{**ids, "rank": 1})
        with pytest.raises(SealedError):
            client.seal("r", 1, **follows)
    assert "p/r/1/.cachetier/pending-1.json" not in bucket.objects


def test_a_part_that_follows_can_be_taken_back_with_its_document(
    alone: Client, bucket: FakeBucket
) -> None:
    alone.put_shard(b"x", name="a", **{**IDS, "rank": 1, "world_size": 2})
    alone.seal("r", 1, rank=1, world_size=2, save_id="s", follows=True)
    alone._caller.abort_rank(SaveIds("r", 1, "s", 1, 2), 5.0)
    assert list(bucket.objects) == [MANIFEST_KEY]


# --- judging and waiting --------------------------------------------------------------------------


def test_where_the_store_keeps_no_digest_the_metadata_tells_other_bytes() -> None:
    entry = Content(3, 5, (5,))

    def found(**metadata: str) -> ObjectInfo:
        return ObjectInfo("key", 3, "etag", None, {"cachetier-save": "s", **metadata})

    assert is_there(found(), "s", entry)  # of a stream
    assert is_there(found(**{"cachetier-digest": f"{5:016x}"}), "s", entry)
    assert not is_there(found(**{"cachetier-digest": f"{6:016x}"}), "s", entry)


def test_a_call_waits_for_another_of_its_part_no_longer_than_its_own_time(
    bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_FALLBACK", "s3:0s")
    state = parts.THIS_PROCESS.of(SaveIds("r", 1, "s", 0, 1), 0.0)
    claiming, done = threading.Event(), threading.Event()

    def claim() -> None:
        with state.locked(Deadline(30, SystemClock())):
            claiming.set()
            done.wait(30)

    thread = threading.Thread(target=claim)
    thread.start()
    try:
        assert claiming.wait(30)
        with Client(f"unix://{tmp_path}/none") as client:
            with pytest.raises(DeadlineError):
                client.put_shard(b"x", name="a", timeout_seconds=0.2, **IDS)
    finally:
        done.set()
        thread.join()
