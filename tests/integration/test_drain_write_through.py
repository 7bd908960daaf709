"""A full cache that sends shards straight to the remote: acknowledged only once they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import (
    BackpressureError,
    DigestMismatchError,
    RemoteRefusedError,
    SaveSupersededError,
    SizeMismatchError,
    StepPublishedError,
)
from cachetier.ingest.ingest import RemoteStage
from cachetier.model.backpressure import WhenFull
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.remote.call_policy import CallPolicy, Retries
from cachetier.remote.wrapped import Operation
from tests.fakes.faulty_store import FaultyObjectStore, corrupt, lose_reply
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import BLOCK, Node, content_of, patterned

IDS = SaveIds("run", 7, "save-1")
LARGE, MIDDLE = 33 << 20, 1 << 20  # of three parts, and of one


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def node(tmp_path: Path, objects: FaultyObjectStore) -> Iterator[Node]:
    node = full_node(tmp_path, objects)
    yield node
    node.close()


def full_node(tmp_path: Path, objects: FaultyObjectStore) -> Node:
    retrying = CallPolicy(objects, retries=Retries(sleep=lambda _seconds: None))
    return Node(tmp_path / "cache", retrying, capacity_bytes=1000, when_full=WhenFull.WRITE_THROUGH)


def opened(node: Node, name: str, size_bytes: int | None) -> RemoteStage:
    return node.through.open(IDS, name, size_bytes)


def send(stage: RemoteStage, data: bytes) -> None:
    for at in range(0, len(data), BLOCK):
        stage.write(data[at : at + BLOCK])


@pytest.mark.parametrize("size_bytes", [2000, MIDDLE, LARGE], ids=["inline", "middle", "large"])
def test_a_shard_without_room_is_durable_at_once(
    node: Node, objects: FaultyObjectStore, size_bytes: int
) -> None:
    data = patterned(size_bytes)
    receipt = node.put(IDS, "shard", data)

    shard = node.shard(IDS, "shard")
    assert receipt.level is Level.DURABLE
    assert shard is not None
    assert shard.state is ShardState.EVICTED
    assert objects.get(node.key(IDS, "shard")) == data
    assert node.store.space.used_bytes == 0


def test_a_step_of_such_shards_is_published(node: Node, objects: FaultyObjectStore) -> None:
    node.put(IDS, "local", b"here")
    node.put(IDS, "middle", patterned(MIDDLE))
    node.put(IDS, "large", patterned(LARGE))
    node.seal(IDS)

    with node.draining():
        node.wait_durable(IDS)

    manifest = node.bucket.published("run", 7)
    assert manifest is not None
    assert [shard.name for shard in manifest.shards] == ["large", "local", "middle"]


def test_a_shard_of_unknown_size_is_streamed(node: Node, objects: FaultyObjectStore) -> None:
    for name, data in (("large", patterned(LARGE)), ("small", b"hello"), ("empty", b"")):
        stage = opened(node, name, None)
        send(stage, data)
        shard = stage.commit(content_of(data))
        assert shard.state is ShardState.EVICTED
        assert objects.get(node.key(IDS, name)) == data


@pytest.mark.parametrize("operation", ["put", "create_upload", "upload_part", "complete_upload"])
@pytest.mark.parametrize("call", [1, 2])
def test_lost_replies_cost_nothing(
    node: Node, objects: FaultyObjectStore, operation: Operation, call: int
) -> None:
    objects.add(lose_reply(operation, call))
    node.put(IDS, "large", patterned(LARGE))
    node.put(IDS, "other", patterned(LARGE))
    node.put(IDS, "middle", patterned(MIDDLE))

    assert len(objects.fired) == 1
    for name, data in (
        ("large", patterned(LARGE)),
        ("other", patterned(LARGE)),
        ("middle", patterned(MIDDLE)),
    ):
        assert objects.get(node.key(IDS, name)) == data


def test_a_store_without_digests_is_read_back(tmp_path: Path) -> None:
    objects = FaultyObjectStore(MemoryObjectStore(keeps_digests=False), [corrupt("upload_part", 2)])
    node = full_node(tmp_path, objects)

    with pytest.raises(BackpressureError):
        node.put(IDS, "large", patterned(LARGE))
    assert not objects.pending
    assert objects.head(node.key(IDS, "large")) is None

    node.put(IDS, "large", patterned(LARGE))
    assert objects.get(node.key(IDS, "large")) == patterned(LARGE)
    node.close()


@pytest.mark.parametrize("size_bytes", [MIDDLE, LARGE], ids=["middle", "large"])
def test_an_abort_leaves_nothing_behind(
    node: Node, objects: FaultyObjectStore, size_bytes: int
) -> None:
    data = patterned(size_bytes)
    stage = opened(node, "shard", len(data))
    send(stage, data)
    stage.abort()
    stage.abort()

    assert objects.head(node.key(IDS, "shard")) is None
    assert list(objects.list_uploads("")) == []
    assert node.shard(IDS, "shard") is None
    node.put(IDS, "shard", data)  # the name is free again


@pytest.mark.parametrize("size_bytes", [MIDDLE, LARGE], ids=["middle", "large"])
def test_what_is_declared_must_be_what_came(
    node: Node, objects: FaultyObjectStore, size_bytes: int
) -> None:
    data = patterned(size_bytes)
    other = patterned(len(data), seed=1)
    for wrong, error in ((data[:-1], SizeMismatchError), (other, DigestMismatchError)):
        stage = opened(node, "shard", None)
        send(stage, data)
        with pytest.raises(error):
            stage.commit(content_of(wrong))

    assert objects.head(node.key(IDS, "shard")) is None
    assert list(objects.list_uploads("")) == []


def test_the_same_bytes_again_get_the_same_answer_and_others_wait_for_room(
    node: Node, objects: FaultyObjectStore
) -> None:
    node.put(IDS, "middle", patterned(MIDDLE))
    puts = objects.calls["put"]

    assert node.put(IDS, "middle", patterned(MIDDLE)).level is Level.DURABLE
    with pytest.raises(BackpressureError):
        node.put(IDS, "middle", patterned(1 << 20, seed=1))
    assert objects.calls["put"] == puts
    assert objects.get(node.key(IDS, "middle")) == patterned(MIDDLE)


def test_a_remote_that_is_away_is_no_room(node: Node, objects: FaultyObjectStore) -> None:
    objects.go_down()
    with pytest.raises(BackpressureError):
        node.put(IDS, "middle", patterned(MIDDLE))
    objects.mend()

    assert node.put(IDS, "middle", patterned(MIDDLE)).level is Level.DURABLE


def test_a_remote_that_refuses_is_for_a_person_to_mend(
    node: Node, objects: FaultyObjectStore
) -> None:
    objects.go_down(RemoteRefusedError)
    with pytest.raises(RemoteRefusedError):
        node.put(IDS, "middle", patterned(MIDDLE))


@pytest.mark.parametrize("size_bytes", [MIDDLE, LARGE], ids=["middle", "large"])
def test_a_foreign_object_is_never_overwritten(
    node: Node, objects: FaultyObjectStore, size_bytes: int
) -> None:
    data = patterned(size_bytes)
    objects.put(node.key(IDS, "shard"), b"theirs", digest=digest_of(b"theirs"))
    with pytest.raises(RemoteRefusedError):
        node.put(IDS, "shard", data)

    assert objects.get(node.key(IDS, "shard")) == b"theirs"


def test_a_step_that_another_node_published_is_refused(
    tmp_path: Path, node: Node, objects: FaultyObjectStore
) -> None:
    other = Node(tmp_path / "other", objects)
    other.put(SaveIds("run", 7, "other"), "shard", b"theirs")
    other.seal(SaveIds("run", 7, "other"))
    with other.draining():
        other.wait_durable(IDS)
    other.close()

    for _ in range(2):
        with pytest.raises(StepPublishedError):
            node.put(IDS, "middle", patterned(MIDDLE))


def test_a_save_that_a_newer_one_replaced_is_refused(node: Node) -> None:
    stage = opened(node, "middle", MIDDLE)
    send(stage, patterned(MIDDLE))
    node.put(SaveIds("run", 7, "save-2"), "small", b"newer")

    with pytest.raises(SaveSupersededError):
        stage.commit(content_of(patterned(MIDDLE)))
    with pytest.raises(SaveSupersededError):
        node.put(IDS, "middle", patterned(MIDDLE))


def test_the_drain_keeps_off_a_name_that_is_being_written(
    node: Node, objects: FaultyObjectStore
) -> None:
    stage = opened(node, "small", None)
    node.put(IDS, "small", b"hello")
    with node.draining():
        node.hurry("run", 7)
        node.put(IDS, "other", b"drains")
        node.wait_clean(IDS, "other")
        assert objects.head(node.key(IDS, "small")) is None

        stage.write(b"streamed")
        with pytest.raises(BackpressureError):
            stage.commit(content_of(b"streamed"))
        node.wait_clean(IDS, "small")

    assert objects.get(node.key(IDS, "small")) == b"hello"
