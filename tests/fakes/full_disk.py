"""A disk that is full when a test says so, to who stages files there and to SQLite alike.

Nothing of the real disk is taken. What the catalog's reserve gives up, and what data files that go
leave, is room again; so is the log up to where it was allocated. A file is dated by the clock of
its node, so that a life that is repeated dates it the same.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from itertools import count
from pathlib import Path

import apsw
from cachetier_client.clock import Clock

from cachetier.local.catalog.connection import Reserve
from cachetier.local.files.data_files import DiskFiles

_serial = count(1)


class FullDisk(DiskFiles):
    """The data files of a node, and the room that its catalog has."""

    def __init__(self, cache_dir: Path, clock: Clock) -> None:
        super().__init__(cache_dir)
        self.cache_dir = cache_dir
        self.refused: Counter[str] = Counter()
        self._clock = clock
        self._full = False
        self._room_bytes = 0
        self._log_bytes = 0

    def fill(self, log_bytes: int) -> None:
        """Let others take all room but ``log_bytes`` behind the end of the catalog's log."""
        log = self.cache_dir / "catalog.db-wal"
        self._full, self._room_bytes = True, 0
        self._log_bytes = log.stat().st_size + log_bytes

    def free(self) -> None:
        """Let others give back what they took."""
        self._full = False

    def keep(self, reserve: Reserve) -> None:
        """Let ``reserve`` find no room while the disk is full, and give up what it has."""
        allocate, give = reserve._allocate, reserve.give

        def allocates(descriptor: int, size_bytes: int) -> None:
            if not self._full:
                allocate(descriptor, size_bytes)

        def gives() -> bool:
            before = reserve.left_bytes
            given = give()
            self._room_bytes += before - reserve.left_bytes
            return given

        reserve._allocate, reserve.give = allocates, gives  # type: ignore[method-assign]

    # --- data files ------------------------------------------------------------------------------

    def create(self, size_bytes: int, *, memory: bool = False) -> tuple[str, int]:
        self.take("a data file", size_bytes)
        return super().create(size_bytes, memory=memory)

    def preallocate(self, file_id: str, size_bytes: int) -> None:
        self.take("a data file", size_bytes)
        super().preallocate(file_id, size_bytes)

    def seal(self, descriptor: int, identity: bytes) -> None:
        super().seal(descriptor, identity)
        os.utime(descriptor, (self._clock.now(), self._clock.now()))

    def remove(self, file_id: str) -> None:
        path = self._path(file_id)
        self._room_bytes += path.stat().st_size if path.exists() else 0
        super().remove(file_id)

    def free_bytes(self) -> int:
        return self._room_bytes if self._full else super().free_bytes()

    # --- the catalog -----------------------------------------------------------------------------

    def write(self, path: str, end: int, size_bytes: int) -> None:
        """Let SQLite write up to ``end`` of a file that has ``size_bytes``.

        Raises:
            apsw.FullError: There is no room.
        """
        is_log = path.endswith("-wal")
        grows = end - max(size_bytes, self._log_bytes if is_log else 0)
        try:
            self.take("the catalog's log" if is_log else "the catalog", grows)
        except OSError as error:
            raise apsw.FullError(str(error)) from error

    def take(self, what: str, size_bytes: int) -> None:
        """Take room for ``what``.

        Raises:
            OSError: There is none.
        """
        if not self._full or size_bytes <= 0:
            return
        if size_bytes > self._room_bytes:
            self.refused[what] += 1
            raise OSError(errno.ENOSPC, "planned: the disk is full")
        self._room_bytes -= size_bytes


class FullVFS(apsw.VFS):
    """The files of SQLite on some ``FullDisk``; those of other folders are as ``base`` has them."""

    def __init__(self, base: str) -> None:
        self.name = f"full-{next(_serial)}"
        self.disks: dict[str, FullDisk] = {}
        self._base = base
        super().__init__(self.name, base)

    def xOpen(  # noqa: N802  # SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        disk = self.disks.get(os.path.dirname(path)) if path is not None else None
        if path is None or disk is None:
            return apsw.VFSFile(self._base, name, flags)
        return _FileOfFullDisk(self._base, path, flags, disk)


class _FileOfFullDisk(apsw.VFSFile):
    def __init__(self, base: str, path: str, flags: list[int], disk: FullDisk) -> None:
        self._path = path
        self._disk = disk
        super().__init__(base, path, flags)

    def excepthook(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: object
    ) -> bool:
        """Say nothing of errors that SQLite asks nobody about: whoever planned them knows."""
        return True

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        self._disk.write(self._path, offset + len(data), self.xFileSize())
        super().xWrite(data, offset)
