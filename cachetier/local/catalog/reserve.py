"""Room on the disk that is the catalog's alone: to drain, to evict and to delete is to commit.

Blocks are allocated behind the ends of the log and its index, where SQLite finds them and nobody
else can take them. For the database to grow there is the file ``reserve``, since SQLite cuts off
what lies behind the database's end: it is given up by the piece when a commit finds the disk full,
and filled up again once there is room. It stays over a stop, so that the service also starts on a
disk without a free byte. Puts leave half of it alone.

Linux drops a process's locks on a file when any descriptor of it is closed, SQLite's too: so the
index stays open for as long as the catalog is.

Source: docs/design/0018-full-disk.md.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw

from cachetier import libc
from cachetier.local.files.data_files import bytes_on_disk
from cachetier.local.files.permissions import unfollowed

RESERVE_NAME = "reserve"
RESERVE_BYTES = 32 << 20
LEAST_BYTES = 1 << 20
OPENING_BYTES = 1 << 20  # to open a catalog, and to try what the disk can do
INDEX_BYTES = 256 << 10  # of the shared memory: 32 KiB for every 4096 pages of the log
PIECES = 8
FULL = (errno.ENOSPC, errno.EDQUOT)

_WRITES = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE)


class Reserve:
    """The room of an open catalog: a quarter for its log, the rest for the database to grow."""

    def __init__(self, catalog: Path, capacity_bytes: int) -> None:
        """Hold a sixteenth of ``capacity_bytes``, within bounds; as much of it as there is now."""
        size_bytes = max(LEAST_BYTES, min(RESERVE_BYTES, capacity_bytes // 16))
        self._size_bytes = size_bytes - size_bytes // 4
        self._parts = [
            (unfollowed(catalog.with_name(f"{catalog.name}-shm"), os.O_RDWR), INDEX_BYTES),
            (unfollowed(catalog.with_name(f"{catalog.name}-wal"), os.O_RDWR), size_bytes // 4),
            (unfollowed(catalog.with_name(RESERVE_NAME), os.O_RDWR | os.O_CREAT), self._size_bytes),
        ]
        self._kept = True  # by the filesystem: some allocate nothing ahead
        self.fill()

    @property
    def left_bytes(self) -> int:
        """How much of the file there is."""
        return bytes_on_disk(os.fstat(self._parts[-1][0]))

    @property
    def is_low(self) -> bool:
        """Return whether less is left than is kept from puts."""
        return self._kept and self.left_bytes < self._size_bytes // 2

    def fill(self) -> bool:
        """Allocate what is missing; return whether puts may use the catalog."""
        for descriptor, size_bytes in self._parts:
            if self._kept and bytes_on_disk(os.fstat(descriptor)) < size_bytes:
                self._allocate(descriptor, size_bytes)
        return not self.is_low

    def give(self) -> bool:
        """Give a piece up for the commit that needs it; return whether there was one."""
        descriptor, left_bytes = self._parts[-1][0], self.left_bytes
        os.ftruncate(descriptor, left_bytes)  # to cut the end off it must not lie behind the end
        os.ftruncate(descriptor, max(0, left_bytes - self._size_bytes // PIECES))
        return left_bytes > 0

    def close(self) -> None:
        """Close the descriptors, once SQLite has closed its own; nothing is filled up any more."""
        self._kept = False
        for descriptor, _size_bytes in self._parts:
            os.close(descriptor)

    def _allocate(self, descriptor: int, size_bytes: int) -> None:
        try:
            libc.allocate_behind_the_end(descriptor, size_bytes)
        except OSError as error:
            self._kept = error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS)


def lend(cache_dir: Path) -> None:
    """Give the reserve of a closed catalog back to a disk that has no room to open it in."""
    status, path = os.statvfs(cache_dir), cache_dir / RESERVE_NAME
    if status.f_bavail * status.f_frsize < OPENING_BYTES and path.exists():
        os.close(unfollowed(path, os.O_WRONLY | os.O_TRUNC))


def is_full(connection: apsw.Connection, error: apsw.Error) -> bool:
    """Return whether the disk had no room; SQLite calls only some of these cases ``full``.

    A sync that failed for want of room is none of them: what it did not write is lost.
    """
    refused = getattr(error, "extendedresult", apsw.SQLITE_OK) in _WRITES
    return isinstance(error, apsw.FullError) or (refused and connection.system_errno in FULL)
