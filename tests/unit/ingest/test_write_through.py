"""Shards that go past a full cache: how many at once, how large, and to which step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    PART_BYTES,
    ObjectInfo,
    object_metadata,
)
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.queue_state import QueueState
from cachetier.errors import (
    BackpressureError,
    InvalidRequestError,
    StepPublishedError,
    UploadGoneError,
)
from cachetier.ingest import write_through
from cachetier.ingest.write_through import STREAMS, WriteThrough
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node, content_of

IDS = SaveIds("run", 1, "save", 0, 2)


@pytest.fixture
def through(node: Node, clock: FakeClock) -> WriteThrough:
    return WriteThrough(node.store, node.bucket, QueueState(clock), clock, remote=DURABLE)


@pytest.fixture
def other(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    other = Node(tmp_path / "other", remote, clock, vfs=vfs)
    yield other
    other.close()


def test_more_streams_than_there_is_memory_for_are_backpressure(
    through: WriteThrough, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_through, "PATIENCE_SECONDS", 0.0)
    stages = [through.open(IDS, str(number), 10) for number in range(STREAMS)]

    with pytest.raises(BackpressureError, match="on their way"):
        through.open(IDS, "one too many", 10)

    stages.pop().abort()
    stages.append(through.open(IDS, "one too many", 10))
    for stage in stages:
        stage.abort()


def test_a_shard_for_a_step_that_another_node_published_meanwhile_is_refused(
    through: WriteThrough, node: Node, other: Node, remote: MemoryObjectStore
) -> None:
    ids = SaveIds("run", 1, "save", 0, 1)
    other.put(ids, "a", b"published")
    other.checkpoints.seal(ids, 1)
    other.real_drain.drain_all()
    keys = remote.list("").keys

    with pytest.raises(StepPublishedError):
        through.open(ids, "b", 10)

    assert remote.list("").keys == keys
    assert node.rows() == []


def test_a_stream_that_outgrows_its_parts_is_refused_and_leaves_nothing_behind(
    through: WriteThrough, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_through, "PART_LIMIT", 1)
    data = bytes(PART_BYTES + 1)
    stage = through.open(IDS, "a", None)
    stage.write(data)

    with pytest.raises(InvalidRequestError, match="unknown size") as refused:
        stage.commit(content_of(data))

    assert refused.value.hint == "Declare the size up front."
    assert list(remote.list_uploads("")) == []
    assert remote.head("tier/run/1/a") is None


def test_bytes_that_come_in_pieces_of_any_size_are_checked_block_by_block(
    through: WriteThrough, node: Node, remote: MemoryObjectStore
) -> None:
    data = bytes(range(256)) * (5 << 12)  # more than a block
    stage = through.open(IDS, "a", len(data))
    for at in range(0, len(data), 1_000_003):
        stage.write(data[at : at + 1_000_003])

    shard = stage.commit(content_of(data))

    assert shard.state is ShardState.EVICTED
    assert remote.get("tier/run/1/a") == data
    node.store.space.capacity_bytes = 2 * len(data)
    assert node.get("run", 1, "a") == data


def test_an_object_that_this_store_forgot_is_not_written_over(
    through: WriteThrough, node: Node, remote: MemoryObjectStore
) -> None:
    theirs = content_of(b"of a life that the disk forgot")
    metadata = object_metadata("save", node.store.store_id, 99, theirs)
    body = b"of a life that the disk forgot"
    remote.put("tier/run/1/a", body, digest=theirs.digest, metadata=metadata)
    stage = through.open(IDS, "a", 5)
    stage.write(b"bytes")

    with pytest.raises(BackpressureError, match="other bytes under the key"):
        stage.commit(content_of(b"bytes"))

    assert remote.get("tier/run/1/a") == body
    assert node.rows() == []


def test_a_stream_in_parts_is_found_again_by_its_bytes_as_its_object_bears_no_digest(
    through: WriteThrough, remote: MemoryObjectStore
) -> None:
    data = bytes(PART_BYTES + 5)
    stage = through.open(IDS, "a", len(data))
    stage.write(data)

    shard = stage.commit(content_of(data))

    info = remote.head("tier/run/1/a")
    assert info is not None
    assert DIGEST_KEY not in info.metadata
    assert (shard.state, remote.get("tier/run/1/a")) == (ShardState.EVICTED, data)
    assert list(remote.list_uploads("")) == []


def test_a_stream_that_the_remote_does_not_keep_is_not_acknowledged(
    through: WriteThrough, node: Node, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> ObjectInfo:
        raise UploadGoneError("planned")

    monkeypatch.setattr(remote, "complete_upload", gone)
    data = bytes(PART_BYTES + 5)
    stage = through.open(IDS, "a", len(data))
    stage.write(data)

    with pytest.raises(BackpressureError, match="returns other bytes for"):
        stage.commit(content_of(data))

    assert (node.rows(), list(remote.list_uploads(""))) == ([], [])
