"""A packed shard comes back with its neighbours: few requests, each shard verified, room kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import IntegrityError
from cachetier.local.catalog import shards
from cachetier.local.store import Staged
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.base import Into
from cachetier.restore import readahead
from cachetier.restore.link import PIECE_BYTES
from cachetier.restore.readahead import FORGET_SECONDS, WINDOWS_AT_ONCE
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, corrupt, fail
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)
SHARDS = 140
KILOBYTES = 60  # each, so that all of them are some eight windows of the first size
MOST_READS = SHARDS * KILOBYTES * 1024 // PIECE_BYTES + 6  # windows end anywhere in a piece


@pytest.fixture
def objects() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def node(tmp_path: Path, objects: FaultyObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    (tmp_path / "cache").mkdir(exist_ok=True)
    node = Node(tmp_path / "cache", objects, clock, vfs=vfs, capacity_bytes=64 << 20)
    node.drain.packing = lambda _save: True
    yield node
    node.close()


def body_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * (KILOBYTES * 256)


def published(node: Node, shards: int = SHARDS) -> str:
    """Publish small shards, evict them all, and return the key of their pack."""
    for number in range(shards):
        node.put(IDS, str(number), body_of(number))
    node.checkpoints.seal(IDS, 1)
    node.drain.drain_all()
    for row in node.rows():
        assert node.evict(row)
    (key,) = (key for key in node.bucket.objects.list("").keys if "/pack-" in key)
    return key


def here(node: Node) -> set[str]:
    """Return the names of the shards with bytes here."""
    return {row.name for row in node.rows() if row.state is ShardState.CLEAN}


def test_who_reads_one_shard_gets_a_few_neighbours(node: Node, objects: FaultyObjectStore) -> None:
    published(node)
    assert node.get("run", 1, "50") == body_of(50)

    assert objects.calls["read_into"] == 1
    assert here(node) == {str(number) for number in range(50, 50 + 17)}


def test_who_reads_all_in_turn_makes_few_requests(node: Node, objects: FaultyObjectStore) -> None:
    published(node)
    for number in range(SHARDS):
        assert node.get("run", 1, str(number)) == body_of(number)

    assert objects.calls["read_into"] <= MOST_READS
    assert len(here(node)) == SHARDS


def test_the_order_of_reading_does_not_matter(node: Node, objects: FaultyObjectStore) -> None:
    published(node)
    for number in sorted(range(SHARDS), key=lambda number: (number * 37) % SHARDS):
        assert node.get("run", 1, str(number)) == body_of(number)

    assert objects.calls["read_into"] <= MOST_READS


@pytest.mark.parametrize("order", [(2, 1, 0), (5, 3, 139, 0), (139, 70, 0), (60, 137, 0, 139)])
def test_what_is_here_is_not_fetched_again_for_the_few_on_both_sides_of_it(
    node: Node, objects: FaultyObjectStore, order: tuple[int, ...]
) -> None:
    published(node)
    for number in (*order, *range(SHARDS)):
        assert node.get("run", 1, str(number)) == body_of(number)

    assert objects.calls["read_into"] <= MOST_READS


def test_readers_at_once_do_not_read_the_same_pack_at_once(
    node: Node, objects: FaultyObjectStore
) -> None:
    published(node)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda number: node.get("run", 1, str(number), 30.0), range(SHARDS))

        assert list(found) == [body_of(number) for number in range(SHARDS)]
    assert objects.calls["read_into"] <= MOST_READS


def test_after_a_while_a_single_reader_gets_a_few_again(node: Node, clock: FakeClock) -> None:
    published(node)
    for number in range(SHARDS):
        node.get("run", 1, str(number))
    for row in node.rows():
        assert node.evict(row)
    clock.advance(FORGET_SECONDS + 1)
    node.get("run", 1, "0")

    assert len(here(node)) == 17


def test_a_neighbour_that_is_damaged_stays_remote_and_harms_nobody(
    node: Node, objects: FaultyObjectStore
) -> None:
    key = published(node)
    body = bytearray(objects.get(key))
    body[len(body_of(0)) + 5] ^= 1  # in shard 1
    objects.put(key, bytes(body), digest=digest_of(body))

    assert node.get("run", 1, "0") == body_of(0)
    assert "1" not in here(node)
    assert {"2", "3"} < here(node)
    with pytest.raises(IntegrityError):
        node.get("run", 1, "1")


def test_a_disk_that_does_not_take_a_neighbour_harms_nobody_either(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(node)
    restored = node.store.restored

    def refuse_some(staged: Staged, shard: Shard) -> None:
        if shard.name in ("1", "2"):
            node.store.discard(staged)
            raise OSError(5, "Input/output error")
        restored(staged, shard)

    monkeypatch.setattr(node.store, "restored", refuse_some)
    assert node.get("run", 1, "0") == body_of(0)
    assert len(here(node)) == 15


def test_a_bit_that_flips_on_the_way_costs_only_the_neighbour_that_it_hits(
    node: Node, objects: FaultyObjectStore
) -> None:
    published(node)
    objects.add(corrupt("read_into", 1))  # in the middle of the window
    node.get("run", 1, "0")

    assert not objects.pending
    assert len(here(node)) == 16
    for number in range(SHARDS):
        assert node.get("run", 1, str(number)) == body_of(number)


def test_a_read_of_the_window_that_fails_is_followed_by_one_of_the_shard_alone(
    node: Node, objects: FaultyObjectStore
) -> None:
    published(node)
    objects.add(fail("read_into", 1))

    assert node.get("run", 1, "0") == body_of(0)
    assert not objects.pending
    assert here(node) == {"0"}


def test_a_pack_that_is_gone_is_an_integrity_error(node: Node, objects: FaultyObjectStore) -> None:
    objects.delete(published(node))

    with pytest.raises(IntegrityError):
        node.get("run", 1, "0")
    assert here(node) == set()
    assert node.store.space.used_bytes == 0


def test_neighbours_come_only_while_there_is_room(node: Node) -> None:
    published(node)
    node.store.space.capacity_bytes = 3 * len(body_of(0)) + 1

    assert node.get("run", 1, "0") == body_of(0)
    assert len(here(node)) == 3
    assert node.store.space.used_bytes == 3 * len(body_of(0))


def test_shards_that_are_here_are_not_fetched_again(node: Node) -> None:
    published(node, 20)
    node.get("run", 1, "10")
    files = {row.name: row.file_id for row in node.rows() if row.file_id}
    node.get("run", 1, "0")

    assert {row.name: row.file_id for row in node.rows() if row.name in files} == files
    assert len(here(node)) == 20


def test_memory_for_windows_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readahead, "WINDOW_SECONDS", 0.0)
    published(node)
    ahead, row = node.restore._refill._ahead, node.rows()[0]
    source = ahead.packed(row)
    assert source is not None
    with ahead.reading(row, source) as first, ahead.reading(row, source) as second:
        assert WINDOWS_AT_ONCE == 2
        assert all(window.neighbours for window in (first, second))
        with ahead.reading(row, source) as third:
            assert third.neighbours == ()
    with ahead.reading(row, source) as again:
        assert again.neighbours


def test_a_node_that_never_saw_the_run_reads_along_too(
    node: Node, objects: FaultyObjectStore, tmp_path: Path, clock: FakeClock, vfs: str
) -> None:
    published(node)
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Node(tmp_path / "elsewhere", objects, clock, vfs=vfs)
    reads = objects.calls["read_into"]
    for number in range(SHARDS):
        assert elsewhere.get("run", 1, str(number)) == body_of(number)

    assert objects.calls["read_into"] - reads <= MOST_READS
    elsewhere.close()


def test_what_is_packed_is_known_by_its_place(node: Node) -> None:
    published(node, 3)
    rows = node.rows()
    stored = [
        node.store.read(lambda sql, v=row.version: shards.stored_of(sql, v, REMOTE))  # type: ignore[misc]
        for row in rows
    ]

    starts = [kept.pack.start for kept in stored if kept is not None and kept.pack is not None]
    assert starts == [0, len(body_of(0)), 2 * len(body_of(0))]


def test_waiting_for_the_pack_of_another_reader_ends_at_the_deadline(
    node: Node, objects: FaultyObjectStore
) -> None:
    published(node)
    entered, leave = threading.Event(), threading.Event()
    original = objects.read_into

    def read_into(key: str, start: int, into: Into, etag: str | None = None) -> None:
        entered.set()
        assert leave.wait(30)
        original(key, start, into, etag)

    objects.read_into = read_into  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(node.get, "run", 1, "0", 30.0)
        assert entered.wait(30)
        with pytest.raises(Exception, match="takes longer than this call"):
            node.get("run", 1, "100", 0.0)
        leave.set()
        assert first.result() == body_of(0)


def test_a_shard_that_came_back_meanwhile_is_not_read_along_with_others(
    node: Node, objects: FaultyObjectStore
) -> None:
    published(node, 20)
    ahead, row = node.restore._refill._ahead, node.rows()[0]
    source = ahead.packed(row)
    assert source is not None
    node.get("run", 1, row.name)
    reads = objects.calls["read_into"]

    with ahead.reading(row, source) as window:
        assert (window.asked, window.neighbours) == (source, ())
    assert objects.calls["read_into"] == reads


def test_a_row_that_points_behind_the_end_of_the_pack_is_no_reason_to_read_there(
    node: Node, objects: FaultyObjectStore
) -> None:
    published(node, 20)
    node.store.write(
        lambda sql: sql.execute("UPDATE drains SET pack_start = 1 << 40 WHERE version = 20").get
    )
    assert node.get("run", 1, "0") == body_of(0)

    assert here(node) == {"0"}


def test_empty_shards_come_back_together_and_nothing_is_read(
    node: Node, objects: FaultyObjectStore
) -> None:
    for name in ("a", "b", "c"):
        node.put(IDS, name, b"")
    node.checkpoints.seal(IDS, 1)
    node.drain.drain_all()
    for row in node.rows():
        assert node.evict(row)

    assert node.get("run", 1, "b") == b""

    assert here(node) == {"a", "b", "c"}
    assert objects.calls["read_into"] == 0


def test_a_reader_of_many_packs_is_remembered_by_those_it_read_last(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readahead, "REMEMBERED_PACKS", 1)
    published(node)
    other = SaveIds("run", 2, "save-2", 0, 1)
    for name in ("a", "b"):
        node.put(other, name, body_of(1))
    node.checkpoints.seal(other, 1)
    node.drain.drain_all()
    for row in node.rows():
        if row.state is ShardState.CLEAN:
            assert node.evict(row)

    node.get("run", 1, "0")
    node.get("run", 2, "a")  # of another pack
    node.get("run", 1, "50")

    assert here(node) - {"a", "b"} == {str(each) for each in (*range(17), *range(50, 67))}
