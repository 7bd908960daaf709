"""Data files on the node's disk: created here, written by ranks through descriptors, synced here.

A file's name is random and says nothing of the shard, so no request can name a path. What a file
holds is written in an extended attribute at commit, so that an orphan can be told from rubbish and
a lost catalog rebuilt.

Source: docs/architecture.md, "State on the node".
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cachetier import libc
from cachetier.errors import ConfigError, FencedError, OpenForWritingError
from cachetier.local.files.permissions import unfollowed
from cachetier.model.shard import MEMORY, in_memory

FILE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
IDENTITY_ATTRIBUTE = "user.cachetier.shard"
ALIGNMENT_BYTES = 4096
_BLOCKS_UNIT_BYTES = 512  # of `st_blocks`, on any filesystem
FULL = (errno.ENOSPC, errno.EDQUOT)
MARKS_BYTES = 64 << 10  # left free by every file, as its identity takes a block at commit
WRITER_PATIENCE_TRIES = 10
WRITER_PATIENCE_SECONDS = 0.005
MEMORY_NAME = "memory"  # of the file in `cache_dir` that names the folder in memory
_DISK = "0"  # New files go to 16 folders: to make and to sync hundreds took most of a first start.
_FOLDER = re.compile(r"[0-9a-f]{2}", re.ASCII)


class Files(Protocol):
    """The disk operations that the store needs.

    ``testing`` has one that fails and one that forgets.
    """

    def create(self, size_bytes: int, *, memory: bool = False) -> tuple[str, int]:
        """Create a preallocated data file, on the disk or in memory.

        Returns:
            Its id, and a descriptor open for writing.

        Raises:
            OSError: ENOSPC or EDQUOT when there is no room; nothing is left behind.
        """

    def open(self, file_id: str) -> int:
        """Open a data file for reading."""

    def preallocate(self, file_id: str, size_bytes: int) -> None:
        """Make room for ``size_bytes`` in all, so that writing cannot run out of space."""

    def seal(self, descriptor: int, identity: bytes) -> None:
        """Refuse if anybody can still write to the file, mark it with ``identity``, and sync it.

        Raises:
            OpenForWritingError: A descriptor or mapping can still write to it.
            OSError: The disk has no room for the mark, or takes no writes any more.
            FencedError: The sync failed; the file must be abandoned and no write taken any more.
        """

    def sync_name(self, file_id: str) -> None:
        """Sync the directory that names the file.

        Raises:
            FencedError: The sync failed.
            OSError: It was not tried, as the directory could not be opened.
        """

    def unread(self, file_id: str) -> bool:
        """Return whether nobody has the file open."""

    def unshared(self, descriptor: int) -> bool:
        """Return whether nobody has the file open but by ``descriptor``, which only reads."""

    def cut(self, descriptor: int) -> None:
        """Free the blocks of an unlinked file, even if a process has it open."""

    def remove(self, file_id: str) -> None:
        """Remove the file; a missing one is no error."""

    def set_aside(self, file_id: str) -> None:
        """Move a file that no row names to ``lost+found`` for a person to look at."""

    def identity(self, file_id: str) -> bytes | None:
        """Return the identity the file was marked with, or None."""

    def all(self) -> Iterator[tuple[str, int]]:
        """Yield (file_id, size_bytes) of every data file."""

    def free_bytes(self) -> int:
        """Return how much the disk could still take of bytes: they leave some for their marks."""


def bytes_on_disk(found: os.stat_result) -> int:
    """Return what a file takes of the disk."""
    return found.st_blocks * _BLOCKS_UNIT_BYTES


class DiskFiles:
    """``Files`` under ``<cache_dir>/data``, and in the folder in memory that belongs to it."""

    def __init__(self, cache_dir: Path) -> None:
        self._data = cache_dir / "data"
        self._memory = memory_folder(cache_dir)
        self._lost = cache_dir / "lost+found"
        self._probing = threading.Lock()

    def prepare(self) -> None:
        """Create the directories and sync their names."""
        self._lost.mkdir(mode=0o700, exist_ok=True)
        self._data.mkdir(mode=0o700, exist_ok=True)
        for root, digit in self._roots():
            folders = {f"{digit}{number:x}" for number in range(16)}
            for name in sorted(folders.difference(os.listdir(root))):
                (root / name).mkdir(mode=0o700)
        sync_directory(self._data)
        sync_directory(self._data.parent)

    def create(self, size_bytes: int, *, memory: bool = False) -> tuple[str, int]:
        file_id = (MEMORY if memory else _DISK) + secrets.token_hex(16)[1:]  # for one of 16 folders
        path = self._path(file_id)
        descriptor = unfollowed(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            _allocate(descriptor, size_bytes)
            if _free_bytes(path.parent) == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except BaseException:
            os.close(descriptor)
            self.remove(file_id)
            raise
        return file_id, descriptor

    def open(self, file_id: str) -> int:
        path = self._path(file_id)
        try:
            return unfollowed(path, os.O_RDONLY)
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link is no data file
                raise FileNotFoundError(
                    errno.ENOENT, "symbolic links are not followed", str(path)
                ) from None
            raise

    def preallocate(self, file_id: str, size_bytes: int) -> None:
        descriptor = unfollowed(self._path(file_id), os.O_WRONLY)
        try:
            size_before = os.fstat(descriptor).st_size
            try:
                _allocate(descriptor, size_bytes)
            except OSError:  # some filesystems keep what they got until they were full
                if os.fstat(descriptor).st_size > size_before:
                    os.ftruncate(descriptor, size_before)
                raise
        finally:
            os.close(descriptor)

    def seal(self, descriptor: int, identity: bytes) -> None:
        _wait_for_writers(descriptor)
        _free_behind_end(descriptor)
        try:
            os.setxattr(descriptor, IDENTITY_ATTRIBUTE, identity)
        except OSError as error:  # without attributes only a rebuild is lost: see doctor
            if error.errno in (*FULL, errno.EROFS):
                raise
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise FencedError(f"syncing a data file failed: {error.strerror}") from error

    def sync_name(self, file_id: str) -> None:
        with _opened_directory(self._path(file_id).parent, os.O_NOFOLLOW) as descriptor:
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise FencedError(f"syncing a data directory failed: {error.strerror}") from error

    def unread(self, file_id: str) -> bool:
        with self._probing:  # two probes would take each other for readers
            try:
                descriptor = self.open(file_id)
            except FileNotFoundError:
                return True
            try:
                return self.unshared(descriptor)
            finally:
                os.close(descriptor)

    def unshared(self, descriptor: int) -> bool:
        try:
            _lease(descriptor, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True

    def cut(self, descriptor: int) -> None:
        os.truncate(f"/proc/self/fd/{descriptor}", 0)

    def remove(self, file_id: str) -> None:
        self._path(file_id).unlink(missing_ok=True)

    def set_aside(self, file_id: str) -> None:
        shutil.move(self._path(file_id), self._lost / file_id)  # out of memory it is copied

    def identity(self, file_id: str) -> bytes | None:
        return identity_of(self._path(file_id))

    def all(self) -> Iterator[tuple[str, int]]:
        for root, _ in self._roots():
            for name in sorted(filter(_FOLDER.fullmatch, os.listdir(root))):
                with os.scandir(os.path.join(root, name)) as entries:
                    for entry in entries:
                        if FILE_ID.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                            yield entry.name, entry.stat(follow_symlinks=False).st_size

    def free_bytes(self) -> int:
        inodes = inodes_of(self._data)
        return 0 if inodes is not None and not inodes[0] else _free_bytes(self._data)

    def _path(self, file_id: str) -> Path:
        if not FILE_ID.fullmatch(file_id):
            raise ValueError(f"{file_id!r} is not a data file's id")
        root = self._memory if self._memory and in_memory(file_id) else self._data
        return root / file_id[:2] / file_id

    def _roots(self) -> list[tuple[Path, str]]:
        """Return each folder that there is, with the first digit of its files' ids."""
        found = [(self._data, _DISK)]
        if self._memory is not None and self._memory.is_dir():  # a reboot takes it
            found.append((self._memory, MEMORY))
        return found


