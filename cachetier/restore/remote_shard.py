"""Read a shard from a remote, range by range; every block is checked before it is given out.

A range is read into one buffer; of a compressed shard it is a run of frames, decoded one by one and
never to more than their blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Codec, Content, Stored
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.codec.frames import FrameDecoder
from cachetier.errors import IntegrityError, ObjectMissingError, RemoteDigestError
from cachetier.remote.base import ObjectStore

RANGE_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class Range:
    """Some blocks in a row: where they are stored, and the stored size of each."""

    first_block: int
    start: int
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """A shard at a remote: where it is, what it must be, and how it is stored there.

    ``key`` is that of the object that holds it: of a packed shard, its pack. ``remote`` names the
    remote.
    """

    objects: ObjectStore
    key: str
    content: Content
    stored: Stored
    remote: str = ""

    def ranges(self) -> Iterator[Range]:
        """Yield what to ``read``, range by range."""
        start, sizes = self._start_and_sizes()
        for first_block in range(0, len(sizes), RANGE_BLOCKS):
            of_range = sizes[first_block : first_block + RANGE_BLOCKS]
            yield Range(first_block, start, of_range)
            start += sum(of_range)

    def blocks(self, first_block: int, count: int) -> Range:
        """Return what to ``read`` for just ``count`` blocks from ``first_block`` on."""
        start, sizes = self._start_and_sizes()
        of_range = sizes[first_block : first_block + count]
        return Range(first_block, start + sum(sizes[:first_block]), of_range)

    def _start_and_sizes(self) -> tuple[int, tuple[int, ...]]:
        """Return where in the object the shard begins, and the stored size of each block."""
        start = self.stored.pack.start if self.stored.pack is not None else 0
        if self.stored.codec is Codec.RAW:
            return start, tuple(digests.block_lengths(self.content.size_bytes))
        return start, tuple(frame.size_bytes for frame in self.stored.frames)

    def read(self, wanted: Range) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Yield (offset, bytes) of each block of a range, in order; each lasts until the next.

        Raises:
            IntegrityError: The remote has other bytes, or none.
        """
        for number, block in enumerate(self._blocks(wanted), start=wanted.first_block):
            if digests.digest_of(block) != self.content.block_digests[number]:
                raise self._damaged(f"block {number} differs")
            yield number * BLOCK_BYTES, block

    def _blocks(self, wanted: Range) -> Iterator[bytes | bytearray | memoryview]:
        data = self._range(wanted.start, sum(wanted.sizes))
        if self.stored.codec is Codec.RAW:
            yield from _split(data, wanted.sizes)
            return
        decoder = FrameDecoder()
        left = self.content.size_bytes - wanted.first_block * BLOCK_BYTES
        for frame in _split(data, wanted.sizes):
            try:
                yield decoder.decode(frame, min(BLOCK_BYTES, left), self.stored.element_size)
            except IntegrityError as error:
                raise self._damaged(error.message) from None
            left -= BLOCK_BYTES

    def _range(self, start: int, length: int) -> memoryview:
        data = memoryview(bytearray(length))
        try:
            self.objects.read_into(self.key, start, data)
        except (ObjectMissingError, RemoteDigestError) as error:
            raise self._damaged(error.message) from error
        return data

    def _damaged(self, cause: str) -> IntegrityError:
        return IntegrityError(f"the remote copy {self.key} is damaged: {cause}")


def _split(data: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
