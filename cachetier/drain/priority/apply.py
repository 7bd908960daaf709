"""Apply the drain's low CPU and I/O priority, and let it die with ``serve``.

``nice`` alone does not reach across sessions: Linux groups processes by session first (autogroup),
so the group's own nice value counts. A control group of the drain's own, where one can be made,
reaches as far and yields at once. Each measure is tried, and what took effect is reported.

Last in line on a node whose every core is busy means hardly any CPU at all: two threads that
compress got 1 MiB/s there, and the exposure would grow. So a starved drain is given a share
(``policy.CpuPriority``), which costs training what docs/drain.md says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from cachetier import libc
from cachetier.drain.priority.cgroup import CpuGroup, find_group, make_group
from cachetier.drain.priority.policy import CpuPriority

NICE = 19
AUTOGROUP_NICE = {CpuPriority.LAST: 19, CpuPriority.SHARE: 18, CpuPriority.LARGE_SHARE: 12}
GROUP_TRIES = 3
AUTOGROUP = Path("/proc/self/autogroup")


def die_with(parent: int) -> None:
    """End this process when the thread that started it ends; at once, if that is over already."""
    libc.die_with_parent()
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this drain, is gone")


class Courtesy:
    """This process's place behind everybody else.

    Attributes:
        report: What took effect, None where the system refused.
    """

    def __init__(self, report: dict[str, Any], group: CpuGroup | None = None) -> None:
        self.report = report
        self._group = group

    def set_priority(self, cpu_priority: CpuPriority) -> None:
        """Take another place: at the end of the line, or with a share."""
        if self._group is not None:
            self.report["cgroup"] = _tried(lambda: self._set_group_priority(cpu_priority))
        else:
            self.report["autogroup"] = _tried(lambda: _autogroup(cpu_priority))

    def _set_group_priority(self, cpu_priority: CpuPriority) -> str | None:
        return self._group.set_priority(cpu_priority) if self._group is not None else None


def pinned_to(cpus: Collection[int]) -> Collection[int] | None:
    """Stay on ``cpus``, if any are named, with all threads that begin later; return what holds."""

    def pin() -> list[int]:
        os.sched_setaffinity(0, cpus)
        return sorted(os.sched_getaffinity(0))

    return _tried(pin) if cpus else None


def lower_priority(group: str, cpus: Collection[int] | None = None) -> Courtesy:
    """Step behind everybody else, with every thread there is.

    Nice values and I/O classes belong to threads; those that begin later inherit them.

    Args:
        group: Name of the control group to make; whoever outlives this process removes it.
        cpus: See ``pinned_to``.
    """
    entered = _entered_group(group)
    courtesy = Courtesy(
        {
            "nice": _tried(_nice),
            "io": _tried(_io_idle),
            "cpus": cpus,
            "cgroup": None,
            "autogroup": None,  # groups by session count only where there is no control group
        },
        entered,
    )
    courtesy.set_priority(CpuPriority.LARGE_SHARE)  # for the start; see Stance
    return courtesy


def follow(group: str) -> None:
    """Step behind as the drain has done for which this process carries: into its ``group``."""
    found = find_group(group)
    for measure in (_nice, _io_idle, *([found.enter] if found is not None else [])):
        _tried(measure)


def step_aside() -> dict[str, Any]:
    """Give way to training, where no service looks after this process; return what took effect.

    It makes no control group, which somebody would have to remove, and ranks its session's group
    only where that is its own: training may have been started from the same shell.
    """
    report = {"nice": _tried(_nice), "io": _tried(_io_idle), "autogroup": None}
    if os.getsid(0) == os.getpid():
        report["autogroup"] = _tried(lambda: _autogroup(CpuPriority.SHARE))
    return report


def _tried(measure: Callable[[], Any]) -> Any:
    try:
        return measure()
    except OSError:
        return None


def _entered_group(name: str) -> CpuGroup | None:
    for _ in range(GROUP_TRIES):
        group = make_group(name)
        if group is None:
            return None
        try:
            group.enter()
        except FileNotFoundError:
            continue  # swept away by another service, as nobody was in it yet
        except OSError:
            return None
        return group
    return None


def _nice() -> int:
    _on_every_thread(lambda thread: os.setpriority(os.PRIO_PROCESS, thread, NICE))
    return os.getpriority(os.PRIO_PROCESS, 0)


def _autogroup(cpu_priority: CpuPriority) -> int:
    """Set the nice value of the session's group; needs a session of our own."""
    AUTOGROUP.write_text(str(AUTOGROUP_NICE[cpu_priority]))
    return int(AUTOGROUP.read_text().rsplit(maxsplit=1)[-1])


def _io_idle() -> str:
    _on_every_thread(libc.set_io_idle)
    return "idle"


def _on_every_thread(call: Callable[[int], object]) -> None:
    """Call ``call`` with the id of each thread of this process, but of those that end meanwhile."""
    for thread in sorted(map(int, os.listdir("/proc/self/task"))):
        with suppress(ProcessLookupError):
            call(thread)