def memory_folder(cache_dir: Path) -> Path | None:
    """Return the folder in memory that belongs to ``cache_dir``; None if it never had one."""
    try:
        with open(cache_dir / MEMORY_NAME, opener=unfollowed) as file:
            return Path(file.read().strip())
    except (FileNotFoundError, NotADirectoryError):
        return None


def identity_of(path: Path) -> bytes | None:
    """Return what a data file at ``path`` was marked with; None for a link, too."""
    try:
        return os.getxattr(path, IDENTITY_ATTRIBUTE, follow_symlinks=False)
    except OSError:
        return None


def _free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return max(0, status.f_bavail * status.f_frsize - MARKS_BYTES)


def inodes_of(directory: Path) -> tuple[int, int] | None:
    """Return how many inodes are free, and how many there are; None where none are counted."""
    status = os.statvfs(directory)
    return (status.f_favail, status.f_files) if status.f_files else None


def probe(cache_dir: Path, known: Path | None = None) -> dict[str, bool]:
    """Try what the disk can do, by doing it; return ``direct_io``, ``leases`` and ``attributes``.

    On a disk that takes no new file it is tried on the file ``known``, if that is there.

    Raises:
        ConfigError: It cannot sync a file, or cannot tell whether a file is open for writing.
    """
    files = DiskFiles(cache_dir)
    files.prepare()
    made: str | None = None
    try:
        made, descriptor = files.create(ALIGNMENT_BYTES)
        path = cache_dir / "data" / made[:2] / made
    except OSError as error:
        if known is None or not known.exists() or error.errno not in FULL:
            raise ConfigError(
                f"the filesystem of {cache_dir} takes no file: {error.strerror}",
                hint="Free space, or inodes (`df -i`), on the disk under cache_dir.",
            ) from error
        path, descriptor = known, unfollowed(known, os.O_RDWR)
    try:
        direct = _takes_direct_io(descriptor)
        os.fsync(descriptor)
        if not _leases_tell_writers(path):
            raise ConfigError(
                f"the filesystem of {cache_dir} cannot tell whether a file is open for writing",
                hint="Put cache_dir on a local ext4 or XFS disk, not on overlayfs or NFS.",
            )
        attributes = _takes_attributes(descriptor)
    except OSError as error:
        raise ConfigError(
            f"the filesystem of {cache_dir} cannot sync a file: {error.strerror}",
            hint="Put cache_dir on a local ext4 or XFS disk.",
        ) from error
    finally:
        os.close(descriptor)
        if made is not None:
            files.remove(made)
    return {"direct_io": direct, "leases": True, "attributes": attributes}


