"""Blocks of a shard on their way from a remote into a file: decoded, checked and written.

Raw bytes are written as they come, and their block counts once its digest is right. A compressed
block is decoded when its frame is whole, never to more than the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.codec.codecs import CODECS, Decode
from cachetier.errors import IntegrityError

# Gets bytes, and where in the shard they belong; a memoryview lasts until the next call.
Write = Callable[[bytes | bytearray | memoryview, int], None]


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Blocks of a shard in a row: how they are stored, and what they must be.

    ``sizes`` are stored sizes; the last block of all may be shorter than the others, as the shard
    has ``shard_bytes``.
    """

    first_block: int
    sizes: tuple[int, ...]
    digests: tuple[int, ...]
    shard_bytes: int
    codec: Codec = Codec.RAW
    element_size: int = 0

    @property
    def size_bytes(self) -> int:
        """The stored size of all of them."""
        return sum(self.sizes)

    def after(self, count: int) -> StoredBlocks:
        """Return these blocks without the first ``count``."""
        first = self.first_block + count
        return replace(
            self, first_block=first, sizes=self.sizes[count:], digests=self.digests[count:]
        )

    def decoder(self) -> Decode | None:
        """Return a decoder for ``sound``; None for raw blocks."""
        return None if self.codec is Codec.RAW else CODECS[self.codec].decoder()

    def sound(
        self, index: int, stored: memoryview, decode: Decode | None
    ) -> bytearray | memoryview:
        """Return a block, decoded and checked; it lasts until the next is decoded.

        Raises:
            IntegrityError: It is not what it must be.
        """
        block: bytearray | memoryview = stored
        if decode is not None:
            left_bytes = self.shard_bytes - (self.first_block + index) * BLOCK_BYTES
            block = decode(stored, min(BLOCK_BYTES, left_bytes), self.element_size)
        self.check(index, digest_of(block))
        return block

    def check(self, index: int, digest: int) -> None:
        """Raise IntegrityError unless ``digest`` is that of the block."""
        if digest != self.digests[index]:
            raise IntegrityError(f"block {self.first_block + index} differs")


class BlockSink:
    """Takes the stored bytes of ``blocks`` as they come, and has each block written.

    What is written may be wrong, and come again, until ``came`` gets the number of its block. With
    a ``descriptor`` another process may do all of that: it writes into that file, and
    ``written_elsewhere`` says here which block has come.
    """

    def __init__(
        self,
        blocks: StoredBlocks,
        write: Write,
        came: Callable[[int], object],
        descriptor: int | None = None,
    ) -> None:
        self.blocks = blocks
        self.descriptor = descriptor
        self.came_blocks = 0  # in a row: the first ones
        self._write = write
        self._came = came
        self._decode = blocks.decoder()
        self.restart()

    @property
    def size_bytes(self) -> int:
        return self.blocks.size_bytes

    def restart(self) -> None:
        self._index, self._at, self._digest = 0, 0, 0
        self._frame = bytearray()

    def left(self) -> StoredBlocks:
        """Return the blocks that no other process has written yet."""
        return self.blocks.after(self.came_blocks)

    def written_elsewhere(self, block: int) -> None:
        """Another process has written ``block``; it tells of them in order."""
        self.came_blocks += 1
        self._came(block)

    def take(self, piece: bytes | memoryview) -> None:
        rest, blocks = memoryview(piece), self.blocks
        while rest:
            part = rest[: blocks.sizes[self._index] - self._at]
            if self._decode is None:
                self._take_raw(part)
            else:
                self._frame += part
            self._at += len(part)
            if self._at == blocks.sizes[self._index]:
                self._end_block()
            rest = rest[len(part) :]

    def _take_raw(self, part: memoryview) -> None:
        block = self.blocks.first_block + self._index
        self._write(part, block * BLOCK_BYTES + self._at)
        self._digest = digest_of(part, self._digest)

    def _end_block(self) -> None:
        blocks, index = self.blocks, self._index
        number = blocks.first_block + index
        if self._decode is None:
            blocks.check(index, self._digest)
        else:
            frame, self._frame = self._frame, bytearray()
            block = blocks.sound(index, memoryview(frame), self._decode)
            self._write(block, number * BLOCK_BYTES)
        self._came(number)
        self._index, self._at, self._digest = index + 1, 0, 0
