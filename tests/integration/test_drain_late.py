"""A write whose caller died long ago arrives: it overwrites nothing that is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apsw
import pytest
from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import to_hex

from cachetier.errors import TransientError, UploadGoneError
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, content_of, patterned

LARGE = 20 << 20
OLD, NEW = patterned(LARGE, seed=1), patterned(LARGE, seed=2)


class Wire(MemoryObjectStore):
    """Holds the first completion back: its caller hears nothing, and it arrives when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.late: Callable[[], ObjectInfo] | None = None

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        def complete() -> ObjectInfo:
            return MemoryObjectStore.complete_upload(self, key, upload_id, parts, digest=digest)

        if self.late is None:
            self.late = complete
            raise TransientError("no answer yet")
        return complete()

    def lands(self) -> bool:
        """Let it arrive; return whether the store still takes it."""
        assert self.late is not None
        try:
            self.late()
        except UploadGoneError:
            return False
        return True


def ids(rank: int) -> SaveIds:
    return SaveIds("run", 5, "save", rank, 2)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def node(tmp_path: Path, wire: Wire) -> Iterator[Node]:
    node = Node(tmp_path / "cache", wire)
    yield node
    node.close()


def held_on_the_wire(node: Node, wire: Wire) -> None:
    """Send rank 0's first version, and kill the service while its completion is under way."""
    node.put(ids(0), "weights", OLD)
    node.hurry("run", 5)
    with node.draining(abruptly=True):
        node.wait_until(lambda: wire.late is not None)


def published_whole(node: Node) -> None:
    node.put(ids(1), "other", b"of the second rank")
    node.seal(ids(1))
    with node.draining():
        node.wait_durable(ids(0))


@pytest.mark.parametrize(
    ("data", "packing"),
    [(NEW, False), (b"smaller now", False), (b"smaller now", True)],
    ids=["in_parts", "in_one_put", "in_a_pack"],
)
def test_the_completion_of_a_replaced_version_overwrites_nothing(
    node: Node, wire: Wire, data: bytes, packing: bool
) -> None:
    node.packing = packing
    held_on_the_wire(node, wire)
    node.put(ids(0), "weights", data)
    node.put(ids(0), "bias", b"beside it")  # a pack is of two
    node.seal(ids(0))
    with node.draining():
        node.wait_until(lambda: node.store.read(part_is_uploaded))
    landed = wire.lands()
    published_whole(node)

    assert not landed, "the replaced upload was aborted before the new one began"
    manifest = node.bucket.published("run", 5)
    assert manifest is not None
    found = next(shard for shard in manifest.shards if shard.name == "weights")
    key = node.bucket.layout.object_key("run", "5", found.name, found.pack_name)
    start = found.pack.start if found.pack is not None else 0
    assert wire.get(key, start, found.size_bytes) == data
    assert not list(wire.list_uploads(""))


def part_is_uploaded(sql: apsw.Connection) -> bool:
    return bool(sql.execute("SELECT 1 FROM copied_parts").fetchone())


def overwrite(wire: Wire, node: Node) -> None:
    """Let a write arrive that nobody could know of: no condition protects a multipart upload."""
    key = node.key(ids(0), "weights")
    before = wire.head(key)
    assert before is not None
    wire.put(key, OLD, digest=content_of(OLD).digest, metadata=before.metadata)


def test_what_was_overwritten_since_it_was_verified_is_sent_again_before_it_is_published(
    node: Node, wire: Wire
) -> None:
    wire.late = lambda: pytest.fail("nothing is held back here")
    node.put(ids(0), "weights", NEW)
    node.seal(ids(0))
    with node.draining():
        node.wait_until(lambda: node.store.read(part_is_uploaded))
    overwrite(wire, node)
    published_whole(node)

    assert wire.get(node.key(ids(0), "weights")) == NEW
    shard = node.shard(ids(0), "weights")
    assert shard is not None
    assert shard.state is ShardState.CLEAN


def test_another_nodes_part_is_looked_at_before_it_is_published(tmp_path: Path, wire: Wire) -> None:
    wire.late = lambda: pytest.fail("nothing is held back here")
    first, second = Node(tmp_path / "first", wire), Node(tmp_path / "second", wire)
    first.put(ids(0), "weights", NEW)
    first.seal(ids(0))
    with first.draining():
        first.wait_until(lambda: first.store.read(part_is_uploaded))
    overwrite(wire, first)
    second.put(ids(1), "other", b"of the second rank")
    second.seal(ids(1))
    with second.draining():
        second.wait_until(lambda: bool(second.told()))

    (incident,) = second.told()
    assert "weights" in incident.message
    assert "rank 0" in incident.message
    assert second.bucket.published("run", 5) is None

    with first.draining():
        first.wait_durable(ids(0))
    assert wire.get(first.key(ids(0), "weights")) == NEW
    latest = first.checkpoints.latest("run", Level.DURABLE)
    assert latest is not None
    manifest = first.bucket.published("run", 5)
    assert manifest is not None
    digests = {shard.name: shard.digest for shard in manifest.shards}
    assert digests["weights"] == to_hex(content_of(NEW).digest)
    first.close()
    second.close()
