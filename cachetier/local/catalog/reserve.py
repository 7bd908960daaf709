"""Room on the disk that is the catalog's alone: to drain, to evict and to delete is to commit.

Blocks are allocated behind the ends of the log and its index, where SQLite finds them and nobody
else can take them. For the database to grow there is the file ``reserve``, since SQLite cuts off
what lies behind the database's end: it is given up by the piece when a commit finds the disk full,
and filled up again once there is room. It stays over a stop, so that the service also starts on a
disk without a free byte. Puts leave half of it alone. The empty files in ``spare`` keep inodes for
a start, whose log, index, mark and socket are files.

Linux drops a process's locks on a file when any descriptor of it is closed, SQLite's too: so the
index stays open for as long as the catalog is.

Source: docs/design/0018-full-disk.md.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import apsw

from cachetier import libc
from cachetier.local.files.data_files import FULL, bytes_on_disk, inodes_of
from cachetier.local.files.permissions import unfollowed

RESERVE_NAME = "reserve"
RESERVE_BYTES = 32 << 20
LEAST_BYTES = 1 << 20
OPENING_BYTES = 1 << 20  # to open a catalog, and to try what the disk can do
INDEX_BYTES = 256 << 10  # of the shared memory: 32 KiB for every 4096 pages of the log
PIECES = 8
SPARE_NAME, SPARE_FILES = "spare", 8

__all__ = ["FULL", "Reserve", "is_full", "lend"]
_WRITES = (apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN)


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
        self._directory, self._spare = catalog.parent, _spare_files(catalog.parent)
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
        inodes = inodes_of(self._directory)
        if inodes is None or inodes[0] > 2 * SPARE_FILES:  # else they are for what just starts
            self._keep_spare_files()
        self._fill(self._parts)
        return not self.is_low

    def _keep_spare_files(self) -> None:
        while self._spare and _made(self._spare[-1]):
            self._spare.pop()

    def _fill(self, parts: Sequence[tuple[int, int]]) -> None:
        for descriptor, size_bytes in parts:
            if self._kept and bytes_on_disk(os.fstat(descriptor)) < size_bytes:
                self._allocate(descriptor, size_bytes)

    def give(self) -> bool:
        """Give a piece up for the commit that needs it; return whether there was one."""
        descriptor, left_bytes = self._parts[-1][0], self.left_bytes
        os.ftruncate(descriptor, left_bytes)  # to cut the end off it must not lie behind the end
        os.ftruncate(descriptor, max(0, left_bytes - self._size_bytes // PIECES))
        return left_bytes > 0

    def close(self) -> None:
        """Keep for the next start what SQLite's own files gave back, once they are closed."""
        *logs, file = self._parts
        for descriptor, _size_bytes in logs:  # by which removed files take their room still
            os.close(descriptor)
        self._keep_spare_files()
        self._fill([file])
        self._kept = False
        os.close(file[0])

    def _allocate(self, descriptor: int, size_bytes: int) -> None:
        """Allocate so many bytes, or as many pieces of them as the disk has room for."""
        for pieces in range(PIECES, 0, -1):
            try:
                libc.allocate_behind_the_end(descriptor, size_bytes * pieces // PIECES)
                return
            except OSError as error:
                self._kept = error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS)
                if error.errno not in FULL:
                    return


def lend(cache_dir: Path) -> None:
    """Give the reserve of a closed catalog back to a disk that has no room to open it in."""
    if (inodes := inodes_of(cache_dir)) is not None and inodes[0] < SPARE_FILES:
        for spare in _spare_files(cache_dir):
            spare.unlink(missing_ok=True)
    status, path = os.statvfs(cache_dir), cache_dir / RESERVE_NAME
    if status.f_bavail * status.f_frsize < OPENING_BYTES and path.exists():
        os.close(unfollowed(path, os.O_WRONLY | os.O_TRUNC))


def _spare_files(cache_dir: Path) -> list[Path]:
    return [cache_dir / SPARE_NAME / str(number) for number in range(SPARE_FILES)]


def _made(spare: Path) -> bool:
    try:
        spare.parent.mkdir(mode=0o700, exist_ok=True)
        os.close(unfollowed(spare, os.O_WRONLY | os.O_CREAT))
    except OSError:
        return False
    return True


def is_full(connection: apsw.Connection, error: apsw.Error) -> bool:
    """Return whether the disk had no room; SQLite calls only some of these cases ``full``.

    A sync that failed for want of room is none of them: what it did not write is lost.
    """
    if isinstance(error, apsw.CantOpenError):  # what the system said of it is forgotten by then
        inodes = inodes_of(Path(connection.filename).parent)
        return inodes is not None and not inodes[0]
    refused = getattr(error, "extendedresult", apsw.SQLITE_OK) in _WRITES
    return isinstance(error, apsw.FullError) or (refused and connection.system_errno in FULL)
