"""Gates that bound how many threads of the drain compute or read at once.

One gate stands before what costs CPU (each frame to compress), one before reads of the disk.
``pressure`` decides how wide they are; at least one thread always gets through.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class ComputeSlots:
    """Lets up to ``limit`` threads through at once, fewer after ``allow``. Thread-safe.

    A thread must not ask for a second slot while it has one, and should ask for each piece of work
    again (a frame, a part): what is allowed changes in between.
    """

    def __init__(self, limit: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        if limit < 1:
            raise ValueError(f"limit={limit} lets nobody work")
        self.limit = limit
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._allowed = limit
        self._pause_seconds = 0.0
        self._used = 0
        self._working = 0
        self._working_since = 0.0
        self._worked_seconds = 0.0
        self._slowed_seconds = 0.0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Work inside; waits until there is room, and for as long as ``allow`` said."""
        with self._changed:
            while self._used >= self._allowed:
                self._wait(None, slowed=self._allowed < self.limit)
            self._used += 1
            began_at = self._monotonic()
            while (left := began_at + self._pause_seconds - self._monotonic()) > 0:
                self._wait(left, slowed=True)
        try:
            with self.work():
                yield
        finally:
            with self._changed:
                self._used -= 1
                self._changed.notify_all()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Count as work what is done inside, by somebody who has waited for a slot before."""
        with self._changed:
            if not self._working:
                self._working_since = self._monotonic()
            self._working += 1
        try:
            yield
        finally:
            with self._changed:
                self._working -= 1
                if not self._working:
                    self._worked_seconds += self._monotonic() - self._working_since

    def allow(self, count: int, pause_seconds: float = 0.0) -> None:
        """Let ``count`` threads through, between one and the limit; it counts at once.

        Args:
            count: Those who work already go on, and their next slot waits.
            pause_seconds: How long each waits, in its slot, before it works.
        """
        with self._changed:
            self._allowed = min(max(1, count), self.limit)
            self._pause_seconds = max(0.0, pause_seconds)
            self._changed.notify_all()

    @property
    def allowed(self) -> int:
        """How many may work now."""
        return self._allowed

    def allowance(self) -> tuple[int, float]:
        """Return how many may work now, and for how many seconds each waits in its slot."""
        with self._changed:
            return self._allowed, self._pause_seconds

    def worked_seconds(self) -> float:
        """Return for how long, in all, at least one thread worked in a slot."""
        with self._changed:
            running = self._monotonic() - self._working_since if self._working else 0.0
            return self._worked_seconds + running

    def slowed_seconds(self) -> float:
        """Return for how long, over all threads, somebody waited because of ``allow``."""
        with self._changed:
            return self._slowed_seconds

    def _wait(self, timeout_seconds: float | None, *, slowed: bool) -> None:
        began_at = self._monotonic()
        self._changed.wait(timeout_seconds)
        if slowed:
            self._slowed_seconds += self._monotonic() - began_at


def unlimited() -> ComputeSlots:
    """Return a gate at which nobody waits."""
    return ComputeSlots(sys.maxsize)


@dataclass(frozen=True, slots=True)
class Gates:
    """Where the drain can be slowed: before it compresses a frame, and before it reads a part."""

    compute: ComputeSlots
    reads: ComputeSlots

    def open_wide(self) -> None:
        """Let everybody through."""
        self.compute.allow(self.compute.limit)
        self.reads.allow(self.reads.limit)

    def slowed_seconds(self) -> float:
        """Return for how long, over all threads, somebody waited at either."""
        return self.compute.slowed_seconds() + self.reads.slowed_seconds()
