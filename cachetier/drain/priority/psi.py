"""Sample Linux's PSI, and how long the drain's own threads waited for a CPU.

Everything is optional: a kernel without it, or a container that hides it, gives no signal. What is
read is bounded, whatever lies there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cachetier.drain.priority.policy import PressureSample

PROC = Path("/proc")
READ_BYTES = 512
THREADS_LIMIT = 512

_SOME = re.compile(rb"^some .*\btotal=(\d{1,18})\b", re.MULTILINE)


def stalled_seconds(text: bytes) -> float | None:
    """Return for how long at least one task was stalled, from a file of ``/proc/pressure``."""
    found = _SOME.search(text)
    return None if found is None else int(found[1]) / 1e6


def scheduled_seconds(text: bytes) -> tuple[float, float] | None:
    """Return (ran, waited) of one thread, from its ``schedstat``."""
    fields = text.split()[:2]
    if len(fields) < 2 or not all(field.isdigit() and len(field) <= 20 for field in fields):
        return None
    return int(fields[0]) / 1e9, int(fields[1]) / 1e9


class Sensors:
    """Reads the clocks of pressure; used by one thread."""

    def __init__(
        self,
        proc: Path = PROC,
        carriers: Callable[[], Sequence[int]] = lambda: (),
        carriers_read_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Sensors of this process and of its carriers: their pids, and for how long they read."""
        self._proc = proc
        self._pressure = proc / "pressure"
        self._carriers = carriers
        self._carriers_read_seconds = carriers_read_seconds
        self._ended = (0.0, 0.0)
        self._seen: dict[str, tuple[float, float]] = {}

    def sample(self, at: float, own_io: float) -> PressureSample:
        """Return all clocks; ``own_io`` is for how long this process was reading."""
        used, waited = self._own_cpu()
        return PressureSample(
            at=at,
            cpu_stalled=stalled_seconds(_start_of(f"{self._pressure}/cpu")),
            io_stalled=stalled_seconds(_start_of(f"{self._pressure}/io")),
            own_cpu_waited=waited,
            own_cpu_used=used,
            own_io=own_io + self._carriers_read_seconds(),
        )

    def _own_cpu(self) -> tuple[float, float]:
        """Sum over our threads; those that ended keep counting, or the sum would go back."""
        now: dict[str, tuple[float, float]] = {}
        for thread in self._threads():
            found = scheduled_seconds(_start_of(f"{self._proc}/{thread}/schedstat"))
            if found is not None:
                now[thread] = found
        ended = [clocks for thread, clocks in self._seen.items() if thread not in now]
        self._ended = _sum([self._ended, *ended])
        self._seen = now
        return _sum([self._ended, *now.values()])

    def _threads(self) -> list[str]:
        found: list[str] = []
        for process in ("self", *self._carriers()):
            with suppress(OSError):
                tasks = f"{process}/task"
                found += [f"{tasks}/{thread}" for thread in os.listdir(f"{self._proc}/{tasks}")]
        return found[:THREADS_LIMIT]


def _sum(clocks: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(ran for ran, _ in clocks), sum(waited for _, waited in clocks)


def _start_of(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(READ_BYTES) or b""
    except OSError:
        return b""
