"""A block that a stream fills, and what its bytes come from."""

from __future__ import annotations

from collections.abc import Callable

from cachetier_client.io import digests
from cachetier_client.io.aligned import Block
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

Wait = Callable[[], None]
Copy = Callable[[memoryview, int], Wait | None]


class BlockBuffer:
    """A block on its way from the caller to the file.

    Bytes that were there when they were taken have their digest from the caller's memory, and those
    that were copied at once from the block. For those that come later it is taken from the block,
    by whoever writes it, once they are there.
    """

    __slots__ = ("_digests", "_waits", "block", "size_bytes")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.size_bytes = 0
        self._digests: list[tuple[int | None, int]] = []  # of stretches in order; with their length
        self._waits: list[Wait] = []

    @property
    def room_bytes(self) -> int:
        """How much more it takes."""
        return BLOCK_BYTES - self.size_bytes

    @property
    def data(self) -> memoryview:
        """The bytes so far."""
        return self.block.view[: self.size_bytes]

    def take(self, source: memoryview) -> None:
        """Add bytes."""
        self._note(source)  # before anything else touches them
        self.block.take(source, self.size_bytes - len(source))

    def take_later(self, size_bytes: int, copy: Copy, at: int) -> None:
        """Have ``copy`` add bytes, now or by the time its answer has been waited for."""
        into = self.block.view[self.size_bytes : self.size_bytes + size_bytes]
        wait = copy(into, at)
        if wait is None:
            self._note(into)  # now, while they are in the processor's cache
            return
        self._waits.append(wait)
        _, length = self._digests.pop() if self._ends_with(known=False) else (None, 0)
        self._digests.append((None, length + size_bytes))
        self.size_bytes += size_bytes

    def settle(self) -> None:
        """Wait until all bytes are there, and nobody copies into the block any more."""
        while self._waits:
            self._waits[-1]()
            self._waits.pop()  # not one that failed: it fails again

    def digest(self) -> int:
        """Return the digest of the bytes, once they are there."""
        taken, at = [], 0
        for digest, length in self._digests:
            known = digest_of(self.block.view[at : at + length]) if digest is None else digest
            taken.append((known, length))
            at += length
        return taken[0][0] if len(taken) == 1 else digests.joined(taken)

    def _note(self, data: memoryview) -> None:
        """Count bytes that are known, and take their digest."""
        digest, length = self._digests.pop() if self._ends_with(known=True) else (0, 0)
        self._digests.append((digest_of(data, digest or 0), length + len(data)))
        self.size_bytes += len(data)

    def _ends_with(self, *, known: bool) -> bool:
        return bool(self._digests) and (self._digests[-1][0] is not None) == known
