"""A staged file, written or read block by block, past the page cache while it lets us.

A block goes to the file from the caller's memory where its address allows, else through a
page-aligned block. It comes back the same way, or through a block in large pages where the disk
reads so much faster into them. The last block is padded and the file cut to size after. Where the
file refuses direct I/O, the same blocks go through the page cache, are synced, and are dropped from
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from typing import Protocol

from cachetier_client import forks
from cachetier_client.errors import BackpressureError, StagedIOError
from cachetier_client.io.aligned import (
    Block,
    BlockPool,
    DirectIO,
    address_of,
    switch_to_buffered,
    switch_to_direct,
)
from cachetier_client.io.buffers import Stretch


class BlockFiles(Protocol):
    """The system calls that move blocks; tests pass ones that fail."""

    def switch_to_direct(self, descriptor: int) -> DirectIO | None:
        """Have the descriptor bypass the page cache, if it can."""

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        """Write, perhaps less than asked."""

    def preadv(self, descriptor: int, into: memoryview, offset: int) -> int:
        """Read, perhaps less than asked."""

    def fdatasync(self, descriptor: int) -> None:
        """Make the written bytes safe."""


class SystemFiles:
    """The system's own calls."""

    switch_to_direct = staticmethod(switch_to_direct)

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, into: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [into], offset)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)


class BlockFile:
    """A file that blocks are written to or read from, directly while it lets us. Thread-safe.

    ``descriptor`` is its own: closed once, and closed in every child that inherits it.
    """

    def __init__(
        self, descriptor: int, pool: BlockPool, files: BlockFiles, *, buffered: bool = False
    ) -> None:
        """Take over ``descriptor``; ``buffered``: somebody writes it by way of the page cache."""
        self.descriptor = descriptor
        self._pool = pool
        self._files = files
        forks.own(self)
        try:
            self._direct = None if buffered else files.switch_to_direct(descriptor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it, if it is open."""
        forks.disown(self)
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def abandon(self) -> None:
        """Close the child's copy: it would count as a writer at the parent's commit."""
        with contextlib.suppress(OSError):
            self.close()

    def write(self, source: Stretch, offset: int) -> None:
        """Write one block from where its bytes are."""
        if len(source.pieces) == 1:
            direct, data = self._direct, source.pieces[0]
            if direct is None or direct.takes(address_of(data), len(data)):
                return self._write(data, len(data), offset, direct)
        block = self._pool.take()
        try:
            source.copy_to(block)
            return self.write_block(block, source.size_bytes, offset)
        finally:
            self._pool.give_back(block)

    def write_block(self, block: Block, size_bytes: int, offset: int) -> None:
        """Write the first ``size_bytes`` of an aligned block, which this may pad."""
        direct = self._direct
        padded = direct.padded(size_bytes) if direct else size_bytes
        if padded > size_bytes:
            block.zero(size_bytes, padded)
        self._write(block.view[:padded], size_bytes, offset, direct)

    def read(self, into: memoryview, offset: int) -> None:
        """Fill ``into`` from ``offset`` on.

        Raises:
            EOFError: The file is shorter.
        """
        direct, address = self._direct, address_of(into)
        if direct is None or direct.fills(address, len(into)):
            return self._read(into, len(into), offset, direct)
        block = self._pool.take()
        try:
            self._read(block.view[: direct.padded(len(into))], len(into), offset, direct)
            ctypes.memmove(address, block.address, len(into))
        finally:
            self._pool.give_back(block)
        return None

    def finish(self, size_bytes: int) -> None:
        """Cut the file to size; sync it, and drop its pages, if it went through the page cache."""
        if os.fstat(self.descriptor).st_size != size_bytes:
            os.ftruncate(self.descriptor, size_bytes)
        if self._direct is None:
            self._files.fdatasync(self.descriptor)
            self.forget()

    def forget(self) -> None:
        """Leave nothing in the page cache."""
        if self._direct is None:
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _write(
        self, padded: memoryview, size_bytes: int, offset: int, direct: DirectIO | None
    ) -> None:
        """Write all of ``padded``; its first ``size_bytes``, if direct I/O is refused."""
        left, at = padded, offset
        try:
            while left:
                written = self._files.pwrite(self.descriptor, left, at)
                left, at = left[written:], at + written
        except OSError as error:
            if error.errno != errno.EINVAL or direct is None:
                raise
            self._give_up_direct()
            self._write(padded[:size_bytes], size_bytes, offset, None)

    def _read(
        self, padded: memoryview, size_bytes: int, offset: int, direct: DirectIO | None
    ) -> None:
        """Read ``size_bytes`` at least into ``padded``; no more, if direct I/O is refused."""
        done = 0
        try:
            while done < size_bytes:
                count = self._files.preadv(self.descriptor, padded[done:], offset + done)
                if not count:
                    raise EOFError(f"the file ends at byte {offset + done}")
                done += count
        except OSError as error:
            if error.errno != errno.EINVAL or direct is None:
                raise
            self._give_up_direct()
            self._read(padded[:size_bytes], size_bytes, offset, None)

    def _give_up_direct(self) -> None:
        """Go on through the page cache; other threads' direct writes in flight end as they are."""
        switch_to_buffered(self.descriptor)
        self._direct = None  # only now: who reads None writes from unaligned memory


@contextlib.contextmanager
def io_errors(done: str) -> Iterator[None]:
    """Tell of a file that cannot be read or written in this library's words."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackpressureError(
                "the disk under the service's cache_dir is full, below its `capacity`",
                hint="Free space on the disk, or lower `capacity`.",
            ) from error
        raise StagedIOError(f"the staged file could not be {done}") from error
