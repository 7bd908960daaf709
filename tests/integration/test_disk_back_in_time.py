"""A cache directory that was restored from a snapshot, or copied to another node.

What is published stays as it is, what was acknowledged reaches the bucket or stays here with an
incident, and nothing refuses to start.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import apsw
import pytest
from cachetier_client.bucket_format.documents import ShardSummary
from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES
from cachetier_client.identity.names import SaveIds

from cachetier.model.lifecycle import SaveState, ShardState
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node, patterned

LARGE = SINGLE_PUT_BYTES + 4096


def ids(rank: int = 0, world_size: int = 1) -> SaveIds:
    return SaveIds("run", 5, "save", rank, world_size)


def bodies(size_bytes: int) -> tuple[bytes, bytes]:
    return patterned(size_bytes, seed=1), patterned(size_bytes, seed=2)


class Disks:
    """Cache directories over one bucket."""

    def __init__(self, top: Path, nodes: ExitStack) -> None:
        self.top = top
        self.bucket = MemoryObjectStore()
        self._nodes = nodes

    def node(self, name: str = "node") -> Node:
        node = Node(self.top / name, self.bucket)
        self._nodes.callback(node.close)
        return node

    def copy(self, name: str, to: str) -> None:
        """Copy a directory as it is now, as a snapshot does."""
        shutil.rmtree(self.top / to, ignore_errors=True)
        shutil.copytree(self.top / name, self.top / to)

    @contextmanager
    def going_back(self, meanwhile: Callable[[Node], None]) -> Iterator[Node]:
        """Let a node do what its restored disk then knows nothing of."""
        self.copy("node", "snapshot")
        node = Node(self.top / "node", self.bucket)
        meanwhile(node)
        node.close()
        self.copy("snapshot", "node")
        yield self.node()

    def read(self, node: Node, shard: ShardSummary) -> bytes:
        key = node.bucket.layout.object_key("run", "5", shard.name, shard.pack_name)
        start = shard.pack.start if shard.pack is not None else 0
        return self.bucket.get(key, start, shard.size_bytes)

    def published(self, node: Node) -> dict[str, bytes]:
        """Return what readers get of the step, by name."""
        manifest = node.bucket.published("run", 5)
        assert manifest is not None
        return {shard.name: self.read(node, shard) for shard in manifest.shards}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    with ExitStack() as nodes:
        yield Disks(tmp_path, nodes)


def opened_and_closed(disks: Disks, *, claimed: bool) -> None:
    """Make the directory that is copied; ``claimed``: it knows the save and where it goes."""
    node = Node(disks.top / "node", disks.bucket)
    if claimed:
        node.put(ids(), "early", b"sent before")
        with node.draining():
            node.hurry("run", 5)
            node.wait_clean(ids(), "early")
    node.close()


def settled(node: Node) -> None:
    with node.draining():
        node.wait_until(lambda: bool(node.told()))


@pytest.mark.parametrize("claimed", [True, False], ids=["known_save", "unknown_save"])
@pytest.mark.parametrize("size_bytes", [100, LARGE], ids=["one_put", "parts"])
@pytest.mark.parametrize("puts", [1, 2])
def test_a_restored_disk_overwrites_nothing_that_is_published(
    disks: Disks, size_bytes: int, puts: int, *, claimed: bool
) -> None:
    before, after = bodies(size_bytes)
    opened_and_closed(disks, claimed=claimed)

    def meanwhile(node: Node) -> None:
        node.put(ids(), "weights", before)
        node.seal(ids())
        with node.draining():
            node.wait_durable(ids())

    with disks.going_back(meanwhile) as node:
        if puts == 2:  # so that the version is a higher one, of a name that was replaced here too
            node.put(ids(), "weights", before)
        node.put(ids(), "weights", after)
        node.seal(ids())
        settled(node)

        assert disks.published(node)["weights"] == before
        shard = node.shard(ids(), "weights")
        assert shard is not None
        assert shard.state is ShardState.DIRTY, "what was acknowledged stays here"
        assert node.save(ids()).state is SaveState.OPEN
        told = [incident for incident in node.told() if "weights" in incident.message]
        assert told
        assert all("unless a manifest names it" in incident.hint for incident in told)


@pytest.mark.parametrize("claimed", [True, False], ids=["known_save", "unknown_save"])
def test_a_restored_disk_takes_what_it_puts_again_for_published(
    disks: Disks, *, claimed: bool
) -> None:
    opened_and_closed(disks, claimed=claimed)

    def save(node: Node) -> None:
        if not claimed:
            node.put(ids(), "early", b"sent before")
        node.put(ids(), "weights", b"the same bytes")
        node.seal(ids())
        with node.draining():
            node.wait_durable(ids())

    with disks.going_back(save) as node:
        save(node)
        assert node.save(ids()).state is SaveState.PUBLISHED
        assert not node.told()


@pytest.mark.parametrize("size_bytes", [100, LARGE], ids=["one_put", "parts"])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_restored_disk_publishes_what_it_has_beside_what_it_sent_in_a_former_life(
    disks: Disks, size_bytes: int, others: int
) -> None:
    before, after = bodies(size_bytes)
    opened_and_closed(disks, claimed=True)

    def meanwhile(node: Node) -> None:
        node.put(ids(), "weights", before)
        node.hurry("run", 5)
        with node.draining():
            node.wait_clean(ids(), "weights")

    with disks.going_back(meanwhile) as node:
        for other in range(others):
            node.put(ids(), f"other-{other}", b"so that the version is a higher one")
        node.put(ids(), "weights", after)
        node.seal(ids())
        with node.draining():
            node.wait_durable(ids())

        assert disks.published(node)["weights"] == after
        assert not node.told()
        restored = node.checkpoints.step("run", 5)[0]
        assert restored.state == "published"


def test_copied_nodes_publish_one_save_where_their_names_differ(disks: Disks) -> None:
    opened_and_closed(disks, claimed=False)
    disks.copy("node", "copy")
    nodes = [disks.node("node"), disks.node("copy")]
    for rank, node in enumerate(nodes):
        node.put(ids(rank, 2), f"shard-{rank}", b"of rank %d" % rank)
        node.seal(ids(rank, 2))
    with nodes[0].draining(), nodes[1].draining():
        for node in nodes:
            node.wait_until(partial(is_published, node))

    assert disks.published(nodes[0]) == {"shard-0": b"of rank 0", "shard-1": b"of rank 1"}


@pytest.mark.parametrize("puts", [1, 2])
def test_copied_nodes_that_use_one_name_twice_publish_nothing_and_lose_nothing(
    disks: Disks, puts: int
) -> None:
    opened_and_closed(disks, claimed=False)
    disks.copy("node", "copy")
    first, second = disks.node("node"), disks.node("copy")
    first.put(ids(0, 2), "weights", b"of rank 0")
    first.seal(ids(0, 2))
    with first.draining():
        first.wait_until(lambda: first.store.read(part_is_uploaded))
    if puts == 2:
        second.put(ids(1, 2), "weights", b"of rank 1, at first")
    second.put(ids(1, 2), "weights", b"of rank 1")
    second.seal(ids(1, 2))
    settled(second)
    settled(first)

    assert first.bucket.published("run", 5) is None
    assert "two digests" in first.told()[0].message
    assert "two digests" in second.told()[0].message
    assert disks.bucket.get(first.key(ids(), "weights")) == b"of rank 0"


def is_published(node: Node) -> bool:
    return node.save(ids()).state is SaveState.PUBLISHED


def part_is_uploaded(sql: apsw.Connection) -> bool:
    return bool(sql.execute("SELECT 1 FROM copied_parts").fetchone())
