"""What the kernel says of a process: processor seconds and the most memory it ever held."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED of the whole process, as clock_getcpuclockid(3) composes it


def cpu_seconds(pid: int) -> float:
    """Return user and system seconds of a process and all its threads, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)


class Used:
    """Processor seconds of processes, and of those that they start, from now on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._roots = tuple(pids)
        self._before = self._seconds()

    def cpu_seconds(self) -> float:
        """Return what they have used; one that has ended meanwhile is not counted."""
        return sum(self.by_process().values())

    def by_process(self) -> dict[int, float]:
        """Return what each of them has used."""
        return {pid: now - self._before.get(pid, 0.0) for pid, now in self._seconds().items()}

    def _seconds(self) -> dict[int, float]:
        found = {}
        for root in self._roots:
            for pid in (root, *children_of(root)):
                with contextlib.suppress(OSError):  # it has ended
                    found[pid] = cpu_seconds(pid)
        return found


def peak_bytes(pid: int) -> int:
    """Return the peak of a process's resident memory (VmHWM)."""
    return _status_bytes(pid, "VmHWM:")


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory."""
    return _status_bytes(pid, "VmRSS:")


def proportional_bytes(pid: int) -> int:
    """Return a process's resident memory; of what it shares with others, its part (PSS)."""
    return _status_bytes(pid, "Pss:", "smaps_rollup")


def _status_bytes(pid: int, word: str, file: str = "status") -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(word):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(f"process {pid} is gone")


def command_of(pid: int) -> bytes:
    """Return the command line of a process, empty once it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children_of(pid: int) -> list[int]:
    """Return the processes that ``pid`` started and that still run, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            for child in (task / "children").read_text().split():
                found += [int(child), *children_of(int(child))]
    return found
