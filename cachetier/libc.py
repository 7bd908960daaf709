"""Calls of the system that Python has no name for; they raise OSError as those of ``os`` do."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import socket
import termios

_PR_SET_PDEATHSIG = 1
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the library has no name for it either
_FALLOC_FL_KEEP_SIZE = 1

_libc = ctypes.CDLL(None, use_errno=True)
# For what returns at once: to give up the interpreter costs a wait among a hundred busy threads.
_quick = ctypes.PyDLL(None, use_errno=True)


def syncfs(descriptor: int) -> None:
    """Sync everything on the filesystem of an open file or directory, written by any process."""
    _checked(_libc.syncfs(descriptor))


def untaken_bytes(sock: socket.socket) -> int:
    """Return how much a socket was given that its peer has not acknowledged, or not read here."""
    count = ctypes.c_int()
    _checked(_quick.ioctl(sock.fileno(), ctypes.c_ulong(termios.TIOCOUTQ), ctypes.byref(count)))
    return count.value


def allocate_behind_the_end(descriptor: int, size_bytes: int) -> None:
    """Allocate the first ``size_bytes`` of a file, and leave its size as it is."""
    size, start = ctypes.c_int64(size_bytes), ctypes.c_int64(0)
    _checked(_libc.fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, start, size))


def die_with_parent() -> None:
    """Let this process be killed when the thread that started it ends, where that is allowed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_io_idle(thread: int) -> None:
    """Let a thread read and write only while nobody else does."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    _checked(_libc.syscall(number, _IOPRIO_WHO_PROCESS, thread, _IOPRIO_IDLE))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
