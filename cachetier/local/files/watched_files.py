"""A wrapper of ``Files`` that reports failures, so that a failing disk shows before it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cachetier.errors import FencedError
from cachetier.local.files.data_files import Files

OnDiskError = Callable[[str], None]


class WatchedFiles(Files):
    """``Files`` that tells ``on_error`` which operation failed: a ``write`` or a ``sync``."""

    def __init__(self, files: Files, on_error: OnDiskError) -> None:
        self._files = files
        self._on_error = on_error

    def create(self, size_bytes: int) -> tuple[str, int]:
        with self._reporting():
            return self._files.create(size_bytes)

    def open(self, file_id: str) -> int:
        return self._files.open(file_id)

    def preallocate(self, file_id: str, size_bytes: int) -> None:
        with self._reporting():
            self._files.preallocate(file_id, size_bytes)

    def seal(self, descriptor: int, identity: bytes) -> None:
        with self._reporting():
            self._files.seal(descriptor, identity)

    def sync_name(self, file_id: str) -> None:
        with self._reporting():
            self._files.sync_name(file_id)

    def unread(self, file_id: str) -> bool:
        return self._files.unread(file_id)

    def remove(self, file_id: str) -> None:
        self._files.remove(file_id)

    def set_aside(self, file_id: str) -> None:
        self._files.set_aside(file_id)

    def identity(self, file_id: str) -> bytes | None:
        return self._files.identity(file_id)

    def all(self) -> Iterator[tuple[str, int]]:
        return self._files.all()

    def free_bytes(self) -> int:
        return self._files.free_bytes()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except FencedError:
            self._on_error("sync")
            raise
        except OSError:
            self._on_error("write")
            raise
