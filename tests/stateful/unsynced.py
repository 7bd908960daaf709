"""Let nothing be really synced, where a test is not about the loss of power."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from cachetier import libc


@contextmanager
def unsynced() -> Iterator[str]:
    """Let syncs cost nothing in this process; yields the VFS to open databases with."""
    real = os.fsync, os.fdatasync, libc.syncfs
    vfs = _UnsyncedVFS()
    os.fsync = os.fdatasync = libc.syncfs = lambda _descriptor: None  # type: ignore[assignment]
    try:
        yield vfs.name
    finally:
        os.fsync, os.fdatasync, libc.syncfs = real
        vfs.unregister()


@contextmanager
def default_vfs(name: str) -> Iterator[None]:
    """Open databases with ``name`` where nobody says with which."""
    apsw.set_default_vfs(name)
    try:
        yield
    finally:
        apsw.set_default_vfs("unix")


class _UnsyncedVFS(apsw.VFS):
    name = "unsynced"

    def __init__(self) -> None:
        super().__init__(self.name, "unix")

    def xOpen(  # noqa: N802  # SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        return _UnsyncedFile("unix", name, flags)


class _UnsyncedFile(apsw.VFSFile):
    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
        pass
