"""A bounded pool of zstd encoders: at most one for each level and thread.

Contexts of high levels are large: 64 MiB at zstd:15. So one that nobody uses goes when another
needs its memory, and who finds none left waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cachetier.codec.frames import FrameEncoder, encoder_bytes


class Encoders:
    """Lends encoders whose contexts take up to ``limit_bytes`` together. Thread-safe.

    A single one is lent whatever it takes. A thread must not borrow a second.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._idle: list[tuple[int, FrameEncoder]] = []
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What all contexts take, lent or not."""
        return self._kept_bytes

    @contextmanager
    def lend(self, level: int) -> Iterator[FrameEncoder]:
        """Lend one of ``level``; waits until there is memory for it."""
        encoder = self._take(level)
        try:
            yield encoder
        finally:
            with self._changed:
                self._idle.append((level, encoder))
                self._changed.notify_all()

    def _take(self, level: int) -> FrameEncoder:
        needed = encoder_bytes(level)
        with self._changed:
            while True:
                for number, (known, encoder) in enumerate(self._idle):
                    if known == level:
                        del self._idle[number]
                        return encoder
                self._make_room(needed)
                if not self._kept_bytes or self._kept_bytes + needed <= self._limit_bytes:
                    self._kept_bytes += needed
                    return FrameEncoder(level)
                self._changed.wait()

    def _make_room(self, needed: int) -> None:
        while self._idle and self._kept_bytes + needed > self._limit_bytes:
            level, _ = self._idle.pop(0)
            self._kept_bytes -= encoder_bytes(level)
