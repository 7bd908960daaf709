"""Files as the file system lends them: some become shards, some are held, some are read.

A written file becomes a shard when it is closed, and leaves nothing when it is left by an
exception, even where only ``close`` is called while the exception passes, as fsspec's own
``OpenFile`` does. One that nobody closes is closed when it is collected, or when the program ends,
as local files are.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import tempfile
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Self

from cachetier_client.errors import CachetierClientError, SealedError
from cachetier_client.io.buffers import bytes_of
from cachetier_client.io.workers import Workers
from cachetier_client.results import Receipt
from cachetier_client.streams.reader import ShardReader
from cachetier_client.streams.writer import ShardWriter

READ_AHEAD_BYTES = 1 << 18
_COPIED_AT_ONCE = 4 << 20

log = logging.getLogger(__name__)


class WrittenFile(io.BufferedIOBase):
    """A file being written, in order: ``tell`` works, ``seek`` does not.

    ``fileno`` is real, so that what frameworks do with it to be safe (``os.fsync``) costs nothing
    and no other file of the machine is synced. It is read-only: writing through it fails.

    Attributes:
        path: As the file system names it.
    """

    mode = "wb"

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self._ended = False
        self._descriptor: int | None = None
        self._opened_during = sys.exception()
        self._process = os.getpid()
        _open_files.add(self)

    @abstractmethod
    def tell(self) -> int: ...

    @abstractmethod
    def write(self, data: Any, /) -> int: ...

    @abstractmethod
    def _keep(self) -> None:
        """Make the bytes what the file is for."""

    @abstractmethod
    def _drop(self) -> None:
        """Leave nothing behind; does not raise."""

    @property
    def closed(self) -> bool:
        return self._ended

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        if self._ended:
            raise ValueError("the file is closed")
        if self._descriptor is None:
            writable = os.memfd_create(self.path[-64:], os.MFD_CLOEXEC)
            try:
                flags = os.O_RDONLY | os.O_CLOEXEC
                self._descriptor = os.open(f"/proc/self/fd/{writable}", flags)
            finally:
                os.close(writable)
        return self._descriptor

    def flush(self) -> None:
        """Do nothing: the bytes are safe when the file is closed, not before."""

    def close(self) -> None:
        """Make the bytes safe, and return once they are; while an exception passes, drop them."""
        if self._ended:
            return
        passing = sys.exception()
        if passing is not None and passing is not self._opened_during:
            log.warning("%s was left by %r: nothing of it is kept", self.path, passing)
            self.abort()
            return
        self._end()
        self._keep()

    def abort(self) -> None:
        """Leave nothing behind; does nothing once closed."""
        if not self._ended:
            self._end()
            self._drop()

    discard = abort  # what fsspec calls it

    def commit(self) -> None:
        """Do nothing: a transaction commits all its files at once."""

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __enter__(self) -> Self:
        return self

    def __del__(self) -> None:
        if getattr(self, "_ended", True):
            return
        if Workers.is_at_work():  # collected on a thread that the end may wait for
            threading.Thread(target=self.let_go, name="cachetier-close").start()
        else:
            self.let_go()

    def let_go(self) -> None:
        """Close a file that nobody closed, and say so; does not raise.

        A forked child has no part in its parent's.
        """
        if self._ended or self._process != os.getpid():
            self.abort()
            return
        log.warning("%s was never closed: open it by `with`, or close it", self.path)
        try:
            self.close()
        except Exception as error:
            lost = f"{self.path} was never closed, and is not kept: {error}"
            log.error("%s", lost)
            _lost_files.append(lost)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(f"{self.path} is being written: it cannot be pickled")

    def _end(self) -> None:
        self._ended = True
        _open_files.discard(self)
        self._opened_during = None  # with its frames, and all they refer to
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_open_files: weakref.WeakSet[WrittenFile] = weakref.WeakSet()
_lost_files: list[str] = []


def close_left_files() -> None:
    """Close the files that nobody closed until the program's end, and tell of those that are lost.

    The log may be closed by then, and a program that believes that all is saved may have ended
    well: standard error has the last word.
    """
    for file in list(_open_files):
        file.let_go()
    for lost in _lost_files:
        with suppress(Exception):
            sys.stderr.write(f"cachetier: {lost}\n")
    _lost_files.clear()


atexit.register(close_left_files)


class StoredFile(WrittenFile):
    """A file that becomes a shard.

    Attributes:
        receipt: The promise, once it is closed.
    """

    def __init__(self, path: str, writer: ShardWriter, on_end: Callable[[bool], None]) -> None:
        """A file that calls ``on_end`` with whether there is a shard now."""
        super().__init__(path)
        writer.has_owner = True
        self._writer = writer
        self._on_end = on_end

    @property
    def receipt(self) -> Receipt | None:
        return self._writer.receipt

    def tell(self) -> int:
        return self._writer.tell()

    def write(self, data: Any, /) -> int:
        return self._writer.write(data)

    def _keep(self) -> None:
        try:
            self._writer.close()
        except BaseException as error:
            if isinstance(error, SealedError):
                error.hint = f"{error.hint} {_SEALED_MEANWHILE}"
            self._left()
            raise
        self._on_end(True)

    def _drop(self) -> None:
        self._writer.abort()
        self._left()

    def _left(self) -> None:
        with suppress(CachetierClientError):  # what made us drop the file is what is raised
            self._on_end(False)


class Spool:
    """Bytes of a file that has no name yet: on this machine's disk, gone with this process."""

    def __init__(self) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(prefix="cachetier-")  # noqa: SIM115

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return os.fstat(self._file.fileno()).st_size

    def write(self, view: memoryview) -> None:
        """Add bytes."""
        self._file.write(view)

    def flush(self) -> None:
        """Let readers see what was written."""
        self._file.flush()

    def reader(self) -> io.BufferedReader:
        """Return a stream of its own over the bytes."""
        descriptor = os.open(f"/proc/self/fd/{self._file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)
        return io.BufferedReader(io.FileIO(descriptor, "rb"))

    def copy_to(self, target: WrittenFile) -> None:
        """Write all of it to another file."""
        with self.reader() as reader:
            while piece := reader.read(_COPIED_AT_ONCE):
                target.write(piece)

    def close(self) -> None:
        """Let the bytes go."""
        self._file.close()


class HeldFile(WrittenFile):
    """A file called ``*.tmp``, which this process holds until it is renamed."""

    def __init__(self, path: str, on_close: Callable[[Spool], None]) -> None:
        super().__init__(path)
        self._spool = Spool()
        self._size = 0
        self._on_close = on_close

    def tell(self) -> int:
        return self._size

    def write(self, data: Any, /) -> int:
        view = bytes_of(data)
        self._spool.write(view)
        self._size += len(view)
        return len(view)

    def _keep(self) -> None:
        self._spool.flush()
        self._on_close(self._spool)

    def _drop(self) -> None:
        self._spool.close()


class ReadFile(io.BufferedReader):
    """A shard being read: the block last read is kept, so small reads and seeks cost little.

    Attributes:
        path: As the file system names it.
        size: Its size in bytes.
    """

    def __init__(self, path: str, raw: ShardReader) -> None:
        super().__init__(raw, READ_AHEAD_BYTES)
        self.path = path
        self.size = raw.size_bytes


_SEALED_MEANWHILE = (
    "If rank 0 wrote the commit file before this one: set CACHETIER_COMMIT_ON to the file that is "
    "written last."
)
