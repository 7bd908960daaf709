"""The files of SQLite under a recorder: its writes are steps, its syncs are the recorder's.

The default VFS of SQLite does the work, but for the syncs. As that VFS does, the first sync of a
log or journal also syncs the folder that names it.
"""

from __future__ import annotations

import os
from typing import Protocol

import apsw

_SYNCS_ITS_NAME = (
    apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
)


class Recorder(Protocol):
    """What wants to know of every change; see ``StrictDisk``."""

    def step(self, operation: str, path: str) -> None: ...

    def sync(self, operation: str, path: str, number: int) -> None: ...

    def sync_folder_of(self, path: str) -> None: ...

    def number_at(self, path: str) -> int | None: ...

    def changed_bytes(self, path: str, start: int = 0, size_bytes: int = 0) -> None: ...

    def changed_names(self, path: str) -> None: ...

    def forget(self, path: str) -> None: ...


class RecordedVFS(apsw.VFS):
    """Hands the files of SQLite to the default VFS, and their steps to the disk."""

    def __init__(self, name: str, disk: Recorder) -> None:
        self._disk = disk
        super().__init__(name, "unix")

    def xOpen(  # noqa: N802  # SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None:
            return apsw.VFSFile("unix", None, flags)
        if not os.path.lexists(path):
            try:
                self._disk.step("create", path)
            except OSError as error:
                raise apsw.CantOpenError(str(error)) from error
        syncs_its_name = bool(flags[0] & _SYNCS_ITS_NAME and flags[0] & apsw.SQLITE_OPEN_CREATE)
        file = _RecordedFile(self._disk, path, flags, syncs_its_name=syncs_its_name)
        self._disk.changed_names(path)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  # SQLite's name
        self._disk.step("unlink", filename)
        self._disk.forget(filename)
        super().xDelete(filename, False)
        self._disk.changed_names(filename)
        if syncdir:
            self._disk.sync_folder_of(filename)


class _RecordedFile(apsw.VFSFile):
    """One file of SQLite: its writes are steps, its syncs are the disk's."""

    def __init__(
        self, disk: Recorder, path: str, flags: list[int], *, syncs_its_name: bool
    ) -> None:
        self._disk = disk
        self._path = path
        self._syncs_its_name = syncs_its_name
        super().__init__("unix", path, flags)

    def excepthook(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: object
    ) -> bool:
        """Say nothing of errors that SQLite asks nobody about: whoever planned them knows."""
        return True

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        try:
            self._disk.step("write", self._path)
        except OSError as error:
            raise apsw.FullError(str(error)) from error
        super().xWrite(data, offset)
        self._disk.changed_bytes(self._path, offset, len(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's name
        self._disk.step("truncate", self._path)
        super().xTruncate(newsize)
        self._disk.changed_bytes(self._path)

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
        number = self._disk.number_at(self._path)
        if number is None:  # unlinked: a sync of it saves nothing
            return
        try:
            self._disk.sync("sync", self._path, number)
            if self._syncs_its_name:
                self._syncs_its_name = False
                self._disk.sync_folder_of(self._path)
        except OSError as error:
            raise apsw.IOError(str(error)) from error
