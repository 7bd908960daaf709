"""Stay behind training: the drain gets what is left of CPU and disk, and never outlives ``serve``.

``nice`` alone does not reach across sessions: Linux groups processes by session first (autogroup),
so the group's own nice value counts. Each measure is tried, and what took effect is reported.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path

NICE = 19
# A tenth of a core that training wants whole. At 19 it would be a seventieth: on a node whose every
# core is busy the drain would take minutes to upload anything, and the exposure would grow.
AUTOGROUP_NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")

_PR_SET_PDEATHSIG = 1
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_IDLE = 3 << 13
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}


def die_with(parent: int) -> None:
    """End this process when the thread that started it ends; at once, if that is over already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this drain, is gone")


def be_courteous() -> dict[str, str | int | None]:
    """Step behind everybody else; return what took effect, None where the system refused."""
    return {
        "nice": _tried(_nice),
        "autogroup": _tried(_autogroup),
        "io": _tried(_io_idle),
    }


def _tried(measure: Callable[[], str | int | None]) -> str | int | None:
    try:
        return measure()
    except OSError:
        return None


def _nice() -> int:
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    return os.getpriority(os.PRIO_PROCESS, 0)


def _autogroup() -> int:
    """Set the nice value of the session's group; needs a session of our own."""
    AUTOGROUP.write_text(str(AUTOGROUP_NICE))
    return int(AUTOGROUP.read_text().rsplit(maxsplit=1)[-1])


def _io_idle() -> str | None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
    return None if failed else "idle"
