"""Finished files and new folders, as the kernel tells of them: a thin layer over inotify.

Source: inotify(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import struct
from dataclasses import dataclass

_CLOSE_WRITE, _MOVED_TO, _CREATE = 0x8, 0x80, 0x100
_OVERFLOW, _IGNORED, _IS_FOLDER = 0x4000, 0x8000, 0x40000000
_ONLY_FOLDERS, _NO_LINKS, _NO_UNLINKED = 0x01000000, 0x02000000, 0x04000000
_WANTED = _CLOSE_WRITE | _MOVED_TO | _CREATE | _ONLY_FOLDERS | _NO_LINKS | _NO_UNLINKED
_HEAD = struct.Struct("iIII")
_READ_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A file was closed by its writer, moved here or made, or a folder was.

    ``path`` None: events were lost, and whoever listens must look at everything again.
    """

    path: str | None
    is_folder: bool


class Inotify:
    """Watches folders, for one thread."""

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _error("fs.inotify.max_user_instances")
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def add(self, folder: str) -> bool:
        """Watch a folder from now on; return False if there is none any more.

        Raises:
            OSError: The system watches no more folders; names the setting.
        """
        number = _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _WANTED)
        if number >= 0:
            self._folders[number] = folder
            return True
        if ctypes.get_errno() in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise _error(folder)

    def read(self, timeout_seconds: float) -> list[FileEvent]:
        """Return what happened; nothing when nothing did until the time is over."""
        if not self._poll.poll(max(0.0, timeout_seconds) * 1000):
            return []
        return self._parsed(os.read(self._descriptor, _READ_BYTES))

    def close(self) -> None:
        """Watch nothing any more."""
        os.close(self._descriptor)

    def _parsed(self, data: bytes) -> list[FileEvent]:
        events, at = [], 0
        while at < len(data):
            number, mask, _, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size + length
            if mask & _OVERFLOW:
                events.append(FileEvent(None, is_folder=True))
            elif mask & _IGNORED:
                self._folders.pop(number, None)
            elif (folder := self._folders.get(number)) is not None:
                name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                events.append(FileEvent(os.path.join(folder, name), bool(mask & _IS_FOLDER)))
        return events


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    if number == errno.ENOSPC:
        what = f"{what} (raise the sysctl fs.inotify.max_user_watches)"
    return OSError(number, os.strerror(number), what)
