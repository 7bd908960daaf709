"""A CPU group for the drain alone, below the control group that the service runs in.

In such a group the drain comes after everything else in the service's own group; how that whole
group stands to training in another one is for whoever made the groups. Control groups are there to
be used only where we may write to them, so every step may fail, and then nothing is left behind.

Version 1 has a hierarchy for the CPU alone, in which any group may have children. In version 2 a
group with processes has no children of its own with a CPU share, except at the root; there the
drain becomes a sibling of ``serve``, if the group above was delegated to us.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/; systemd,
docs/CGROUP_DELEGATION.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cachetier.drain.priority.policy import CpuPriority

PROC = Path("/proc/self")
NAME = "cachetier-drain-"
READ_BYTES = 1 << 20

# What a version calls it, and its values. A share is what nice 19 would be, a seventieth of what a
# group that computes has; a large one what nice 12 would be.
SETTINGS = {
    1: ("cpu.shares", {CpuPriority.LAST: 2, CpuPriority.SHARE: 15, CpuPriority.LARGE_SHARE: 70}),
    2: ("cpu.weight", {CpuPriority.LAST: 1, CpuPriority.SHARE: 2, CpuPriority.LARGE_SHARE: 7}),
}

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A directory that stands for the control group we are in."""

    version: int
    own: Path
    is_root: bool


def hierarchies(proc: Path = PROC) -> list[Hierarchy]:
    """Return where this process's CPU control group is; version 2 first."""
    own = _own_groups(_text(proc / "cgroup"))
    found = []
    for version, root, point in _mounts(_text(proc / "mountinfo")):
        group = own.get(version)
        if group is not None and group.is_relative_to(root):
            below = group.relative_to(root)
            at_root = below == PurePosixPath(".")
            found.append(Hierarchy(version, Path(point) / below, at_root))
    return sorted(found, key=lambda hierarchy: -hierarchy.version)


def _own_groups(text: str) -> dict[int, PurePosixPath]:
    """Read ``/proc/self/cgroup``: lines of number, controllers and path."""
    groups = {}
    for line in text.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if path.startswith("/") and ".." not in path.split("/"):
            if number == "0" and not controllers:
                groups[2] = PurePosixPath(path)
            elif "cpu" in controllers.split(","):
                groups[1] = PurePosixPath(path)
    return groups


def _mounts(text: str) -> Iterator[tuple[int, PurePosixPath, str]]:
    """Read ``/proc/self/mountinfo``; yields (version, what of it is mounted, where)."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = (_unescaped(field) for field in fields[3:5])
        if kind[0] == "cgroup2":
            yield 2, PurePosixPath(root), point
        elif kind[0] == "cgroup" and "cpu" in kind[2].split(","):
            yield 1, PurePosixPath(root), point


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)


class CpuGroup:
    """A control group of the drain's own."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self._version = version

    def enter(self) -> None:
        """Move this process in, with all its threads.

        Raises:
            OSError: We may not.
        """
        _write(self.path / "cgroup.procs", os.getpid())

    def set_priority(self, cpu_priority: CpuPriority) -> str:
        """Rank the group; return the setting that did it.

        Raises:
            OSError: The kernel refuses.
        """
        last = cpu_priority is CpuPriority.LAST
        idle = self.path / "cpu.idle"
        if idle.exists():
            _write(idle, int(last))
            if last:
                return "cpu.idle=1"
        setting, values = SETTINGS[self._version]
        _write(self.path / setting, values[cpu_priority])
        return f"{setting}={values[cpu_priority]}"


def make_group(name: str, proc: Path = PROC) -> CpuGroup | None:
    """Make the group ``name``, or take the one left there; None where that cannot be.

    The caller enters it, and whoever outlives the drain removes it by ``sweep``.
    """
    for hierarchy in hierarchies(proc):
        for parent in _parents(hierarchy):
            group = CpuGroup(parent / name, hierarchy.version)
            try:
                group.path.mkdir(exist_ok=True)
                group.set_priority(CpuPriority.LAST)
            except OSError:
                _remove(group.path)
            else:
                return group
    return None


def find_group(name: str, proc: Path = PROC) -> CpuGroup | None:
    """Return the group ``name`` that ``make_group`` has made, as it is now; None if none is."""
    for hierarchy in hierarchies(proc):
        for parent in _parents(hierarchy):
            if (parent / name).is_dir():
                return CpuGroup(parent / name, hierarchy.version)
    return None


def sweep(proc: Path = PROC) -> None:
    """Remove the groups of drains that have ended, whichever service started them.

    Besides one's own there are those of services that were killed and never started again. A group
    of a drain that is about to enter it may go too; the drain makes it once more.
    """
    for hierarchy in hierarchies(proc):
        for parent in (hierarchy.own, hierarchy.own.parent):
            with suppress(OSError):
                for path in parent.glob(f"{NAME}*"):
                    _remove(path)


def _parents(hierarchy: Hierarchy) -> Iterator[Path]:
    """Yield the groups that may get a child with a CPU share."""
    own = hierarchy.own
    if hierarchy.version == 1:
        yield own
    elif hierarchy.is_root:
        if "cpu" in _text(own / "cgroup.subtree_control").split():
            yield own
    elif _is_delegated(own.parent):
        with suppress(OSError):
            _write(own.parent / "cgroup.subtree_control", "+cpu")
            yield own.parent


def _is_delegated(path: Path) -> bool:
    """Whether systemd has given this group to the service (``Delegate=``)."""
    for attribute in ("trusted.delegate", "user.delegate"):
        with suppress(OSError):
            if os.getxattr(path, attribute) == b"1":
                return True
    return False


def _remove(path: Path) -> None:
    with suppress(OSError):  # not there, not ours, or somebody is in it
        path.rmdir()


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(READ_BYTES)
    except OSError:
        return ""


def _write(path: Path, value: int | str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # it is there, or never
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)
