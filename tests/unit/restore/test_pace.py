"""The pace of restores: a limit for all reads, room for training, and how far they are."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

from cachetier_client.bucket_format.stored import Stored
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import StoppingError
from cachetier.model.shard import Shard
from cachetier.restore import pace as module
from cachetier.restore.pace import BESIDE_TRAINING, RestoreFigures, RestorePace
from cachetier.restore.remote_shard import RemoteShard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import content_of

DATA = random.Random(3).randbytes(2 * BLOCK_BYTES)


class SkippedWaits:
    """An event nobody sets, on which to wait only moves the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self._clock.advance(seconds)
        return False

    def is_set(self) -> bool:
        return False


def skipping(pace: RestorePace, clock: FakeClock) -> list[float]:
    """Have the waits of ``pace`` move the clock, and return them as they come."""
    skipped = SkippedWaits(clock)
    pace._stopping = cast("threading.Event", skipped)
    return skipped.waits


def shard(version: int, size_bytes: int) -> Shard:
    return cast(
        "Shard", SimpleNamespace(version=version, content=SimpleNamespace(size_bytes=size_bytes))
    )


def test_reads_wait_for_the_limit_together(clock: FakeClock) -> None:
    pace = RestorePace(clock, 100.0)
    waits = skipping(pace, clock)
    for _ in range(3):
        pace.await_turn(200)
    assert waits == [2.0, 2.0]
    clock.advance(60.0)
    pace.await_turn(200)
    assert waits == [2.0, 2.0], "an idle limit lends nothing and owes nothing"


def test_without_a_limit_nobody_waits(clock: FakeClock) -> None:
    pace = RestorePace(clock)
    waits = skipping(pace, clock)
    pace.await_turn(1 << 40)
    assert waits == []


def test_a_paced_copy_reads_the_same_and_is_counted(clock: FakeClock) -> None:
    store = MemoryObjectStore()
    content = content_of(DATA)
    store.put("key", DATA, digest=content.digest)
    pace = RestorePace(clock, float(BLOCK_BYTES))
    waits = skipping(pace, clock)
    copy = pace.paced(RemoteShard(store, "key", content, Stored.raw(content)))
    assert b"".join(bytes(block) for each in copy.ranges() for _, block in copy.read(each)) == DATA
    list(copy.read(copy.blocks(0, 1)))
    assert waits == [2.0]
    assert pace.figures().from_remotes_bytes == len(DATA) + BLOCK_BYTES


def test_while_ranks_train_few_ranges_are_read_at_once(clock: FakeClock) -> None:
    trains, ends = threading.Event(), threading.Event()
    trains.set()
    pace = RestorePace(clock, is_training=trains.is_set)
    begun = threading.Semaphore(0)

    def read(_number: int) -> None:
        with pace.beside_training():
            begun.release()
            ends.wait()

    with ThreadPoolExecutor(BESIDE_TRAINING + 1) as threads:
        reads = [threads.submit(read, number) for number in range(BESIDE_TRAINING + 1)]
        for _ in range(BESIDE_TRAINING):
            begun.acquire()
        assert not begun.acquire(timeout=3 * module.LOOK_SECONDS)
        trains.clear()
        begun.acquire()
        ends.set()
        for each in reads:
            each.result()


def test_a_node_that_stops_lets_those_go_who_wait(clock: FakeClock) -> None:
    pace = RestorePace(clock, 1.0, is_training=lambda: True)
    pace.await_turn(1 << 20)
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pace.await_turn, 1)
        pace.close()
        assert isinstance(waits.exception(), StoppingError)


def test_it_is_known_what_is_to_come_and_when(clock: FakeClock) -> None:
    pace = RestorePace(clock)
    assert pace.figures() == RestoreFigures()
    with pace.wanting([shard(1, 600), shard(2, 400)]):
        assert pace.figures() == RestoreFigures(0, 0, 1000, 0, None)
        with pace.wanting([shard(1, 600)]):  # the same, of a reader
            clock.advance(5.0)
            pace.came(1, 250)
            assert pace.figures() == RestoreFigures(0, 0, 1000, 250, 15.0)
            pace.came(1, 999)
        assert pace.figures() == RestoreFigures(0, 0, 1000, 600, 400 * 5.0 / 600)
    assert pace.figures() == RestoreFigures()
    with pace.wanting([shard(3, 10)]):
        assert pace.figures().done_bytes == 0
