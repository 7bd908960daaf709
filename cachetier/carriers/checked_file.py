"""A data file that is read with its digests checked: no damaged block is ever sent whole.

The end of a block is held back until the block is known to be sound: if it is not, the request
breaks off before its end, and no store accepts it.

The file is read with O_DIRECT where the disk takes it, so that the page cache keeps training's
data; where it does not, what was read is dropped from the cache again.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

_UNREADABLE = (errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EUCLEAN)


class DamagedError(Exception):
    """The local bytes are not those that were committed; they must not be sent."""


class CheckedFile:
    """A data file by its descriptor, which it owns until ``close``. Threads may read at once.

    ``direct`` says whether the page cache is left alone.
    """

    def __init__(
        self, descriptor: int, block_digests: Sequence[int], *, first_block: int = 0
    ) -> None:
        """Take over ``descriptor``; the digests are those of the blocks from ``first_block`` on."""
        self.descriptor = descriptor
        self.block_digests = block_digests
        self._first_block = first_block
        self.direct = set_direct(descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def expected(self, part: UploadPartRange) -> Sequence[int]:
        """Return the digests of the blocks that ``part`` touches."""
        first = part.first_block - self._first_block
        return self.block_digests[first : first + part.blocks]

    def check(self, block: int, digest: int) -> None:
        """Raise DamagedError if ``digest`` is not that of ``block``."""
        if digest != self.block_digests[block - self._first_block]:
            raise DamagedError(f"block {block} fails its digest")

    def read_pieces(
        self,
        part: UploadPartRange,
        buffer: memoryview,
        reading: Callable[[], AbstractContextManager[None]],
    ) -> Iterator[memoryview]:
        """Yield the bytes of ``part``, whole blocks, in ``buffer``; it is filled in ``reading``.

        The end of each block comes only once the block is known to be sound.
        """
        digest, piece_bytes = 0, len(buffer)
        for start in range(part.start, part.end, piece_bytes):
            piece = replace(part, start=start, size_bytes=min(piece_bytes, part.end - start))
            with reading():
                self.fill(piece, buffer)
            view = buffer[: piece.size_bytes]
            digest = digest_of(view, digest)
            if piece.end % BLOCK_BYTES == 0 or piece.end == part.end:
                self.check(piece.first_block, digest)
                digest = 0
            yield view

    def fill(self, part: UploadPartRange, buffer: memoryview) -> None:
        """Read ``part`` into ``buffer``.

        Raises:
            DamagedError: The disk cannot read it, or the file ends before.
        """
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
                os.posix_fadvise(self.descriptor, part.start, part.size_bytes, advice)

    def _read_at(self, offset: int, buffer: memoryview) -> int:
        try:
            return os.preadv(self.descriptor, [buffer], offset)
        except OSError as error:
            if not self.direct or error.errno != errno.EINVAL:
                raise
        self.direct = set_direct(self.descriptor, wanted=False)  # it took the flag, and lied
        return os.preadv(self.descriptor, [buffer], offset)


@dataclass(frozen=True, slots=True)
class FileBody:
    """A request body: a part of a file, whole blocks, read again for each send.

    ``was_read`` hears for how long it was read, if another process does that.
    """

    file: CheckedFile
    part: UploadPartRange
    pieces: Callable[[UploadPartRange], Iterator[memoryview]]
    was_read: Callable[[float], object] = lambda _seconds: None

    @property
    def size_bytes(self) -> int:
        return self.part.size_bytes

    def __iter__(self) -> Iterator[memoryview]:
        return self.pieces(self.part)


def set_direct(descriptor: int, *, wanted: bool = True) -> bool:
    """Switch O_DIRECT on or off, and return whether it is on."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        new = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
        fcntl.fcntl(descriptor, fcntl.F_SETFL, new)
    except OSError:
        return False
    return wanted
