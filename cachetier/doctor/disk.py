"""Judges the disk of the cache: pure functions from what was measured to a ``Finding``.

The thresholds say where a person would look again, not what a disk must reach: a disk that is
merely slow is a warning, and only what breaks the promise of an acknowledgement fails.
"""

from __future__ import annotations

from pathlib import Path

from cachetier.doctor.device import Device, DeviceKind
from cachetier.doctor.findings import CheckResult, State, fail, ok, skipped, warn
from cachetier.doctor.rawdisk import Times
from cachetier.errors import ConfigError
from cachetier.local.files.filesystem import Mount, refuse_unsafe
from cachetier.units import shown_size

LOCAL_DISK = "Put cache_dir on an ext4 or XFS filesystem on an NVMe of this machine."
TESTED = frozenset({"ext4", "xfs"})
COPY_ON_WRITE = frozenset({"bcachefs", "btrfs", "zfs"})
WITHOUT_BARRIERS = frozenset({"nobarrier", "barrier=0"})

NO_SYNC_SECONDS = 10e-6  # a call into the kernel and back; no disk answers so soon
FLUSHED_CACHE_SECONDS = 60e-6  # below this no disk has written a volatile cache down
ONE_TURN_SECONDS = 2e-3  # of a rotating disk, and generously
SLOW_SYNC_SECONDS = 10e-3
SLOW_P99_SECONDS = 100e-3
SLOW_BYTES_PER_SECOND = 500e6

_KINDS = {
    DeviceKind.NVME: "an NVMe of this machine",
    DeviceKind.SSD: "a solid-state disk, not NVMe",
    DeviceKind.HDD: "a rotating disk",
    DeviceKind.VIRTUAL: "a virtual disk",
    DeviceKind.NETWORK: "a disk behind a network",
    DeviceKind.MEMORY: "memory",
    DeviceKind.LOOP: "a file behind a loop device",
    DeviceKind.UNKNOWN: "a disk of a kind unknown here",
}
_DEVICE_FIXES = {
    DeviceKind.SSD: "It works, at the speed of its bus. Use an NVMe where ranks wait for saves.",
    DeviceKind.HDD: "Use an NVMe: every commit waits for a turn of this disk.",
    DeviceKind.VIRTUAL: "Ask who runs the hypervisor for a local NVMe passed through, and "
    "whether its flush reaches the disk: nothing inside this machine can tell.",
    DeviceKind.NETWORK: "Use the instance's own NVMe: saves share this disk's network, and "
    "its limits.",
    DeviceKind.LOOP: "Put cache_dir on the disk itself: every write goes through two filesystems.",
    DeviceKind.UNKNOWN: "Make sure that it is a local disk that keeps what it has synced.",
}


def judge_filesystem(path: Path, mount: Mount, *, allow_volatile: bool) -> CheckResult:
    """Say by name which filesystem it is, and whether a commit is safe there."""
    name, values = "filesystem", {"filesystem": called(mount), "mount_point": mount.point}
    try:
        refuse_unsafe(path, mount, allow_volatile=allow_volatile)
    except ConfigError as error:
        measured = error.message.replace(f"on {mount.kind},", f"on {called(mount)},")
        return fail(name, measured, error.hint, **values)
    where = f"{called(mount)} at {mount.point}"
    if off := WITHOUT_BARRIERS.intersection(mount.options):
        fix = f"Mount it without `{min(off)}`: a sync that flushes nothing loses what was acked."
        return fail(name, f"{where}, mounted with {min(off)}", fix, **values)
    if mount.kind in TESTED:
        return ok(name, where, **values)
    if mount.kind in ("tmpfs", "ramfs"):
        fix = "For a try only: the loss of power takes everything. " + LOCAL_DISK
        return warn(name, f"{where}, which is memory (allow_volatile is on)", fix, **values)
    if mount.kind in COPY_ON_WRITE:
        fix = (
            f"{LOCAL_DISK} It works here, but syncs of a filesystem that copies on write are slow."
        )
        return warn(name, where, fix, **values)
    return warn(name, f"{where}, which cachetier is not tested on", LOCAL_DISK, **values)


def called(mount: Mount) -> str:
    """Return what people call a filesystem: Windows' drives come as 9p."""
    is_drive = any(option.startswith("aname=drvfs") for option in mount.options)
    return f"{mount.kind} (drvfs, a Windows drive)" if is_drive else mount.kind


def judge_device(device: Device | None, mount: Mount) -> CheckResult:
    """Say whether the disk is a real, local NVMe."""
    name = "device"
    if device is None:
        if mount.kind in ("tmpfs", "ramfs"):
            return skipped(name, f"{mount.kind} has no disk")
        return skipped(name, f"the system does not tell which disk {mount.source or 'it'} is on")
    measured = f"{_KINDS[device.kind]} ({device.shown})"
    values = {"device": device.name, "model": device.model, "kind": str(device.kind)}
    if device.kind is DeviceKind.NVME:
        return ok(name, measured, **values)
    if device.kind is DeviceKind.MEMORY:
        fix = f"{LOCAL_DISK} Nothing here survives the loss of power."
        return fail(name, measured, fix, **values)
    return warn(name, measured, _DEVICE_FIXES[device.kind], **values)


def judge_directory(able: dict[str, bool] | None, refusal: ConfigError | None) -> CheckResult:
    """Say whether the service could commit here: create, lease, mark and sync a file."""
    name = "directory"
    if refusal is not None or able is None:
        message = refusal.message if refusal is not None else "it cannot be tried"
        return fail(name, message, refusal.hint if refusal is not None else LOCAL_DISK)
    if not able["attributes"]:
        fix = "Mount it with extended attributes (user_xattr): they rebuild a lost catalog."
        return warn(name, "files sync and tell their writers; no extended attributes", fix, **able)
    return ok(name, "files sync, tell their writers and keep attributes", **able)


