"""Whether what a restore brings stays on the node is a setting; what does not leaves nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.local.open_files import HOLD_SECONDS
from cachetier.model.keep import Keep, stays
from cachetier.model.lifecycle import ShardState
from cachetier.restore.remote_shard import RANGE_BLOCKS
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.unit.restore.test_arrivals import ALL, BLOCKS, DATA, SECONDS, Gate, arrived, follow

IDS = SaveIds("run", 1, "save", 0, 1)


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore(minimum_part_bytes=1))


@pytest.fixture
def node(tmp_path: Path, objects: FaultyObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    (tmp_path / "cache").mkdir()
    node = Node(tmp_path / "cache", objects, clock, vfs=vfs, keeps=lambda: False)
    put_and_evict(node, IDS, a=DATA, b=DATA)
    yield node
    node.close()


def put_and_evict(node: Node, ids: SaveIds, **shards: bytes) -> None:
    for name, data in shards.items():
        node.put(ids, name, data)
    node.checkpoints.seal(ids, 1)
    node.drain.drain_all()
    for row in node.rows():
        assert row.state is ShardState.EVICTED or node.evict(row)


def opened(node: Node, name: str = "a") -> int:
    descriptor = node.restore.open("run", 1, name, SECONDS).descriptor
    assert descriptor is not None
    return descriptor


def files(node: Node) -> list[tuple[str, int]]:
    return list(node.store.files.all())


def look_at_readers(node: Node, clock: FakeClock) -> None:
    clock.advance(HOLD_SECONDS)
    node.store.open_files.look_at_readers()


def test_what_is_not_kept_is_given_to_its_reader_and_leaves_nothing(
    node: Node, clock: FakeClock
) -> None:
    descriptor = opened(node)
    assert os.pread(descriptor, len(DATA), 0) == DATA
    assert {row.state for row in node.rows()} == {ShardState.EVICTED}
    assert files(node) == []

    look_at_readers(node, clock)
    assert node.store.space.used_bytes == len(DATA)  # while it is read
    os.close(descriptor)
    look_at_readers(node, clock)
    assert node.store.space.used_bytes == 0


def test_what_nobody_reads_is_dropped(node: Node, clock: FakeClock) -> None:
    os.close(opened(node))
    look_at_readers(node, clock)

    assert node.store.space.used_bytes == 0


def test_nothing_of_it_is_synced(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _identity: bytes) -> None:
        raise AssertionError("synced")

    monkeypatch.setattr(node.store.files, "seal", refuse)
    os.close(opened(node))


def test_many_who_want_it_at_once_have_it_fetched_once(
    node: Node, objects: FaultyObjectStore
) -> None:
    with ThreadPoolExecutor(8) as ranks:
        found = list(ranks.map(lambda _: opened(node), range(8)))

    assert objects.calls["read_into"] == -(-BLOCKS // RANGE_BLOCKS)
    for descriptor in found:
        assert os.pread(descriptor, len(DATA), 0) == DATA
        os.close(descriptor)


def test_whoever_comes_while_it_is_read_shares_it(
    node: Node, clock: FakeClock, objects: FaultyObjectStore
) -> None:
    first = opened(node)
    look_at_readers(node, clock)
    reads = objects.calls["read_into"]
    second = opened(node)
    os.close(first)
    look_at_readers(node, clock)
    third = opened(node)

    assert objects.calls["read_into"] == reads
    assert os.pread(third, len(DATA), 0) == DATA
    assert node.store.space.used_bytes == len(DATA)
    os.close(second)
    os.close(third)


def test_once_it_has_gone_it_is_fetched_again(
    node: Node, clock: FakeClock, objects: FaultyObjectStore
) -> None:
    os.close(opened(node))
    look_at_readers(node, clock)
    reads = objects.calls["read_into"]
    os.close(opened(node))

    assert objects.calls["read_into"] == 2 * reads


def test_who_reads_along_hears_of_all_blocks_though_the_file_is_not_kept(
    node: Node, objects: FaultyObjectStore, clock: FakeClock
) -> None:
    gate = Gate(objects)
    descriptor, version = follow(node)
    gate.open.set()
    there = set[int]()
    while there != ALL:
        there = arrived(node, version, len(there))
    os.close(opened(node))  # returns once it has come
    look_at_readers(node, clock)

    assert arrived(node, version, len(ALL)) == ALL
    assert os.pread(descriptor, len(DATA), 0) == DATA
    assert files(node) == []
    os.close(descriptor)


def test_who_follows_what_has_come_reads_it_as_if_it_arrived_and_not_from_the_disk(
    node: Node,
) -> None:
    first = opened(node)
    second, version = follow(node)

    assert arrived(node, version, 0) == ALL
    assert os.pread(second, len(DATA), 0) == DATA
    os.close(first)
    os.close(second)


def test_damage_to_what_is_read_is_dealt_with_as_to_a_copy(node: Node) -> None:
    descriptor = opened(node)
    with open(f"/proc/self/fd/{descriptor}", "r+b") as file:
        file.write(b"x")
    os.close(descriptor)
    assert not node.restore.verify("run", 1, "a")

    descriptor = opened(node)
    assert os.pread(descriptor, len(DATA), 0) == DATA
    os.close(descriptor)


def test_a_node_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, objects: FaultyObjectStore, clock: FakeClock, vfs: str
) -> None:
    (tmp_path / "cache").mkdir()
    node = Node(tmp_path / "cache", objects, clock, vfs=vfs, keeps=lambda: False)
    put_and_evict(node, IDS, a=DATA)
    descriptor = opened(node)
    node.die()
    again = Node(tmp_path / "cache", objects, clock, vfs=vfs)

    assert files(again) == []
    assert again.store.space.used_bytes == 0
    again.close()
    os.close(descriptor)


def test_what_mends_a_damaged_shard_is_kept(node: Node, clock: FakeClock) -> None:
    row = node.rows()[0]
    node.store.write(
        lambda sql: (
            sql.execute(
                "UPDATE shards SET state = 'quarantined' WHERE version = ?", (row.version,)
            ).get
        )
    )

    assert node.restore.mend(SECONDS) == 1
    assert len(files(node)) == 1


def test_what_is_brought_back_for_good_stays_where_nothing_is_kept(node: Node) -> None:
    row = node.rows()[0]

    node.restore.bring_back(row, SECONDS)

    assert [each.state for each in node.rows() if each.version == row.version] == [ShardState.CLEAN]
    assert len(files(node)) == 1


def test_small_shards_of_packs_are_kept_as_they_come_before_they_are_wanted(
    tmp_path: Path, objects: FaultyObjectStore, clock: FakeClock, vfs: str
) -> None:
    (tmp_path / "cache").mkdir()
    node = Node(tmp_path / "cache", objects, clock, vfs=vfs, keeps=lambda: False)
    node.drain.packing = lambda _save: True
    put_and_evict(node, IDS, x=bytes(100_000), y=bytes(100_000))
    node.get("run", 1, "x")

    assert {row.state for row in node.rows()} == {ShardState.CLEAN}
    node.close()


@pytest.mark.parametrize(
    ("keep", "used", "scarce", "kept"),
    [
        (Keep.ON, 100, True, True),
        (Keep.OFF, 0, False, False),
        (Keep.AUTO, 80, False, True),
        (Keep.AUTO, 81, False, False),
        (Keep.AUTO, 0, True, False),
    ],
)
def test_auto_keeps_what_takes_no_room_from_others(
    keep: Keep, used: int, *, scarce: bool, kept: bool
) -> None:
    assert stays(keep, used, low_bytes=80, scarce=scarce) is kept


def test_a_shard_of_one_block_is_not_kept_either(node: Node) -> None:
    put_and_evict(node, SaveIds("run", 2, "save-2", 0, 1), small=bytes(BLOCK_BYTES // 2))

    assert node.get("run", 2, "small") == bytes(BLOCK_BYTES // 2)
    assert files(node) == []
