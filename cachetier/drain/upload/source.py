"""The local bytes of a shard, checked block by block.

A part that consists of blocks is read while it is sent, in pieces, by ``carriers.checked_file``.
Anything else is read and checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Protocol

from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of, joined

from cachetier.carriers.checked_file import CheckedFile, DamagedError, FileBody
from cachetier.drain.messages import LocalShard
from cachetier.drain.priority.gates import ComputeSlots, unlimited
from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.buffers import PIECE_BYTES
from cachetier.remote.base import Body

Lend = Callable[[int], AbstractContextManager[memoryview]]


class ShardSource(Protocol):
    """The bytes of one shard."""

    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        """Return the bytes of ``part``, in ``buffer`` or elsewhere, and their digest.

        ``buffer`` has room for the blocks that the part touches, in whole pages.

        Raises:
            DamagedError: They fail a digest, or the disk cannot read them.
        """

    def stream(self, part: UploadPartRange, lend: Lend) -> tuple[Body, int]:
        """Return the body of ``part``, which is whole blocks, and the digest that it should have.

        It is read while it is sent, into buffers that ``lend`` lends; what is damaged raises
        DamagedError then. Waits before the request, not within it, where the drain gives way.
        """


class InlineSource:
    """A small shard, in memory."""

    def __init__(self, body: bytes | bytearray | memoryview, digest: int) -> None:
        self._body = body
        self._digest = digest

    @stopwatch.phase(stopwatch.READ)
    def read(self, part: UploadPartRange, _buffer: memoryview) -> tuple[memoryview, int]:
        if part.size_bytes != len(self._body) or digest_of(self._body) != self._digest:
            raise DamagedError("the copy in the catalog fails its digest")
        return memoryview(self._body), self._digest

    def stream(self, part: UploadPartRange, _lend: Lend) -> tuple[Body, int]:
        return self.read(part, memoryview(b""))


class FileSource(CheckedFile):
    """A data file whose parts are read inside slots, and whose reads are timed."""

    def __init__(
        self, descriptor: int, block_digests: Sequence[int], reads: ComputeSlots | None = None
    ) -> None:
        """Take over ``descriptor``; each part is read inside a slot of ``reads``."""
        super().__init__(descriptor, block_digests)
        self._reads = reads or unlimited()

    @stopwatch.phase(stopwatch.READ)
    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        around = self._whole_blocks(part)
        with self._reads.slot():
            self.fill(around, buffer)
        view = buffer[: around.size_bytes]
        expected = self.expected(part)
        for number in range(part.blocks):
            block = view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            self.check(part.first_block + number, digest_of(block))
        if around == part:
            return view, combine(expected, part.size_bytes)
        return _cut(view, part.start - around.start, part.size_bytes, expected)

    def stream(self, part: UploadPartRange, lend: Lend) -> tuple[Body, int]:
        with self._reads.slot():
            pass
        was_read = partial(stopwatch.note, stopwatch.READ)
        body = FileBody(self, part, partial(self.pieces, lend), was_read)
        return body, combine(self.expected(part), part.size_bytes)

    def pieces(self, lend: Lend, part: UploadPartRange) -> Iterator[memoryview]:
        """Yield the bytes of ``part`` in a buffer that ``lend`` lends."""
        with lend(PIECE_BYTES) as buffer:
            yield from self.read_pieces(part, buffer, self._reading)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with stopwatch.phase(stopwatch.READ), self._reads.work():
            yield

    def _whole_blocks(self, part: UploadPartRange) -> UploadPartRange:
        """Return the blocks that ``part`` touches: only whole ones can be verified."""
        start = part.first_block * BLOCK_BYTES
        last = part.first_block + part.blocks - 1
        end = part.end if last + 1 >= len(self.block_digests) else (last + 1) * BLOCK_BYTES
        return UploadPartRange(part.number, start, end - start)


@contextmanager
def opened_source(
    opened: LocalShard, digest: int, reads: ComputeSlots | None = None
) -> Iterator[ShardSource]:
    """Yield the bytes that ``serve`` has opened, and close their file; for ``reads`` see above."""
    if opened.body is not None:
        yield InlineSource(opened.body, digest)
        return
    assert opened.descriptor is not None
    with closing(FileSource(opened.descriptor, opened.block_digests, reads)) as source:
        yield source


def _cut(
    view: memoryview, skip: int, size_bytes: int, blocks: Sequence[int]
) -> tuple[memoryview, int]:
    """Return ``size_bytes`` of verified ``blocks``, and their digest: only of edges it is taken."""
    pieces, at, end = [], skip, skip + size_bytes
    while at < end:
        block, within = divmod(at, BLOCK_BYTES)
        until = min(end, (block + 1) * BLOCK_BYTES)
        whole = within == 0 and until == min(len(view), (block + 1) * BLOCK_BYTES)
        pieces.append((blocks[block] if whole else digest_of(view[at:until]), until - at))
        at = until
    return view[skip:end], joined(pieces)
