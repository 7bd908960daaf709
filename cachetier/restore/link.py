"""The link that restores come over: as many ranges at once as bring more, shared fairly."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

from cachetier_client.clock import Clock

from cachetier.model.concurrency import Search
from cachetier.remote.turns import Turns

RANGES_AT_ONCE = 128
FIRST_RANGES = 8  # stores take reads more easily than writes, and somebody waits for these
LOOK_SECONDS = 1.0


class Link:
    """Finds how many ranges to read at once. Thread-safe.

    ``turns`` are those of the shards.
    """

    def __init__(self, clock: Clock) -> None:
        self.turns = Turns(RANGES_AT_ONCE)
        writers = max(1, len(os.sched_getaffinity(0)) // 2)  # the other half receives
        self._writing = cycle([threading.Lock() for _ in range(writers)])
        self._clock = clock
        self._changed = threading.Condition()
        self._search = Search(RANGES_AT_ONCE, FIRST_RANGES)
        self._under_way = 0
        self._moved_bytes = 0

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
