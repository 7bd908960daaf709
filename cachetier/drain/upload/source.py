"""The local bytes of a shard, checked block by block: no damaged block is ever sent whole.

A part that consists of blocks is read while it is sent, in pieces, and what is left of a block is
held back until the block is known to be sound: if it is not, the request breaks off before its end,
and no store accepts it. Anything else is read and checked first.

A data file is read with O_DIRECT where the disk takes it, so that the drain does not push training
data out of the page cache; where it does not, what was read is dropped from the cache again.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of, joined

from cachetier.drain.messages import LocalShard
from cachetier.drain.priority.gates import ComputeSlots, unlimited
from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.buffers import PIECE_BYTES
from cachetier.remote.base import Body

Lend = Callable[[int], AbstractContextManager[memoryview]]

_UNREADABLE = (errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EUCLEAN)


class DamagedError(Exception):
    """The local bytes are not those that were committed; they must not be sent."""


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


class FileSource:
    """A data file, by its descriptor, which it owns until ``close``. Threads may read at once.

    ``direct`` says whether the page cache is left alone.
    """

    def __init__(
        self, descriptor: int, block_digests: Sequence[int], reads: ComputeSlots | None = None
    ) -> None:
        """Take over ``descriptor``; each part is read inside a slot of ``reads``."""
        self._descriptor = descriptor
        self._block_digests = block_digests
        self._reads = reads or unlimited()
        self.direct = _set_direct(descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    @stopwatch.phase(stopwatch.READ)
    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        around = self._whole_blocks(part)
        with self._reads.slot():
            self._fill(around, buffer)
        view = buffer[: around.size_bytes]
        expected = self._expected(part)
        for number in range(part.blocks):
            block = view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
            self._check(part.first_block + number, digest_of(block))
        if around == part:
            return view, combine(expected, part.size_bytes)
        return _cut(view, part.start - around.start, part.size_bytes, expected)

    def stream(self, part: UploadPartRange, lend: Lend) -> tuple[Body, int]:
        with self._reads.slot():
            pass
        return _FileBody(self, part, lend), combine(self._expected(part), part.size_bytes)

    def pieces(self, part: UploadPartRange, lend: Lend) -> Iterator[memoryview]:
        """Yield the bytes of ``part``; the end of each block only once it is known to be sound."""
        digest = 0
        with lend(PIECE_BYTES) as buffer:
            for start in range(part.start, part.end, PIECE_BYTES):
                piece = replace(part, start=start, size_bytes=min(PIECE_BYTES, part.end - start))
                with stopwatch.phase(stopwatch.READ), self._reads.work():
                    self._fill(piece, buffer)
                view = buffer[: piece.size_bytes]
                digest = digest_of(view, digest)
                if piece.end % BLOCK_BYTES == 0 or piece.end == part.end:
                    self._check(piece.first_block, digest)
                    digest = 0
                yield view

    def _expected(self, part: UploadPartRange) -> Sequence[int]:
        return self._block_digests[part.first_block : part.first_block + part.blocks]

    def _check(self, block: int, digest: int) -> None:
        if digest != self._block_digests[block]:
            raise DamagedError(f"block {block} fails its digest")

    def _whole_blocks(self, part: UploadPartRange) -> UploadPartRange:
        """Return the blocks that ``part`` touches: only whole ones can be verified."""
        start = part.first_block * BLOCK_BYTES
        last = part.first_block + part.blocks - 1
        end = part.end if last + 1 >= len(self._block_digests) else (last + 1) * BLOCK_BYTES
        return UploadPartRange(part.number, start, end - start)

    def _fill(self, part: UploadPartRange, buffer: memoryview) -> None:
        try:
            self._fill_up(part, buffer)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            raise DamagedError(f"the disk cannot read it: {error.strerror}") from error

    def _fill_up(self, part: UploadPartRange, buffer: memoryview) -> None:
        filled = 0
        while filled < part.size_bytes:
            count = self._read_at(part.start + filled, buffer[filled:])
            reached = filled + count
            if self.direct and reached < part.size_bytes:
                reached -= reached % mmap.PAGESIZE  # a read may begin only at a page
            if reached <= filled:
                raise DamagedError(f"the file ends at byte {part.start + filled + count}")
            filled = reached
        if not self.direct:
            with suppress(OSError):
                advice = os.POSIX_FADV_DONTNEED
                os.posix_fadvise(self._descriptor, part.start, part.size_bytes, advice)

    def _read_at(self, offset: int, buffer: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [buffer], offset)
        except OSError as error:
            if not self.direct or error.errno != errno.EINVAL:
                raise
        self.direct = _set_direct(self._descriptor, wanted=False)  # it took the flag, and lied
        return os.preadv(self._descriptor, [buffer], offset)


@dataclass(frozen=True, slots=True)
class _FileBody:
    """A part of a file, read anew for each send."""

    source: FileSource
    part: UploadPartRange
    lend: Lend

    @property
    def size_bytes(self) -> int:
        return self.part.size_bytes

    def __iter__(self) -> Iterator[memoryview]:
        return self.source.pieces(self.part, self.lend)


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


def _set_direct(descriptor: int, *, wanted: bool = True) -> bool:
    """Switch O_DIRECT on or off, and return whether it is on."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        new = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
        fcntl.fcntl(descriptor, fcntl.F_SETFL, new)
    except OSError:
        return False
    return wanted