def _takes_direct_io(descriptor: int) -> bool:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return True


def _leases_tell_writers(path: Path) -> bool:
    """Return whether a lease is refused for a file that the caller has open for writing."""
    reader = unfollowed(path, os.O_RDONLY)
    try:
        _refuse_writers(reader)
    except OpenForWritingError:
        return True
    except ConfigError:
        return False
    else:
        return False
    finally:
        os.close(reader)


def _takes_attributes(descriptor: int) -> bool:
    try:
        os.setxattr(descriptor, IDENTITY_ATTRIBUTE, b"probe")
    except OSError as error:
        return error.errno in FULL  # which is all that it lacks
    return True


def _wait_for_writers(descriptor: int) -> None:
    """Give a process that was forked in the middle of a put a moment to close what it inherited."""
    for _ in range(WRITER_PATIENCE_TRIES):
        try:
            return _refuse_writers(descriptor)
        except OpenForWritingError:
            time.sleep(WRITER_PATIENCE_SECONDS)
    return _refuse_writers(descriptor)


def _free_behind_end(descriptor: int) -> None:
    """Free what was allocated behind the end of a file, where no count of its bytes sees it."""
    found = os.fstat(descriptor)
    whole_blocks = -(-found.st_size // found.st_blksize)
    if bytes_on_disk(found) > whole_blocks * found.st_blksize:
        os.truncate(f"/proc/self/fd/{descriptor}", found.st_size)


def _refuse_writers(descriptor: int) -> None:
    """Take and drop a read lease: the kernel grants it only if nobody can write to the file."""
    try:
        _lease(descriptor, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            raise OpenForWritingError("the staged file is still open for writing") from None
        raise ConfigError(
            f"the filesystem does not grant leases: {error.strerror}",
            hint="Put cache_dir on a local ext4 or XFS disk.",
        ) from error
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)


def _lease(descriptor: int, kind: int) -> None:
    """Take a lease on a file; a process that opens it meanwhile waits until it is dropped.

    The kernel tells the holder by a signal, and the default one, SIGIO, ends a process that does
    not expect it; SIGURG is ignored by default.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Allocate whole aligned blocks, so that the last O_DIRECT write stays inside the file."""
    if size_bytes:
        aligned = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        try:
            os.posix_fallocate(descriptor, 0, aligned)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise


@contextmanager
def _opened_directory(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive the loss of power."""
    with _opened_directory(path) as descriptor:
        os.fsync(descriptor)


def sync_filesystem(path: Path) -> None:
    """Make all files of a filesystem durable, whichever process wrote it.

    Raises:
        FencedError: The sync failed: nobody knows of what; nothing may be built on it.
    """
    with _opened_directory(path) as descriptor:
        try:
            libc.syncfs(descriptor)
        except OSError as error:
            raise FencedError(f"syncing the disk of {path} failed: {error.strerror}") from error


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write ``data`` at ``offset``, in as many calls as it takes."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def write_synced(path: Path, text: str) -> None:
    """Write a small file whole: after the loss of power it is there with ``text``, or not."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w", opener=unfollowed) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)
