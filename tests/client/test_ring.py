"""Memory that streams share, and bytes that come later."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cachetier_client import (
    Client,
    DeadlineError,
    InvalidRequestError,
    SizeMismatchError,
    StagedIOError,
)
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.io import aligned as memory
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.ring import Ring
from cachetier_client.streams.writer import CACHED_BYTES, ShardWriter

from tests.client.fake_http import FakeHttpService
from tests.client.fake_service import FakeService
from tests.client.fakes import FaultyFiles, HeldFiles
from tests.client.test_forks import run_in_child
from tests.client.test_puts import SIZES, kept, patterned

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def seconds(number: float) -> Deadline:
    return Deadline(number, SystemClock())


@pytest.fixture
def ring() -> Iterator[Ring]:
    with Ring(3 * BLOCK_BYTES) as made:
        yield made
        assert made.free_blocks == 3


def copying(data: bytes, waits: list[str] | None = None) -> Callable[[memoryview, int], Any]:
    """Return a source that brings its bytes when they are waited for, and notes on which thread."""

    def copy(into: memoryview, at: int) -> Callable[[], None] | None:
        piece = data[at : at + len(into)]
        assert len(piece) == len(into)
        if waits is None:
            into[:] = piece
            return None
        into[:] = bytes(len(into))

        def wait() -> None:
            into[:] = piece
            waits.append(threading.current_thread().name)

        return wait

    return copy


# --- the ring ------------------------------------------------------------------------------------


def test_a_ring_is_whole_blocks_in_a_row_on_pages() -> None:
    with Ring(BLOCK_BYTES + 1) as ring:
        blocks = [ring.take(seconds(0.1)) for _ in range(2)]

        assert ring.size_bytes == len(ring.memory) == 2 * BLOCK_BYTES
        assert [block.address - ring.address for block in blocks] == [0, BLOCK_BYTES]
        assert ring.address % memory.PAGE_BYTES == 0


def test_a_block_is_used_again_and_never_twice_at_once(ring: Ring) -> None:
    first = ring.take(seconds(0.1))
    others = [ring.take(seconds(0.1)) for _ in range(2)]
    ring.give_back(first)
    ring.give_back(first)

    assert ring.take(seconds(0.1)) is first
    assert ring.free_blocks == 0
    for block in (first, *others):
        ring.give_back(block)


def test_a_block_of_another_ring_is_not_taken_in(ring: Ring) -> None:
    with Ring(1) as other:
        ring.give_back(other.take(seconds(0.1)))

    assert ring.free_blocks == 3


def test_where_no_block_comes_back_taking_one_ends_in_time() -> None:
    with Ring(1) as ring:
        ring.take(seconds(0.1))
        with pytest.raises(DeadlineError, match="a block of the ring"):
            ring.take(seconds(0))


def test_a_waiting_stream_goes_on_with_the_next_free_block() -> None:
    with Ring(1) as ring:
        block = ring.take(seconds(0.1))
        giver = threading.Thread(target=ring.give_back, args=(block,))
        giver.start()

        assert ring.take(seconds(30)) is block
        giver.join()


def test_a_closed_ring_gives_nothing_to_those_who_wait_either() -> None:
    ring = Ring(1)
    block = ring.take(seconds(0.1))
    closer = threading.Thread(target=ring.close)
    closer.start()

    with pytest.raises(InvalidRequestError, match="closed"):
        ring.take(seconds(30))

    closer.join()
    ring.give_back(block)
    assert ring.free_blocks == 0


@pytest.mark.parametrize("size_bytes", [0, -1])
def test_a_ring_without_room_is_refused(size_bytes: int) -> None:
    with pytest.raises(InvalidRequestError):
        Ring(size_bytes)


@FORKS
def test_a_forked_child_has_a_ring_of_its_own(ring: Ring) -> None:
    block = ring.take(seconds(0.1))
    block.view[:4] = b"mine"

    def use() -> None:
        ring.give_back(block)  # the parent's: not this ring's any more
        for _ in range(3):
            ring.take(seconds(0.1)).view[:5] = b"child"
        with pytest.raises(DeadlineError):
            ring.take(seconds(0))

    assert run_in_child(use) == 0
    assert bytes(block.view[:4]) == b"mine"
    ring.give_back(block)


# --- streams on a ring ---------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("declares", [False, True])
def test_a_stream_larger_than_its_ring_arrives_whole(
    service: FakeService, client: Client, ring: Ring, size_bytes: int, declares: bool
) -> None:
    data = patterned(4 * size_bytes)

    with client.open_shard(
        None, 7, "s", ring=ring, size_bytes=len(data) if declares else None
    ) as stream:
        assert stream.write_later(len(data), copying(data)) == len(data)
        assert stream.tell() == len(data)

    assert kept(service) == data


def test_bytes_that_come_later_are_waited_for_by_the_thread_that_writes_them(
    service: FakeService, client: Client, ring: Ring
) -> None:
    data, waits = patterned(5 * BLOCK_BYTES + 9), list[str]()

    with client.open_shard(None, 7, "s", ring=ring) as stream:
        stream.write_later(len(data), copying(data, waits))

    assert kept(service) == data
    assert len(waits) == 6
    assert {name.rpartition("_")[0] for name in waits} == {"cachetier-blocks"}


def test_bytes_are_copied_a_block_at_once_or_as_little_as_the_source_wants(
    service: FakeService, client: Client, ring: Ring
) -> None:
    data, pieces = patterned(2 * BLOCK_BYTES), list[int]()

    def copy(into: memoryview, at: int) -> None:
        pieces.append(len(into))
        into[:] = data[at : at + len(into)]

    with client.open_shard(None, 7, "s", ring=ring) as stream:
        stream.write_later(len(data), copy)
    assert kept(service) == data
    assert pieces == [BLOCK_BYTES] * 2

    pieces.clear()
    with client.open_shard(None, 7, "s", ring=ring) as stream:
        stream.write_later(len(data), copy, at_once=CACHED_BYTES)
    assert kept(service) == data
    assert pieces == [CACHED_BYTES] * 8


def test_bytes_that_are_there_and_bytes_that_come_later_mix(
    service: FakeService, client: Client, ring: Ring
) -> None:
    chance, data = random.Random(3), patterned(3 * BLOCK_BYTES)
    with client.checkpoint(None, 7) as checkpoint:
        stream = checkpoint.open("s", ring=ring, element_size=4)
        while stream.tell() < len(data):
            piece = data[stream.tell() :][: chance.choice((1, 4096, 70_001, 2 * BLOCK_BYTES))]
            if chance.random() < 0.5:
                stream.write(piece)
            else:
                stream.write_later(len(piece), copying(piece, chance.choice(([], None))))
        stream.close()

    assert kept(service) == data


@pytest.mark.parametrize("size_bytes", [100, BLOCK_BYTES])
def test_a_short_stream_waits_at_its_end(
    service: FakeService, client: Client, ring: Ring, size_bytes: int
) -> None:
    data, waits = patterned(size_bytes), list[str]()

    with client.open_shard(None, 7, "s", ring=ring) as stream:
        stream.write_later(len(data), copying(data, waits))
        assert not waits

    assert kept(service) == data
    assert len(waits) == 1


def test_over_http_they_are_sent_in_order(ring: Ring) -> None:
    data = patterned(4 * BLOCK_BYTES + 9)
    with FakeHttpService().running() as service, Client(service.url, run="a-run") as client:
        with client.open_shard(None, 7, "s", ring=ring, size_bytes=len(data)) as stream:
            stream.write_later(len(data), copying(data, []))

    assert list(service.shards.values()) == [data]


@pytest.mark.parametrize("blocks", [1, 2])
def test_streams_on_one_small_ring_do_not_hold_each_other_up(
    service: FakeService, client: Client, blocks: int
) -> None:
    data = {f"s{number}": patterned(5 * BLOCK_BYTES + number) for number in range(3)}

    def write(name: str) -> None:
        with client.open_shard(None, 7, name, ring=shared) as stream:
            stream.write_later(len(data[name]), copying(data[name], []))

    with Ring(blocks * BLOCK_BYTES) as shared:
        threads = [threading.Thread(target=write, args=(name,)) for name in data]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert shared.free_blocks == blocks

    assert {name: kept(service, name) for name in data} == data


def test_a_full_block_is_free_as_soon_as_it_is_written(service: FakeService, ring: Ring) -> None:
    files = HeldFiles()
    with Client(service.url, run="a-run", files=files) as client:
        stream = client.open_shard(None, 7, "s", ring=ring)
        stream.write(patterned(2 * BLOCK_BYTES))
        assert files.reached.wait(30)
        assert ring.free_blocks == 1
        others = [ring.take(seconds(0.1))]
        files.open.set()
        others += [ring.take(seconds(30)) for _ in range(2)]  # though the stream does nothing
        for block in others:
            ring.give_back(block)
        stream.close()

    assert kept(service) == patterned(2 * BLOCK_BYTES)


def test_a_stream_without_a_ring_uses_the_clients_blocks_again(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, fresh = HeldFiles(), list[int]()
    with Client(service.url, run="a-run", files=files) as client:
        with client.open_shard(None, 7, "first") as stream:
            stream.write(patterned(4 * BLOCK_BYTES))  # as many blocks as a stream has
            files.open.set()
        monkeypatch.setattr(memory, "aligned_memory", fresh.append)

        with client.open_shard(None, 7, "s") as stream:
            stream.write(patterned(8 * BLOCK_BYTES))

    assert kept(service) == patterned(8 * BLOCK_BYTES)
    assert not fresh


# --- failures ------------------------------------------------------------------------------------


def opened(client: Client, ring: Ring) -> ShardWriter:
    return client.open_shard(None, 7, "s", ring=ring)


@pytest.mark.parametrize("written", [0, 100, 2 * BLOCK_BYTES])
def test_an_abort_gives_a_block_back_only_once_nobody_copies_into_it(
    service: FakeService, client: Client, ring: Ring, written: int
) -> None:
    free: list[int] = []

    def copy(into: memoryview, at: int) -> Callable[[], None]:
        return lambda: free.append(ring.free_blocks)

    stream = opened(client, ring)
    stream.write(bytes(written))
    stream.write_later(10, copy)
    stream.abort()

    assert free in ([2], [1])  # while it was waited for, its block was out
    assert not service.shards


def test_writes_that_had_not_begun_are_waited_for_before_their_blocks_come_back(
    service: FakeService, ring: Ring
) -> None:
    files, waits = HeldFiles(), list[str]()
    with Client(service.url, run="a-run", files=files, threads=2) as client:
        stream = opened(client, ring)
        data = patterned(3 * BLOCK_BYTES)
        stream.write_later(len(data), copying(data, waits))
        assert files.reached.wait(30)  # the first block; the others queue behind it
        threading.Timer(0, files.open.set).start()
        stream.abort()

    assert len(waits) == 3
    assert not service.shards


@pytest.mark.filterwarnings("ignore:shard s was never closed:ResourceWarning")
def test_a_stream_collected_on_a_thread_that_writes_for_it_is_aborted_by_another(
    service: FakeService, client: Client, ring: Ring
) -> None:
    stream, dropped, collected = opened(client, ring), threading.Event(), threading.Event()

    def collect() -> None:
        assert dropped.wait(30)
        stream.__del__()
        collected.set()

    stream.write_later(2 * BLOCK_BYTES, lambda into, at: None if at else collect)
    dropped.set()
    assert collected.wait(30)
    for thread in threading.enumerate():
        if thread.name == "cachetier-abort":
            thread.join(30)

    assert stream.closed
    assert not service.shards
    assert not service.staged


def test_a_source_that_fails_leaves_nothing(
    service: FakeService, client: Client, ring: Ring
) -> None:
    def copy(into: memoryview, at: int) -> None:
        if at:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with opened(client, ring) as stream:
            stream.write_later(3 * BLOCK_BYTES, copy)

    assert not service.shards
    assert not service.staged


@pytest.mark.parametrize("size_bytes", [10, 2 * BLOCK_BYTES])
def test_a_block_whose_bytes_never_came_is_not_used_again(
    service: FakeService, client: Client, size_bytes: int
) -> None:
    def wait() -> None:
        raise ZeroDivisionError

    with Ring(3 * BLOCK_BYTES) as ring:
        with pytest.raises(ZeroDivisionError):
            with opened(client, ring) as stream:
                stream.write_later(size_bytes, lambda into, at: wait)

        assert ring.free_blocks in (1, 2)  # the second block may have been under way too

    assert not service.shards


def test_a_disk_that_fails_gives_all_blocks_back(service: FakeService, ring: Ring) -> None:
    files = FaultyFiles(write_error=errno.EIO)
    data = patterned(9 * BLOCK_BYTES)
    with Client(service.url, run="a-run", files=files) as client:
        with pytest.raises(StagedIOError):
            with opened(client, ring) as stream:
                stream.write_later(len(data), copying(data, []))

    assert files.fired >= 1


def test_a_stream_that_finds_no_block_ends_by_its_deadline(
    service: FakeService, client: Client
) -> None:
    with Ring(1) as ring:
        taken = ring.take(seconds(0.1))
        stream = client.open_shard(None, 7, "s", ring=ring, timeout_seconds=0.05)
        with pytest.raises(DeadlineError, match="open_shard run=a-run step=7 rank=0 shard=s"):
            stream.write(b"x")
        ring.give_back(taken)

    assert not service.shards


@pytest.mark.parametrize("size_bytes", [10, 2 * BLOCK_BYTES])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_stream_of_another_size_than_declared_leaves_nothing(
    service: FakeService, client: Client, ring: Ring, size_bytes: int, more: int
) -> None:
    with pytest.raises(SizeMismatchError, match=f"{size_bytes + more} bytes .* of {size_bytes}"):
        with client.open_shard(None, 7, "s", ring=ring, size_bytes=size_bytes) as stream:
            stream.write(bytes(size_bytes + more))

    assert not service.shards
    assert not service.staged


def test_a_size_below_nothing_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError):
        client.open_shard(None, 7, "s", size_bytes=-1)
