"""The memory of one part of frames: filled, then sent, and given back as it goes out.

A part lies in pieces. While others wait for memory, what has been sent of a part is theirs; a part
of which something was given back cannot be sent again, and its frames are made again.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cachetier.drain.upload.buffers import PIECE_BYTES, Buffers


class GivenBackError(Exception):
    """Some of a part was given back after it was sent once: it has to be made again."""


class PartRoom:
    """Room for ``room_bytes``, and then a body of what was appended; see ``remote.base.Pieces``.

    One thread appends; then several may send.
    """

    def __init__(self, buffers: Buffers, room_bytes: int, *, lasting: bool = False) -> None:
        """Reserve memory, waiting for it; ``lasting`` keeps all of it until ``close``."""
        self.room_bytes = room_bytes
        self.size_bytes = 0
        self._buffers = buffers
        self._lasting = lasting
        self._lock = threading.Lock()
        self._senders = 0
        self._pieces: list[mmap.mmap] = []
        self._given_back = 0  # pieces, from the first on
        self._reserved_bytes = -(-room_bytes // PIECE_BYTES) * PIECE_BYTES
        buffers.reserve(self._reserved_bytes)

    def append(self, data: bytes | memoryview) -> None:
        """Copy ``data``, for which there is room, behind what is there."""
        rest = memoryview(data)
        while rest:
            start = self.size_bytes % PIECE_BYTES
            if not start:
                self._pieces.append(self._buffers.take(PIECE_BYTES))
            count = min(len(rest), PIECE_BYTES - start)
            self._pieces[-1][start : start + count] = rest[:count]
            self.size_bytes += count
            rest = rest[count:]

    def trim(self) -> None:
        """Give back the room that is left: nothing more is appended."""
        left_bytes = self._reserved_bytes - len(self._pieces) * PIECE_BYTES
        self._reserved_bytes -= left_bytes
        self._buffers.give_back(left_bytes, [])

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the pieces.

        Raises:
            GivenBackError: Some are not there any more; also later, from between them.
        """
        self._check()
        return self._sent()

    def close(self) -> None:
        """Give everything back; nobody sends any more."""
        with self._lock:
            self._give_back(len(self._pieces), self._reserved_bytes)

    def _sent(self) -> Iterator[memoryview]:
        with self._sending():
            for number, piece in enumerate(self._pieces):
                yield memoryview(piece)[: self.size_bytes - number * PIECE_BYTES]
                self._was_sent(number + 1)

    @contextmanager
    def _sending(self) -> Iterator[None]:
        with self._lock:
            self._check()
            self._senders += 1
        try:
            yield
        finally:
            with self._lock:
                self._senders -= 1

    def _check(self) -> None:
        if self._given_back:
            raise GivenBackError

    def _was_sent(self, count: int) -> None:
        """Give back the first ``count`` pieces if they are wanted, and nobody else sends them."""
        if self._lasting or not self._buffers.is_short:
            return
        with self._lock:
            if self._senders == 1:
                self._give_back(count, (count - self._given_back) * PIECE_BYTES)

    def _give_back(self, count: int, size_bytes: int) -> None:
        pieces = self._pieces[self._given_back : count]
        self._given_back, self._reserved_bytes = count, self._reserved_bytes - size_bytes
        self._buffers.give_back(size_bytes, pieces)
