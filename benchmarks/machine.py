"""Describe the machine that was measured: what explains a figure, and nothing that names it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import apsw


def describe(directory: Path) -> list[str]:
    """Return lines on the processor, memory, disk under ``directory`` and software."""
    version = ".".join(platform.release().split(".")[:2])
    return [
        f"{_cores()}, {_processor()}{_virtual()}",
        f"{_memory_bytes() / 2**30:.0f} GiB of memory",
        f"cache and baselines on {_disk(directory)}",
        f"Linux {version}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}",
    ]


def _cores() -> str:
    """Name the cores, and how many of them ``taskset`` leaves us."""
    ours, all_cores = len(os.sched_getaffinity(0)), os.cpu_count()
    return f"{all_cores} cores" if ours == all_cores else f"{ours} of {all_cores} cores"


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def _virtual() -> str:
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "")
    return ", a virtual machine" if " hypervisor " in f"{flags} " else ""


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _disk(directory: Path) -> str:
    """Return filesystem and kind of device, such as ``ext4 on a virtio disk``."""
    device = directory.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    filesystem = next(
        (
            line.split(" - ")[1].split()[0]
            for line in _lines("/proc/self/mountinfo")
            if f" {name} " in line
        ),
        "an unknown filesystem",
    )
    block = Path(f"/sys/dev/block/{name}")
    if not block.exists():
        return filesystem
    whole = block.resolve()
    if (whole / "partition").exists():
        whole = whole.parent
    return f"{filesystem} on {_kind(whole)}"


def _kind(block: Path) -> str:
    kinds = {"vd": "a virtio disk", "nvme": "an NVMe disk", "md": "a RAID", "dm-": "a mapped disk"}
    for prefix, kind in kinds.items():
        if block.name.startswith(prefix):
            return kind
    rotational = _lines(str(block / "queue" / "rotational"))[:1] == ["1"]
    return "a spinning disk" if rotational else "a solid-state disk"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
