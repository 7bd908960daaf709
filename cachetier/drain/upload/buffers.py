"""Page-aligned buffers under a byte budget, for O_DIRECT reads and for sending.

Whole parts that are made or checked before they are sent have one budget; pieces of parts that are
read while they are sent have another, or the two would wait for each other.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cachetier_client.bucket_format.uploads import PART_BYTES

BUDGET_BYTES = 96 << 20
PIECE_BYTES = 512 << 10  # with smaller ones calls cost more than what they move


class Buffers:
    """Lends buffers of up to ``budget_bytes`` in all; whoever finds no room waits. Thread-safe.

    Buffers of ``kept_bytes`` are kept and lent again, as fresh memory is slow to touch.
    A thread must not borrow a second buffer while it has one.
    """

    def __init__(self, budget_bytes: int = BUDGET_BYTES, kept_bytes: int = PART_BYTES) -> None:
        self._budget_bytes = budget_bytes
        self._kept_bytes = kept_bytes
        self._changed = threading.Condition()
        self._lent_bytes = 0
        self._lent = 0
        self._idle: list[mmap.mmap] = []

    @contextmanager
    def lend(self, size_bytes: int) -> Iterator[memoryview]:
        """Lend at least ``size_bytes``, in whole pages; alone, more than the budget too."""
        needed_bytes = max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        memory = self._take(needed_bytes)
        view = memoryview(memory)
        try:
            yield view
        finally:
            view.release()
            self._give_back(memory)

    def close(self) -> None:
        """Let the kept buffers go."""
        with self._changed:
            self._idle.clear()

    def _take(self, size_bytes: int) -> mmap.mmap:
        with self._changed:
            self._changed.wait_for(lambda: self._fits(size_bytes))
            self._lent += 1
            self._lent_bytes += size_bytes
            if size_bytes == self._kept_bytes and self._idle:
                return self._idle.pop()
            while self._idle and self._held_bytes() > self._budget_bytes:
                self._idle.pop()
        return mmap.mmap(-1, size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self._lent or self._lent_bytes + size_bytes <= self._budget_bytes

    def _held_bytes(self) -> int:
        return self._lent_bytes + len(self._idle) * self._kept_bytes

    def _give_back(self, memory: mmap.mmap) -> None:
        size_bytes = len(memory)
        with self._changed:
            self._lent -= 1
            self._lent_bytes -= size_bytes
            kept = size_bytes == self._kept_bytes
            if kept and self._held_bytes() + size_bytes <= self._budget_bytes:
                self._idle.append(memory)
            else:
                with suppress(BufferError):  # somebody still looks at it: it goes with that view
                    memory.close()
            self._changed.notify_all()
