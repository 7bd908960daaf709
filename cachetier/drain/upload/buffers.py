"""Page-aligned buffers under a byte budget, for O_DIRECT reads and for sending.

Whole parts that are made or checked before they are sent have one budget; pieces of parts that are
read while they are sent have another, or the two would wait for each other.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

BUDGET_BYTES = 96 << 20
PIECE_BYTES = 512 << 10  # with smaller ones calls cost more than what they move


class Buffers:
    """Lends buffers of up to ``budget_bytes`` in all; a caller that finds no room waits.

    Thread-safe.

    Within the budget buffers are kept and lent again, as fresh memory is slow to touch.
    A thread must not borrow a second buffer while it has one.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._changed = threading.Condition()
        self._waiting = 0
        self._lent_bytes = 0
        self._held_bytes = 0  # what there is of it, and what is idle
        self._idle: list[mmap.mmap] = []

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[memoryview]:
        """Lend at least ``size_bytes``, in whole pages; alone, more than the budget too."""
        needed_bytes = max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        self.reserve(needed_bytes)
        memory = self.take(needed_bytes)
        view = memoryview(memory)
        try:
            yield view
        finally:
            view.release()
            self.give_back(needed_bytes, [memory])

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for room."""
        return self._waiting > 0

    def reserve(self, size_bytes: int) -> None:
        """Wait until there is room for so much, and count it as lent."""
        with self._changed:
            while self._lent_bytes and self._lent_bytes + size_bytes > self._budget_bytes:
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1
            self._lent_bytes += size_bytes

    def take(self, size_bytes: int) -> mmap.mmap:
        """Return memory of a size that was reserved, with anything in it."""
        with self._changed:
            for number, memory in enumerate(self._idle):
                if len(memory) == size_bytes:
                    return self._idle.pop(number)
            while self._idle and self._held_bytes + size_bytes > self._budget_bytes:
                self._drop(self._idle.pop(0))
            self._held_bytes += size_bytes
        return mmap.mmap(-1, size_bytes)

    def give_back(self, size_bytes: int, memory: Sequence[mmap.mmap]) -> None:
        """Give back so much of what was reserved, and what was taken of it."""
        with self._changed:
            self._lent_bytes -= size_bytes
            for each in memory:
                if self._held_bytes <= self._budget_bytes:
                    self._idle.append(each)
                else:
                    self._drop(each)
            self._changed.notify_all()

    def close(self) -> None:
        """Let the kept buffers go."""
        with self._changed:
            while self._idle:
                self._drop(self._idle.pop())

    def _drop(self, memory: mmap.mmap) -> None:
        self._held_bytes -= len(memory)
        with suppress(BufferError):  # somebody still looks at it: it goes with that view
            memory.close()
