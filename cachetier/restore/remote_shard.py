"""Read a shard from a remote, range by range; every block is checked before it is given out.

Raw bytes go where they belong as they come. Of a compressed shard a range is a run of frames in one
buffer, decoded one by one and never to more than their blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cachetier_client.bucket_format.stored import Codec, Content, Stored
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.carriers.stored_blocks import BlockSink, StoredBlocks, Write
from cachetier.errors import (
    IntegrityError,
    ObjectMissingError,
    RemoteDigestError,
    SourceChangedError,
)
from cachetier.remote.base import Into, ObjectStore
from cachetier.remote.fair_slots import FairSlots

RANGE_BLOCKS = 2
LARGE_RANGE_BLOCKS = 4  # half the requests, where a shard has enough of them for many connections
LARGE_FROM_BLOCKS = 32
TURN_RANGES = 16
_DAMAGE = IntegrityError, ObjectMissingError, RemoteDigestError, SourceChangedError


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
    remote, ``slots`` say how many ranges go at once there. A piece of an object ``begin``s so many
    bytes from the object's begin, and is read while that has its ``etag``.
    """

    objects: ObjectStore
    key: str
    content: Content
    stored: Stored
    remote: str = ""
    slots: FairSlots = field(default_factory=FairSlots)
    begin: int = 0
    etag: str | None = None

    def ranges(self, turn: int = 0, range_blocks: int = RANGE_BLOCKS) -> Iterator[Range]:
        """Yield what to ``read``, range by range.

        Of ``TURN_RANGES`` in a row each ``turn`` has another one first: nodes that restore a shard
        at once do not all ask for the same bytes, and a stream waits for no more than those.
        """
        in_order = self._in_order(range_blocks)
        while some := list(islice(in_order, TURN_RANGES)):
            first = turn % len(some)
            yield from some[first:] + some[:first]

    def _in_order(self, range_blocks: int) -> Iterator[Range]:
        start, sizes = self._start_and_sizes()
        for first_block in range(0, len(sizes), range_blocks):
            of_range = sizes[first_block : first_block + range_blocks]
            yield Range(first_block, start, of_range)
            start += sum(of_range)

    def blocks(self, first_block: int, count: int) -> Range:
        """Return what to ``read`` for just ``count`` blocks from ``first_block`` on."""
        start, sizes = self._start_and_sizes()
        of_range = sizes[first_block : first_block + count]
        return Range(first_block, start + sum(sizes[:first_block]), of_range)

    def _start_and_sizes(self) -> tuple[int, tuple[int, ...]]:
        """Return where in the object the shard begins, and the stored size of each block."""
        start = self.stored.pack.start if self.stored.pack is not None else self.begin
        if self.stored.codec is Codec.RAW:
            return start, tuple(digests.block_lengths(self.content.size_bytes))
        return start, tuple(frame.size_bytes for frame in self.stored.frames)

    def bring(
        self,
        wanted: Range,
        write: Write,
        came: Callable[[int], object],
        descriptor: int | None = None,
    ) -> None:
        """Have the bytes of a range written as they come; ``came`` gets each block that is sound.

        What is written may be wrong, and come again, until ``came`` is called. Where ``write``
        writes into a file, its ``descriptor`` lets another process do that.

        Raises:
            IntegrityError: The remote has other bytes, or none.
        """
        blocks = self._stored_blocks(wanted)
        self._read_into(wanted.start, BlockSink(blocks, write, came, descriptor))

    def read(self, wanted: Range) -> Iterator[tuple[int, bytes | bytearray | memoryview]]:
        """Yield (offset, bytes) of each block of a range, in order; each lasts until the next.

        Raises:
            IntegrityError: The remote has other bytes, or none.
        """
        blocks = self._stored_blocks(wanted)
        data = memoryview(bytearray(sum(wanted.sizes)))
        self._read_into(wanted.start, data)
        decode = blocks.decoder()
        for index, stored in enumerate(_split(data, blocks.sizes)):
            try:
                block = blocks.sound(index, stored, decode)
            except IntegrityError as error:
                raise self._damaged(error.message) from None
            yield (blocks.first_block + index) * BLOCK_BYTES, block

    def _stored_blocks(self, wanted: Range) -> StoredBlocks:
        first, content, stored = wanted.first_block, self.content, self.stored
        digests_of_range = content.block_digests[first : first + len(wanted.sizes)]
        how = stored.codec, stored.element_size
        return StoredBlocks(first, wanted.sizes, digests_of_range, content.size_bytes, *how)

    def _read_into(self, start: int, into: Into) -> None:
        try:
            self.objects.read_into(self.key, start, into, self.etag)
        except _DAMAGE as error:
            raise self._damaged(error.message) from error

    def _damaged(self, cause: str) -> IntegrityError:
        return IntegrityError(f"the remote copy {self.key} is damaged: {cause}")


def _split(data: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
