"""A shard is read along while it arrives: what is told of is there, and stays."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.carriers.stored_blocks import BlockSink
from cachetier.errors import BackpressureError, DiskFullError, IntegrityError, NotFoundError
from cachetier.local.store import Staged
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.base import Into, ObjectStore
from cachetier.restore.block_reader import BlockReader
from cachetier.restore.remote_shard import RANGE_BLOCKS
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)
BLOCKS = 2 * RANGE_BLOCKS + 1
DATA = b"".join(bytes([number + 1]) * BLOCK_BYTES for number in range(BLOCKS - 1)) + b"tail"
ALL = set(range(BLOCKS))
SECONDS = 60.0


class Gate:
    """Holds back what is read of a store from the second range on, until it is opened."""

    def __init__(self, store: ObjectStore) -> None:
        self.open = threading.Event()
        self.reads = 0
        self._read_into = store.read_into
        store.read_into = self._wait_and_read  # type: ignore[method-assign]

    def _wait_and_read(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        self.reads += 1
        assert start == 0 or self.open.wait(SECONDS)
        self._read_into(key, start, into, etag)


@pytest.fixture
def objects(node: Node, remote: MemoryObjectStore) -> MemoryObjectStore:
    node.store.space.capacity_bytes = 256 << 20
    node.put(IDS, "a", DATA)
    node.checkpoints.seal(IDS, 1)
    node.drain.drain_all()
    for row in node.rows():
        assert node.evict(row)
    return remote


def follow(node: Node) -> tuple[int, int]:
    """Return the descriptor and the version of the shard that arrives."""
    opened = node.restore.follow("run", 1, "a", SECONDS)
    assert opened.arriving
    assert opened.descriptor is not None
    return opened.descriptor, opened.shard.version


def arrived(node: Node, version: int, more_than: int) -> set[int]:
    return node.restore.arrived("run", 1, "a", version, more_than, SECONDS)


def block(descriptor: int, number: int) -> bytes:
    return os.pread(descriptor, BLOCK_BYTES, number * BLOCK_BYTES)


def wait_until_here(node: Node) -> None:
    node.restore.open("run", 1, "a", SECONDS)
    (row,) = node.rows()
    assert row.state is ShardState.CLEAN


def test_blocks_are_read_while_others_are_still_to_come(
    node: Node, objects: MemoryObjectStore
) -> None:
    gate = Gate(objects)
    descriptor, version = follow(node)
    there = set[int]()
    while len(there) < RANGE_BLOCKS:
        there = arrived(node, version, len(there))
    assert there == set(range(RANGE_BLOCKS))
    assert node.rows()[0].state is ShardState.EVICTED
    assert [block(descriptor, number) for number in there] == [
        DATA[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES] for number in there
    ]

    gate.open.set()
    while there != ALL:
        there = arrived(node, version, len(there))
    assert os.pread(descriptor, len(DATA), 0) == DATA
    os.close(descriptor)
    wait_until_here(node)
    assert arrived(node, version, len(ALL)) == ALL  # whoever asks late


def test_who_wants_a_part_of_what_arrives_reads_along_too(
    node: Node, objects: MemoryObjectStore
) -> None:
    gate = Gate(objects)
    first, version = follow(node)
    part = node.restore.open_part("run", 1, "a", 1, SECONDS, node.restore.follow)
    assert (part.arriving, part.remote, part.shard.version) == (True, None, version)

    gate.open.set()
    assert part.descriptor is not None
    os.close(part.descriptor)
    os.close(first)
    wait_until_here(node)


def test_who_gets_the_file_cannot_write_it(node: Node, objects: MemoryObjectStore) -> None:
    gate = Gate(objects)
    descriptor, _ = follow(node)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    gate.open.set()
    os.close(descriptor)
    wait_until_here(node)


def test_many_who_want_one_shard_have_it_fetched_once(
    node: Node, objects: MemoryObjectStore
) -> None:
    gate = Gate(objects)
    with ThreadPoolExecutor(8) as ranks:
        opened = list(ranks.map(lambda _: follow(node), range(8)))
    gate.open.set()
    wait_until_here(node)
    for descriptor, _ in opened:
        assert os.pread(descriptor, len(DATA), 0) == DATA
        os.close(descriptor)
    assert gate.reads == -(-BLOCKS // RANGE_BLOCKS)


def test_a_remote_that_fails_in_the_middle_is_heard_of_by_who_reads_along(
    node: Node, objects: MemoryObjectStore
) -> None:
    key = next(key for key in objects.list("").keys if key.endswith("/a"))
    gate = Gate(objects)
    descriptor, version = follow(node)
    body = bytearray(objects.get(key, 0, len(DATA)))
    body[-1] ^= 1
    objects._objects[key] = (objects._objects[key][0], bytes(body))
    there = arrived(node, version, 0)
    gate.open.set()
    with pytest.raises(IntegrityError):
        while BLOCKS - 1 not in there:
            there = arrived(node, version, len(there))
    os.close(descriptor)
    with pytest.raises(NotFoundError, match="not on its way"):
        arrived(node, version, 0)
    with pytest.raises(IntegrityError):
        node.restore.open("run", 1, "a", SECONDS)
    node.store.open_files.look()  # what a reader has open counts
    assert node.store.space.used_bytes == 0


def test_a_shard_that_has_to_come_once_more_comes_whole(
    node: Node, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gate = node.store.restored, Gate(objects)

    def full_at_first(staged: Staged, shard: Shard) -> None:
        monkeypatch.setattr(node.store, "restored", kept)
        node.store.discard(staged)
        raise DiskFullError("no room to mark it")

    monkeypatch.setattr(node.store, "restored", full_at_first)
    descriptor, version = follow(node)
    gate.open.set()
    there = set[int]()
    while there != ALL:
        there = arrived(node, version, len(there))
    wait_until_here(node)
    assert node.restore.verify("run", 1, "a")
    assert node.get("run", 1, "a") == DATA
    assert os.pread(descriptor, len(DATA), 0) == DATA
    os.close(descriptor)


def test_without_room_nothing_arrives(node: Node, objects: MemoryObjectStore) -> None:
    node.store.space.capacity_bytes = BLOCK_BYTES
    with pytest.raises(BackpressureError):
        node.restore.follow("run", 1, "a", 0.1)


def test_small_shards_and_those_that_are_here_are_opened_as_ever(node: Node) -> None:
    node.store.space.capacity_bytes = 256 << 20
    node.put(IDS, "small", b"small")
    node.put(IDS, "a", DATA)
    for name in ("small", "a"):
        opened = node.restore.follow("run", 1, name, SECONDS)
        assert (opened.arriving, opened.source) == (False, "local")
        if opened.descriptor is not None:
            os.close(opened.descriptor)


@pytest.mark.parametrize(
    ("run", "step", "name"), [("other", 1, "a"), ("run", 2, "a"), ("run", 1, "b")]
)
def test_a_version_opens_no_shard_of_another_name(
    node: Node, objects: MemoryObjectStore, run: str, step: int, name: str
) -> None:
    gate = Gate(objects)
    descriptor, version = follow(node)
    with pytest.raises(NotFoundError, match="not on its way"):
        node.restore.arrived(run, step, name, version, 0, SECONDS)
    gate.open.set()
    os.close(descriptor)
    wait_until_here(node)
    with pytest.raises(NotFoundError, match="not on its way"):
        node.restore.arrived(run, step, name, version, 0, SECONDS)


def test_a_block_that_a_carrier_tells_of_and_never_wrote_is_not_what_a_reader_gets(
    node: Node, objects: MemoryObjectStore
) -> None:
    """A planted bug: the reader notices, and gets the bytes from the bucket or an error."""
    read_into, lies = objects.read_into, list[int]()

    def lie_once(key: str, start: int, into: Into, etag: str | None = None) -> None:
        if lies:
            read_into(key, start, into, etag)
            return
        assert isinstance(into, BlockSink)
        lies.append(start)
        for index in range(len(into.blocks.sizes)):
            into.written_elsewhere(into.blocks.first_block + index)

    objects.read_into = lie_once  # type: ignore[method-assign]
    reader = BlockReader(node.restore.follow("run", 1, "a", SECONDS), node.restore, SECONDS)
    read, sound = bytearray(len(DATA)), 0
    with suppress(IntegrityError):  # the file may not be replaced yet when it is read again
        for start in range(0, len(DATA), BLOCK_BYTES):
            reader.fill(sound, memoryview(read)[start : start + BLOCK_BYTES])
            sound += 1
    reader.close()

    assert len(lies) == 1
    assert read[: sound * BLOCK_BYTES] == DATA[: sound * BLOCK_BYTES]