def judge_sync(written: Times, synced: Times, device: Device | None) -> CheckResult:
    """Say how long the sync of 4 KiB takes, and whether it can have reached the disk."""
    name, p50, p99 = "sync", synced.p50_seconds, synced.p99_seconds
    measured = f"4 KiB and fdatasync: p50 {shown_time(p50)}, p99 {shown_time(p99)}"
    values = {
        "count": synced.count,
        "p50_seconds": p50,
        "p99_seconds": p99,
        "write_p50_seconds": written.p50_seconds,
    }
    alone = max(0.0, p50 - written.p50_seconds)
    if alone < NO_SYNC_SECONDS:
        fix = "Find what swallows the sync (libeatmydata, a mount option, the hypervisor's cache)."
        return fail(name, f"{measured}: it reaches no disk", fix, **values)
    if doubt := _doubt(alone, device):
        fix = "Make sure that the disk's write cache survives the loss of power, or turn it off."
        return warn(name, f"{measured}: {doubt}", fix, **values)
    if p50 > SLOW_SYNC_SECONDS or p99 > SLOW_P99_SECONDS:
        fix = "Each commit waits that long. Use an NVMe with power-loss protection, or less load."
        return warn(name, f"{measured}: slow", fix, **values)
    return ok(name, measured, **values)


def _doubt(sync_seconds: float, device: Device | None) -> str:
    """Say why such a disk cannot be so quick; empty where it can."""
    if device is None:
        return ""
    if device.kind is DeviceKind.HDD and sync_seconds < ONE_TURN_SECONDS:
        return "a rotating disk cannot be so quick, its write cache answers"
    physical = device.kind in (DeviceKind.NVME, DeviceKind.SSD)
    if physical and device.volatile_cache and sync_seconds < FLUSHED_CACHE_SECONDS:
        return "too quick for a disk that says that its write cache is volatile"
    return ""


def judge_direct_io(alignment: tuple[int, int] | None) -> CheckResult:
    """Say whether bytes can pass by the page cache, and what that asks of memory and offsets."""
    name = "direct-io"
    if alignment is None:
        fix = "Use ext4 or XFS on a disk that takes O_DIRECT: else puts fill the page cache."
        return warn(name, "the filesystem refuses O_DIRECT", fix, direct_io=False)
    memory_bytes, offset_bytes = alignment
    return ok(
        name,
        f"memory aligned to {memory_bytes} B, offsets to {offset_bytes} B",
        direct_io=True,
        memory_alignment_bytes=memory_bytes,
        offset_alignment_bytes=offset_bytes,
    )


def judge_write_rate(size_bytes: int, seconds: float, checkpoint_bytes: int | None) -> CheckResult:
    """Say how fast the disk takes large writes, and what that means for a save."""
    rate = size_bytes / seconds
    measured = f"{shown_size(rate)}/s, {shown_size(size_bytes)} written and synced"
    values = {"size_bytes": size_bytes, "bytes_per_second": rate}
    if checkpoint_bytes:
        measured += f"; the largest save takes {shown_time(checkpoint_bytes / rate)}"
        values["largest_save_seconds"] = checkpoint_bytes / rate
    if rate < SLOW_BYTES_PER_SECOND:
        fix = "An NVMe takes 1 GB/s and more: ranks wait for this disk. Look for other writers."
        return warn("write-rate", measured, fix, **values)
    return ok("write-rate", measured, **values)


def judge_space(
    capacity_bytes: int, used_bytes: int, free_bytes: int, checkpoint: tuple[int, str] | None
) -> CheckResult:
    """Say whether the budget is there, and holds the largest checkpoint twice.

    Twice: one that drains while the next arrives.

    Args:
        used_bytes: What the cache directory takes already.
        free_bytes: What the filesystem has left for this user.
        checkpoint: This node's largest, and where that is known from.
    """
    name = "space"
    there = used_bytes + free_bytes
    values = {"capacity_bytes": capacity_bytes, "used_bytes": used_bytes, "free_bytes": free_bytes}
    measured = f"capacity {shown_size(capacity_bytes)}, of which the disk has {shown_size(there)}"
    if checkpoint is not None:
        size_bytes, origin = checkpoint
        values["largest_save_bytes"] = size_bytes
        measured += f"; largest save {shown_size(size_bytes)} ({origin})"
        if size_bytes > min(capacity_bytes, there):
            fix = f"Give the cache at least {shown_size(2 * size_bytes)}, or save less at a time."
            return fail(name, measured, fix, **values)
    if capacity_bytes > there:
        fix = f"Set capacity to at most {shown_size(there)}, or free the disk of other files."
        return warn(name, measured, fix, **values)
    if checkpoint is not None and 2 * checkpoint[0] > capacity_bytes:
        fix = f"Set capacity to {shown_size(2 * checkpoint[0])}: one save drains as the next comes."
        return warn(name, measured, fix, **values)
    if checkpoint is None:
        measured += "; no save is known here yet (--checkpoint-size tells)"
    return CheckResult(name, State.OK, measured, values=values)


def shown_time(seconds: float) -> str:
    """Return a duration in two or three digits: ``85 us``, ``1.2 ms``, ``3.4 s``."""
    for unit_seconds, unit in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 1000 * unit_seconds:
            amount = seconds / unit_seconds
            return f"{amount:.0f} {unit}" if amount >= 10 else f"{amount:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
