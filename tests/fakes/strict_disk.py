"""A disk that loses power, by the strictest reading of POSIX.

The real code runs on a real directory. While ``StrictDisk.recording`` lasts, every call of ``os``
that changes or syncs something below ``top`` is a *step*, and so is every write of SQLite, by a
VFS. Nothing is really synced, so that thousands of power cuts take seconds; what a sync would have
made sure is remembered instead. ``StrictDisk.image`` is the disk between two steps, and
``power_loss.Image.survivor`` a directory that a power cut could leave of it.

``crash_at`` cuts the power: that step and every later one raise PowerLoss. ``full_at`` fills the
disk: from that step on nothing grows, until it is None again. ``fail_sync_at`` makes one sync fail
the way Linux does: it reports EIO once, and the pages that were not written are believed to be: a
later sync of the file reports success, and skips them.

Not recorded: changes by other processes, and by calls that hand several buffers to the kernel.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from cachetier import libc
from tests.fakes.power_loss import EMPTY, Content, Image, merged
from tests.fakes.recorded_vfs import RecordedVFS

DATABASE_MEMORY = "-shm"  # shared memory of SQLite: gone with the power
NEEDS_ROOM = ("create", "allocate", "write", "mark")

_serial = count(1)


class PowerLoss(BaseException):
    """The power is off: whatever still runs changes nothing any more."""


@dataclass(slots=True)
class _File:
    path: str
    synced: Content = EMPTY
    live: Content = EMPTY
    changed: bool = True  # since it was looked at
    dropped: Content | None = None  # what a sync that failed left, where it was not written since


@dataclass(slots=True)
class _Folder:
    path: str
    synced: dict[str, int]
    live: dict[str, int]
    changed: bool = True  # since it was looked at


class StrictDisk:
    """Records what happens below ``top``.

    What is there already counts as synced, unless it was ``copied`` there and nobody synced it.
    ``steps`` counts, ``trace`` describes each step, and ``on_step`` is called before each.
    """

    def __init__(self, top: Path, *, copied: bool = False) -> None:
        self.vfs = f"strict-{next(_serial)}"
        self.trace: list[str] = []
        self.on_step: Callable[[], None] = lambda: None
        self.crash_at: int | None = None
        self.full_at: int | None = None
        self.fail_sync_at: int | None = None
        self.failed_syncs = 0
        self.refused_for_room = 0
        self._top = os.fspath(top.resolve())
        self._device = os.stat(self._top).st_dev
        self._numbers = count(1)
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {}
        self._by_inode: dict[int, int] = {}
        self._root = self._register(self._top, os.stat(self._top))
        self._look()
        if not copied:
            self._trust()

    @property
    def steps(self) -> int:
        """How many steps were begun."""
        return len(self.trace)

    def image(self) -> Image:
        """Return the disk as it is now: what is synced, and what is only there."""
        self._look()
        return Image(
            self._root,
            {number: (folder.synced, folder.live) for number, folder in self._folders.items()},
            {number: (file.synced, file.live) for number, file in self._files.items()},
        )

    @contextmanager
    def recording(self) -> Iterator[StrictDisk]:
        """Record, in this process, until the block ends; open databases with ``vfs`` meanwhile."""
        calls = self._calls()
        real = {name: getattr(os, name) for name in calls}
        syncfs = libc.syncfs
        database_files = RecordedVFS(self.vfs, self)
        for name, call in calls.items():
            setattr(os, name, call)
        libc.syncfs = self._sync_all
        try:
            yield self
        finally:
            for name, call in real.items():
                setattr(os, name, call)
            libc.syncfs = syncfs
            database_files.unregister()

    # --- steps -----------------------------------------------------------------------------------

    def step(self, operation: str, path: str) -> None:
        """Begin a step: nothing of it has happened yet.

        Raises:
            PowerLoss: The power is off.
            OSError: The step needs room, and the disk is full.
        """
        if not self._is_off():
            self.on_step()
        self.trace.append(f"{operation} {path[len(self._top) + 1 :]}")
        self.refuse_without_power()
        if self.full_at is not None and self.steps >= self.full_at and operation in NEEDS_ROOM:
            self.refused_for_room += 1
            raise OSError(errno.ENOSPC, "planned: the disk is full")

    def refuse_without_power(self) -> None:
        if self._is_off():
            raise PowerLoss(f"no power at step {self.steps}: {self.trace[-1]}")

    def _is_off(self) -> bool:
        return self.crash_at is not None and self.steps >= self.crash_at

    def sync(self, operation: str, path: str, number: int) -> None:
        """Begin a sync, and end it as planned.

        Raises:
            OSError: This is the sync that was to fail.
        """
        self.step(operation, path)
        if self.steps == self.fail_sync_at:
            self._drop_unsynced(number)
            raise OSError(errno.EIO, "planned: the sync failed")
        self._make_sure(number)

    def sync_folder_of(self, path: str) -> None:
        """Sync the folder that names ``path``; raises as ``sync`` does."""
        folder = os.path.dirname(path)
        number = self.number_at(folder)
        assert number is not None
        self.sync("sync", folder, number)

    def _sync_all(self, descriptor: int) -> None:
        path = self._path_of(descriptor)
        assert path is not None, "another filesystem is synced"
        self.step("syncfs", path)
        if self.steps == self.fail_sync_at:
            for number in self._files:
                self._drop_unsynced(number)
            self.failed_syncs = 1
            raise OSError(errno.EIO, "planned: the sync failed")
        self._look()
        for number in (*self._folders, *self._files):
            self._make_sure(number)

    # --- what is there ---------------------------------------------------------------------------

    def number_at(self, path: str) -> int | None:
        """Return the number of the file or folder at ``path``."""
        if path == self._top:
            return self._root
        parent = self.number_at(os.path.dirname(path)) if path.startswith(self._top) else None
        if parent is None:
            return None
        self._look_into(self._folders[parent])
        return self._folders[parent].live.get(os.path.basename(path))

    def changed_bytes(self, path: str, start: int = 0, size_bytes: int = 0) -> None:
        """Note that bytes at ``path`` were written, known ones perhaps by what they were."""
        number = self.number_at(path)
        if number is not None:
            file = self._files[number]
            file.changed = True
            if file.dropped is not None:
                file.dropped = file.dropped.other_than(start, size_bytes)

    def changed_names(self, path: str) -> None:
        """Note that the folder of ``path`` names other things than before."""
        parent = self.number_at(os.path.dirname(path))
        if parent is not None:
            self._folders[parent].changed = True

    def forget(self, path: str) -> None:
        """Note that ``path`` is about to lose its file, whose inode may be used again."""
        number = self.number_at(path)
        if number is not None and number in self._files:
            self._read(self._files[number])
            self._by_inode = {i: n for i, n in self._by_inode.items() if n != number}

    def _register(self, path: str, status: os.stat_result) -> int:
        number = next(self._numbers)
        self._by_inode[status.st_ino] = number
        if stat.S_ISDIR(status.st_mode):
            self._folders[number] = _Folder(path, {}, {})
        else:
            self._files[number] = _File(path)
        return number

    def _look(self) -> None:
        """Look at everything that changed."""
        pending = list(self._folders.values())
        for folder in pending:  # grows while new folders are found
            self._look_into(folder, pending)
        for file in self._files.values():
            self._read(file)

    def _look_into(self, folder: _Folder, found: list[_Folder] | None = None) -> None:
        if not folder.changed:
            return
        folder.changed = False
        live = {}
        with os.scandir(folder.path) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if not (is_folder or entry.is_file(follow_symlinks=False)):
                    continue
                if not entry.name.endswith(DATABASE_MEMORY):
                    live[entry.name] = self._number_of(entry)
        folder.live = live
        if found is not None:
            found += [self._folders[n] for n in live.values() if n in self._folders]

    def _number_of(self, entry: os.DirEntry[str]) -> int:
        number = self._by_inode.get(entry.inode())
        if number is None:
            return self._register(entry.path, entry.stat(follow_symlinks=False))
        if number in self._files:
            self._files[number].path = entry.path
        return number

    def _read(self, file: _File) -> None:
        if file.changed:
            file.changed = False
            try:
                file.live = Content.of(file.path)
            except FileNotFoundError:
                pass  # unlinked while open: what it held last stays

    def _trust(self) -> None:
        for folder in self._folders.values():
            folder.synced = folder.live
        for file in self._files.values():
            file.synced = file.live

    def _make_sure(self, number: int) -> None:
        if number in self._folders:
            folder = self._folders[number]
            self._look_into(folder)
            folder.synced = folder.live
            return
        file = self._files[number]
        self._read(file)
        if file.dropped is None:
            file.synced = file.live
        else:
            file.synced = merged(file.synced, file.live, skip_like=file.dropped)

    def _drop_unsynced(self, number: int) -> None:
        self.failed_syncs += 1
        if number in self._files:
            file = self._files[number]
            self._read(file)
            file.dropped = file.live

    # --- calls of os -----------------------------------------------------------------------------

    def _calls(self) -> dict[str, Callable[..., Any]]:
        return {
            "open": self._opens(os.open),
            "mkdir": self._makes_folders(os.mkdir),
            "unlink": self._unlinks(os.unlink),
            "remove": self._unlinks(os.remove),
            "rename": self._moves(os.rename),
            "replace": self._moves(os.replace),
            "write": self._writes("write", os.write),
            "pwrite": self._writes("write", os.pwrite),
            "ftruncate": self._writes("truncate", os.ftruncate),
            "posix_fallocate": self._writes("allocate", os.posix_fallocate),
            "setxattr": self._writes("mark", os.setxattr),
            "fsync": self._syncs(os.fsync),
            "fdatasync": self._syncs(os.fdatasync),
        }

    def _path_of(self, target: int | str | bytes | os.PathLike[str]) -> str | None:
        """Return the path of a descriptor or path below ``top``; None for any other."""
        if isinstance(target, int):
            if os.fstat(target).st_dev != self._device:
                return None
            path = os.readlink(f"/proc/self/fd/{target}")
        else:
            path = os.path.abspath(os.fsdecode(target))
        return path if path == self._top or path.startswith(f"{self._top}/") else None

    def _opens(self, real: Callable[..., int]) -> Callable[..., int]:
        def call(target: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            path = self._path_of(target) if flags & os.O_CREAT else None
            if path is None or os.path.lexists(path):
                return real(target, flags, *args, **kwargs)
            self.step("create", path)
            descriptor = real(target, flags, *args, **kwargs)
            self.changed_names(path)
            return descriptor

        return call

    def _makes_folders(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(target: Any, *args: Any, **kwargs: Any) -> None:
            path = self._path_of(target)
            if path is None:
                return real(target, *args, **kwargs)
            self.refuse_without_power()  # no step of its own: start-up makes hundreds, any time
            real(target, *args, **kwargs)
            return self.changed_names(path)

        return call

    def _unlinks(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(target: Any, *args: Any, **kwargs: Any) -> None:
            path = self._path_of(target)
            if path is None or not os.path.lexists(path):
                return real(target, *args, **kwargs)
            self.step("unlink", path)
            self.forget(path)
            real(target, *args, **kwargs)
            return self.changed_names(path)

        return call

    def _moves(self, real: Callable[..., None]) -> Callable[..., None]:
        def call(source: Any, target: Any, **kwargs: Any) -> None:
            path, over = self._path_of(source), self._path_of(target)
            if path is None or over is None:
                return real(source, target, **kwargs)
            self.step("rename", path)
            self.forget(over)
            real(source, target, **kwargs)
            self.changed_names(path)
            return self.changed_names(over)

        return call

    def _writes(self, operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._path_of(target)
            if path is None:
                return real(target, *args, **kwargs)
            self.step(operation, path)
            try:
                return real(target, *args, **kwargs)
            finally:
                self.changed_bytes(path)

        return call

    def _syncs(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            path = self._path_of(descriptor)
            if path is None:
                return real(descriptor)
            if self.number_at(path) is None:
                self.changed_names(path)  # it was created by a call that is not recorded
            number = self.number_at(path)
            assert number is not None, f"{path} is synced, but has no name"
            if number in self._files:
                self._files[number].changed = True  # perhaps by a call that is not recorded
            return self.sync("sync", path, number)

        return call
