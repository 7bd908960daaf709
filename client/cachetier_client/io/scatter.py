"""Scattered pieces of memory that are stored as one shard without being joined.

A shard is written block by block. A block inside one piece is its memory; one that spans several is
copied together by whoever writes it. Digests always come from the pieces themselves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from cachetier_client.io.aligned import Block
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

_SMALL_PIECE_BYTES = 4096


class Stretch:
    """Some bytes in a row, in one piece of memory or in several."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self, pieces: Sequence[memoryview], size_bytes: int) -> None:
        self.pieces = pieces
        self.size_bytes = size_bytes

    def digest(self) -> int:
        """Return the digest of the bytes."""
        digest = 0
        for piece in self.pieces:
            digest = digest_of(piece, digest)
        return digest

    def copy_to(self, block: Block) -> None:
        """Copy the bytes to the beginning of ``block``."""
        if self.size_bytes < len(self.pieces) * _SMALL_PIECE_BYTES:
            block.take(self.joined())  # a second copy costs less than a call for each piece
            return
        at = 0
        for piece in self.pieces:
            block.take(piece, at)
            at += len(piece)

    def joined(self) -> memoryview:
        """Return the bytes in a row: the memory itself if it is one piece, else a copy."""
        return self.pieces[0] if len(self.pieces) == 1 else memoryview(b"".join(self.pieces))


class Gathered:
    """The bytes of one shard, in pieces anywhere in memory; they must not change meanwhile.

    Args:
        pieces: Flat views on bytes, in order; empty ones do no harm.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = [piece for piece in pieces if len(piece)]
        self._starts = []
        end = 0
        for piece in self._pieces:
            self._starts.append(end)
            end += len(piece)
        self._size_bytes = end

    def __len__(self) -> int:
        return self._size_bytes

    @property
    def block_count(self) -> int:
        """How many blocks the shard has."""
        return -(-self._size_bytes // BLOCK_BYTES)

    def block(self, number: int) -> Stretch:
        """Return one block."""
        start = number * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, self._size_bytes)
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, end - 1) - 1
        pieces = self._pieces[first : last + 1]
        pieces[-1] = pieces[-1][: end - self._starts[last]]
        pieces[0] = pieces[0][start - self._starts[first] :]
        return Stretch(pieces, end - start)

    def blocks(self) -> Iterator[Stretch]:
        """Return all blocks, in order."""
        return map(self.block, range(self.block_count))

    def digest(self) -> int:
        """Return the digest of the whole shard."""
        return Stretch(self._pieces, self._size_bytes).digest()

    def joined(self) -> memoryview:
        """Return the shard in a row: a copy, unless it is one piece; for small ones."""
        return Stretch(self._pieces, self._size_bytes).joined()
