"""Read the limits of a process's control groups: memory, CPU and the disk's bandwidth.

A limit of any group above counts, so the least on the way up is returned. Both versions of control
groups are read; version 1 has a hierarchy for each controller.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

PROC = Path("/proc")
Number = TypeVar("Number", int, float)
_NO_LIMIT_BYTES = 1 << 60  # version 1 writes a number near 2^63 where there is none


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """None: no limit. ``writes_bytes_per_second`` is of one disk."""

    memory_bytes: int | None = None
    cpus: float | None = None
    reads_bytes_per_second: int | None = None
    writes_bytes_per_second: int | None = None


def limits_of(pid: int | None = None, device: str = "", proc: Path = PROC) -> CgroupLimits:
    """Return what binds a process (default: this one).

    Args:
        device: Number of the cache's disk, as ``259:0``.
        proc: Seam for tests.
    """
    own = proc / (str(pid) if pid is not None else "self")
    groups = list(_groups(own, text_of(proc / "self/mountinfo")))
    return CgroupLimits(
        memory_bytes=_least(groups, _memory),
        cpus=_least(groups, _cpus),
        reads_bytes_per_second=_least(groups, lambda *of: _io(of, device, "read", "rbps")),
        writes_bytes_per_second=_least(groups, lambda *of: _io(of, device, "write", "wbps")),
    )


def _groups(own: Path, mountinfo: str) -> Iterator[tuple[int, Path]]:
    """Yield (version, directory) of each group that the process is in, and of those above it."""
    member_of: dict[str, PurePosixPath] = {}
    for line in text_of(own / "cgroup").splitlines():
        _number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if path.startswith("/") and ".." not in path.split("/"):
            member_of |= {name: PurePosixPath(path) for name in controllers.split(",")}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        names = [""] if version == 2 else [name for name in kind[2].split(",") if name in member_of]
        root, point = PurePosixPath(fields[3]), Path(fields[4])
        for group in {member_of[name] for name in names if name in member_of}:
            if group.is_relative_to(root):
                below = point / group.relative_to(root)
                while below != point.parent:
                    yield version, below
                    below = below.parent


def _least(
    groups: list[tuple[int, Path]], read: Callable[[int, Path], Number | None]
) -> Number | None:
    found = [limit for version, group in groups if (limit := read(version, group)) is not None]
    return min(found, default=None)


def _memory(version: int, group: Path) -> int | None:
    text = text_of(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT_BYTES else None


def _cpus(version: int, group: Path) -> float | None:
    if version == 2:
        quota, period = [*text_of(group / "cpu.max").split(), "", ""][:2]
    else:
        quota = text_of(group / "cpu.cfs_quota_us")
        period = text_of(group / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _io(of: tuple[int, Path], device: str, verb: str, field: str) -> int | None:
    version, group = of
    if version == 1:
        lines = text_of(group / f"blkio.throttle.{verb}_bps_device").splitlines()
        rates = [line.split()[1] for line in lines if line.startswith(f"{device} ")]
    else:
        lines = text_of(group / "io.max").splitlines()
        rates = [
            pair.partition("=")[2]
            for line in lines
            if line.startswith(f"{device} ")
            for pair in line.split()[1:]
            if pair.startswith(f"{field}=")
        ]
    return next((int(rate) for rate in rates if rate.isdigit()), None)


def text_of(path: Path) -> str:
    """Return what a file of the kernel says; nothing where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
