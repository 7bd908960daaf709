"""The threads that restores come over: many ranges at once, shared fairly.

What is wanted in memory at once (a block of a shard that stays remote, a window of a pack) comes
in pieces over as many connections as ranges of large shards do.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from itertools import cycle
from typing import TypeVar

from cachetier.remote.base import Into, ObjectStore
from cachetier.remote.fair_slots import AT_ONCE, FairSlots
from cachetier.remote.wrapped import WrappedObjectStore

PIECE_BYTES = 1 << 20  # less costs more requests than it saves time
AHEAD = 8  # of an object that is read in order
BLOCKS_AT_ONCE = 24  # of shards that stay remote, which lie in memory

Item = TypeVar("Item")
Result = TypeVar("Result")


class Link:
    """Reads ranges beside each other. Thread-safe.

    ``blocks`` bounds those that are read into memory.
    """

    def __init__(self) -> None:
        self.blocks = threading.Semaphore(BLOCKS_AT_ONCE)
        self._slots = FairSlots()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="restore")
        writers = max(1, len(os.sched_getaffinity(0)) // 2)  # the other half receives
        self._writing = cycle([threading.Lock() for _ in range(writers)])

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def each(
        self, work: Callable[[Item], None], items: Iterable[Item], slots: FairSlots | None = None
    ) -> None:
        """Do ``work`` with each item beside each other, in an equal share; see ``FairSlots.each``.

        ``slots`` are those of the remote, or all there are. It must not come back here: those who
        wait would have the threads of those they wait for.
        """
        (slots or self._slots).each(self._threads, work, items)

    def in_order(self, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield what ``work`` makes of each item, in order; some are ahead while memory allows.

        The next one is always begun; more of them only as ``blocks`` have room.
        """
        rest, running = iter(items), deque[tuple[Future[Result], bool]]()
        try:
            while True:
                while len(running) < AHEAD:
                    lent = bool(running) and self.blocks.acquire(blocking=False)
                    item = next(rest, None) if lent or not running else None
                    if item is None:
                        if lent:
                            self.blocks.release()
                        break
                    running.append((self._threads.submit(copy_context().run, work, item), lent))
                if not running:
                    return
                future, lent = running[0]
                result = future.result()
                running.popleft()
                if lent:
                    self.blocks.release()
                yield result
        finally:
            for future, lent in running:
                future.cancel()
                if lent:
                    self.blocks.release()

    def writing(self) -> threading.Lock:
        """Return what to hold while writing to one file.

        The kernel lets one thread write a file at a time, and those who wait there burn the
        processor; as many more as there are processors are in each other's way.
        """
        return next(self._writing)


class InPieces(WrappedObjectStore):
    """A store whose ranges come into memory in pieces, over several connections of ``link``.

    All at once that the pace allows; memory bounds them.
    """

    def __init__(self, store: ObjectStore, link: Link, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(store)
        self._link = link
        self._piece_bytes = piece_bytes

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        if not isinstance(into, memoryview):
            self._store.read_into(key, start, into, etag)
            return

        def read(at: int) -> None:
            self._store.read_into(key, start + at, into[at : at + self._piece_bytes], etag)

        self._link.each(read, range(0, len(into), self._piece_bytes))
