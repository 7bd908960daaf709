"""A trainer's files as they are on the disk, and how one is copied only while nobody writes it.

A file may be copied when the kernel grants a read lease on it: then no descriptor and no mapping
can write to it. It was copied whole if size, times and inode are the same afterwards. The first
look at it is older than a tick of the kernel's clock by then, so a later write has another ctime.

Blocks are read past the page cache, into the memory that they are written from.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from cachetier_client.clock import Clock
from cachetier_client.errors import InvalidRequestError, OpenForWritingError
from cachetier_client.identity.names import checked_name
from cachetier_client.io.aligned import BlockPool
from cachetier_client.io.block_file import BlockFile, SystemFiles
from cachetier_client.io.digests import BLOCK_BYTES, digest_of
from cachetier_client.streams.writer import ShardWriter

TICK_SECONDS = 0.02  # two of the slowest kernel clock's: what is written later has another ctime
COPIES = 3
NOT_YET = "Adopt it again once its writer has closed it."


class Stat(NamedTuple):
    """The stat fields that show that a file was replaced or written to."""

    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int

    @property
    def written(self) -> tuple[int, int, int]:
        """The part of a stat that a new link, or one link less, does not change."""
        return self[:3]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a step: its name as a shard, where it is, and how it was found."""

    name: str
    path: str
    found: Stat


def files_of(path: str) -> tuple[SourceFile, ...]:
    """Return the files of a step's folder, or the one file, by name.

    Raises:
        InvalidRequestError: It holds nothing, or something that is no file and no folder.
        InvalidNameError: A file's name cannot be a shard's.
        OSError: It cannot be read, or is gone.
    """
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return (_source_file(os.path.basename(path), path),)
    files = []
    for folder, inner, names in os.walk(path, onerror=_raise):
        links = [each for each in inner if os.path.islink(os.path.join(folder, each))]
        for name in (*names, *links):
            full = os.path.join(folder, name)
            files.append(_source_file(os.path.relpath(full, path), full))
    if not files:
        raise InvalidRequestError(f"{path} is empty", hint="Name a folder that holds a step.")
    return tuple(sorted(files, key=lambda file: file.name))


def is_being_written(path: str) -> bool:
    """Return whether somebody has the file open, or mapped, for writing.

    Raises:
        InvalidRequestError: The system does not tell.
    """
    descriptor = _open(path)
    try:
        _refuse_writer(descriptor, path)
    except OpenForWritingError:
        return True
    finally:
        os.close(descriptor)
    return False


def digest_of_file(file: SourceFile, pool: BlockPool) -> str:
    """Return the digest of a file's bytes as they are now, read past the page cache."""
    digest = 0
    with _opened(file, pool) as source, pool.borrowed() as block:
        for at in range(0, file.found.size_bytes, BLOCK_BYTES):
            view = block.view[: min(BLOCK_BYTES, file.found.size_bytes - at)]
            source.read(view, at)
            digest = digest_of(view, digest)
    return f"{digest:016x}"


def copy_file(
    file: SourceFile, open_shard: Callable[..., ShardWriter], pool: BlockPool, clock: Clock
) -> None:
    """Put a file as a shard, whole and as it was found.

    ``open_shard`` is ``Checkpoint.open``. The shard's digest is taken of the memory that is written
    to it, block by block, never of the source. A name that the file gets or loses meanwhile changes
    its ctime too: then it is copied again.

    Raises:
        OpenForWritingError: Somebody writes it, or has written to it; nothing was kept.
    """
    with _opened(file, pool) as source:
        before = file.found
        for _ in range(COPIES):
            before = _settled(source.descriptor, file, before, clock)
            with _discarded(open_shard(file.name, size_bytes=file.found.size_bytes)) as writer:
                _copy_blocks(source, writer, file)
                if _now(source.descriptor) == before:
                    writer.close()
                    return
        raise OpenForWritingError(f"{file.path} changed while it was copied", hint=NOT_YET)


def save_id_of(origin: str, files: Sequence[SourceFile]) -> str:
    """Return the name of the save that files of a step are: the same for the same files.

    The part before the last ``-`` is the origin's, equal for all saves of that folder.
    """
    described = [(file.name, file.found.size_bytes, file.found.mtime_ns) for file in files]
    return f"w-{_hashed(origin)}-{_hashed(repr(described))}"


def _copy_blocks(source: BlockFile, writer: ShardWriter, file: SourceFile) -> None:
    size_bytes = file.found.size_bytes
    for start in range(0, size_bytes, BLOCK_BYTES):  # each a call with a deadline of its own

        def copy(into: memoryview, at: int, start: int = start) -> None:
            try:
                source.read(into, start + at)
            except EOFError as error:
                message = f"{file.path} was cut while it was copied"
                raise OpenForWritingError(message, hint=NOT_YET) from error

        writer.write_later(min(BLOCK_BYTES, size_bytes - start), copy)


@contextmanager
def _discarded(writer: ShardWriter) -> Iterator[ShardWriter]:
    """Write a shard inside, which is thrown away unless it is closed there."""
    try:
        yield writer
    finally:
        writer.abort()


def _settled(descriptor: int, file: SourceFile, before: Stat, clock: Clock) -> Stat:
    """Return how the file is now, once that is older than a tick of the clock."""
    _refuse_writer(descriptor, file.path)
    now = _now(descriptor)
    if now != before:
        clock.sleep(TICK_SECONDS)
        _refuse_writer(descriptor, file.path)
        before, now = now, _now(descriptor)
    if now != before or now.written != file.found.written:
        raise OpenForWritingError(f"{file.path} was written to since it was found", hint=NOT_YET)
    return now


def _now(descriptor: int) -> Stat:
    return _stat_of(os.fstat(descriptor))


def _stat_of(found: os.stat_result) -> Stat:
    return Stat(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@contextmanager
def _opened(file: SourceFile, pool: BlockPool) -> Iterator[BlockFile]:
    source = BlockFile(_open(file.path), pool, SystemFiles())
    try:
        yield source
    finally:
        source.forget()
        source.close()


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _source_file(name: str, path: str) -> SourceFile:
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a file"
        raise InvalidRequestError(
            f"{path} is {what}", hint="Put the file itself there, or put the step's files by hand."
        )
    return SourceFile(checked_name(name), path, _stat_of(found))


def _refuse_writer(descriptor: int, path: str) -> None:
    """Take a read lease, which the kernel grants only if nobody can write, and drop it.

    Whoever opens the file that instant waits for microseconds. The kernel would tell us by SIGIO,
    which ends a process that does not expect it; SIGURG does not.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise OpenForWritingError(f"{path} is open for writing", hint=NOT_YET) from None
        raise InvalidRequestError(
            f"the system does not tell whether {path} is being written: {error.strerror}",
            hint="Adopt as the files' owner, and from a local disk (ext4, XFS).",
        ) from error


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _raise(error: OSError) -> None:
    raise error
