"""The link that restores come over: as many ranges at once as bring more, shared fairly.

What is wanted in memory at once (a block of a shard that stays remote, a window of a pack) comes
in pieces over as many connections as ranges of large shards do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from typing import TypeVar

from cachetier_client.clock import Clock

from cachetier.model.concurrency import Search
from cachetier.remote.base import Into, ObjectStore
from cachetier.remote.turns import Turns
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

RANGES_AT_ONCE = 128
PIECE_BYTES = 1 << 20  # less costs more requests than it saves time
BLOCKS_AT_ONCE = 24  # of shards that stay remote, which lie in memory
FIRST_RANGES = 8  # stores take reads more easily than writes, and somebody waits for these
LOOK_SECONDS = 1.0

Item = TypeVar("Item")


class Link:
    """Finds how many ranges to read at once. Thread-safe.

    ``blocks`` bounds those that are read into memory.
    """

    def __init__(self, clock: Clock) -> None:
        self.blocks = threading.Semaphore(BLOCKS_AT_ONCE)
        self._turns = Turns(RANGES_AT_ONCE)
        self._threads = ThreadPoolExecutor(RANGES_AT_ONCE, thread_name_prefix="restore")
        writers = max(1, len(os.sched_getaffinity(0)) // 2)  # the other half receives
        self._writing = cycle([threading.Lock() for _ in range(writers)])
        self._clock = clock
        self._changed = threading.Condition()
        self._search = Search(RANGES_AT_ONCE, FIRST_RANGES)
        self._under_way = 0
        self._moved_bytes = 0

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def each(self, work: Callable[[Item], None], items: Iterable[Item]) -> None:
        """Do ``work`` with each item beside each other, in an equal share; see ``Turns.each``.

        It must not come back here: those who wait would have the threads of those they wait for.
        """
        self._turns.each(self._threads, work, items)

    def writing(self) -> threading.Lock:
        """Return what to hold while writing to one file.

        The kernel lets one thread write a file at a time, and those who wait there burn the
        processor; as many more as there are processors are in each other's way.
        """
        return next(self._writing)

    @contextmanager
    def range(self) -> Iterator[None]:
        """Read a range inside; waits until there is room for one more."""
        with self._changed:
            while self._under_way >= self._search.size:
                again = self._search.look(self._clock.monotonic(), self._moved_bytes)
                if self._under_way >= self._search.size:
                    self._changed.wait(min(again, LOOK_SECONDS))
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify()

    def moved(self, size_bytes: int) -> None:
        """Count bytes that came."""
        with self._changed:
            self._moved_bytes += size_bytes


class InPieces(WrappedObjectStore):
    """A store whose ranges come into memory in pieces, over several connections of ``link``.

    All at once, as they are over before it is found how many bring more; memory bounds them.
    """

    def __init__(self, store: ObjectStore, link: Link) -> None:
        super().__init__(store)
        self._link = link

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer], /
    ) -> Answer:
        return call()

    def read_into(self, key: str, start: int, into: Into) -> None:
        if not isinstance(into, memoryview):
            self._store.read_into(key, start, into)
            return

        def read(at: int) -> None:
            self._store.read_into(key, start + at, into[at : at + PIECE_BYTES])

        self._link.each(read, range(0, len(into), PIECE_BYTES))
