"""The checks of the cache's disk.

``check_*`` measure, ``judge_*`` are pure functions from what was measured to a ``CheckResult``.
The thresholds say where a person would look again, not what a disk must reach: a disk that is
merely slow is a warning, and only what breaks the promise of an acknowledgement fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cachetier_client.units import shown_size, shown_time

from cachetier.doctor import rawdisk
from cachetier.doctor.device import Device, DeviceKind, device_at
from cachetier.doctor.findings import CheckResult, fail, ok, skipped, warn
from cachetier.doctor.rawdisk import Times
from cachetier.doctor.scratch import scratch
from cachetier.doctor.subject import Subject
from cachetier.errors import CachetierError, ConfigError
from cachetier.local.files import data_files
from cachetier.local.files.filesystem import MountedDisk, mount_of, project_of, refuse_unsafe
from cachetier.local.files.permissions import refuse_exposed
from cachetier.remote.call_policy import DOCTOR_HINT

if TYPE_CHECKING:
    from cachetier_client.bucket_format.documents import Manifest

    from cachetier.remote.bucket import Bucket

Measured = TypeVar("Measured")
MOUNTINFO = Path("/proc/self/mountinfo")
_SHARE_OF_FREE = 10  # a tenth of what is free is written at most


def check_filesystem(subject: Subject) -> CheckResult:
    path, mount = _mount(subject)
    return judge_filesystem(path, mount, allow_volatile=subject.allow_volatile)


def check_device(subject: Subject) -> CheckResult:
    return judge_device(_device(subject), _mount(subject)[1])


def check_directory(subject: Subject) -> CheckResult:
    def probed(place: Path) -> CheckResult:
        try:
            owner = place.parent.stat().st_uid  # root looks after the service of another user
            refuse_exposed(place.parent, os.geteuid() or owner)
            return judge_directory(data_files.probe(place), None)
        except ConfigError as error:
            return judge_directory(None, error)

    return _written(subject, probed)


def check_sync(subject: Subject) -> CheckResult:
    def measured(place: Path) -> CheckResult:
        written, synced = rawdisk.synced_writes(place, subject.sync_seconds)
        return judge_sync(written, synced, _device(subject))

    return _written(subject, measured)


def check_direct_io(subject: Subject) -> CheckResult:
    def measured(place: Path) -> CheckResult:
        needs = rawdisk.direct_io(place)
        return judge_direct_io(None if needs is None else (needs.memory_bytes, needs.offset_bytes))

    return _written(subject, measured)


def check_write_rate(subject: Subject) -> CheckResult:
    def measured(place: Path) -> CheckResult:
        room = _free_bytes(place) // _SHARE_OF_FREE
        size_bytes = min(subject.write_bytes, room) // rawdisk.BLOCK_BYTES * rawdisk.BLOCK_BYTES
        if size_bytes == 0:
            return skipped("too little space is free for the test")
        data = rawdisk.random_memory(size_bytes)
        seconds = rawdisk.write_file(place / "large", data)
        known = largest_known(subject)
        return judge_write_rate(size_bytes, seconds, known[0] if known else None)

    return _written(subject, measured)


def check_space(subject: Subject) -> CheckResult:
    place = _nearest(subject.cache_dir)
    capacity_bytes = _capacity_bytes(subject, _total_bytes(place))
    return judge_space(
        capacity_bytes,
        _used_bytes(subject.cache_dir),
        _free_bytes(place),
        largest_known(subject),
        promised_bytes=subject.promised_bytes,
    )


def check_quota(subject: Subject) -> CheckResult:
    place = _nearest(subject.cache_dir)
    total_bytes = _total_bytes(place)
    capacity_bytes = _capacity_bytes(subject, total_bytes)
    return judge_quota(_mount(subject)[1], project_of(place), total_bytes, capacity_bytes)


# --- how it is measured --------------------------------------------------------------------------


def _written(subject: Subject, measure: Callable[[Path], CheckResult]) -> CheckResult:
    """Measure in a directory of our own; say so where there can be none."""
    try:
        with scratch(subject.cache_dir) as place:
            return measure(place)
    except OSError as error:
        fix = "Run it as the service's user, or let that user create and write cache_dir."
        return fail(f"{error.filename or subject.cache_dir}: {error.strerror}", fix)


def _mount(subject: Subject) -> tuple[Path, MountedDisk]:
    path = Path(os.path.realpath(subject.cache_dir))
    return path, mount_of(path, MOUNTINFO.read_text(errors="surrogateescape"))


def _device(subject: Subject) -> Device | None:
    mount = _mount(subject)[1]
    return device_at(mount.device, mount.source)


def _nearest(path: Path) -> Path:
    """Return the directory itself, or the first above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _free_bytes(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _total_bytes(place: Path) -> int:
    """Return what the filesystem has, or the limit of the project that a directory is in."""
    status = os.statvfs(place)
    return status.f_blocks * status.f_frsize


def _capacity_bytes(subject: Subject, total_bytes: int) -> int:
    if subject.service is not None:
        return int(subject.service["capacity_bytes"])
    return subject.capacity_bytes(total_bytes)


def _used_bytes(cache_dir: Path) -> int:
    """Return what the cache's files take; what cannot be read counts as nothing."""
    used = 0
    for directory, _names, names in os.walk(cache_dir):
        for name in names:
            try:
                used += data_files.bytes_on_disk(os.lstat(os.path.join(directory, name)))
            except OSError:
                continue
    return used


RUNS, STEPS = 20, 1
RANKS_ON_NODE = 8
_KEY = "largest"


def largest_known(subject: Subject) -> tuple[int, str] | None:
    """Return the largest save to expect here and where that is known from, None if nobody knows."""
    if subject.checkpoint_bytes is not None:
        return subject.checkpoint_bytes, "as told"
    if _KEY not in subject.remembered:
        subject.remembered[_KEY] = _looked_up(subject)
    found: tuple[int, str] | None = subject.remembered[_KEY]
    return found


def _looked_up(subject: Subject) -> tuple[int, str] | None:
    from cachetier.local.repair.open_catalog import largest_save

    in_catalog = largest_save(subject.cache_dir)
    if in_catalog:
        return in_catalog, "of this node's so far"
    if not subject.remotes or subject.skip_remote:
        return None
    from cachetier.remote.factory import open_remote

    with contextlib.suppress(CachetierError):
        bucket = open_remote(subject.remotes[0], policy=DOCTOR_HINT)
        return largest_part(_newest(bucket))
    return None


def _newest(bucket: Bucket) -> Iterator[Manifest]:
    """Yield the newest published step of the first runs in the bucket."""
    prefix = f"{bucket.layout.prefix}/" if bucket.layout.prefix else ""
    runs = bucket.objects.list(prefix, "/").prefixes[:RUNS]
    for run in (found[len(prefix) :].rstrip("/") for found in runs):
        for step in bucket.steps(run)[-STEPS:]:
            with contextlib.suppress(CachetierError):
                manifest = bucket.published(run, step)
                if manifest is not None:
                    yield manifest


def largest_part(manifests: Iterator[Manifest]) -> tuple[int, str] | None:
    """Return what a node would hold of the largest of these steps, eight ranks to a node."""
    sizes = [
        sum(sorted((part.size_bytes for part in manifest.parts), reverse=True)[:RANKS_ON_NODE])
        for manifest in manifests
    ]
    if not sizes:
        return None
    return max(sizes), f"in the bucket, {RANKS_ON_NODE} ranks to a node"


LOCAL_DISK = "Put cache_dir on an ext4 or XFS filesystem on an NVMe of this machine."
TESTED = frozenset({"ext4", "xfs"})
COPY_ON_WRITE = frozenset({"bcachefs", "btrfs", "zfs"})
PROJECT_QUOTAS = frozenset({"prjquota", "pquota"})
QUOTA_SHARE = 1.2  # of the capacity: the catalog and its reserve need room as well
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
    DeviceKind.UNKNOWN: "a disk of an unknown kind",
}
_DEVICE_FIXES = {
    DeviceKind.SSD: "It works, at the speed of its bus. Use an NVMe where ranks wait for saves.",
    DeviceKind.HDD: "Use an NVMe: every commit waits for this disk to rotate.",
    DeviceKind.VIRTUAL: "Ask who runs the hypervisor for a local NVMe passed through, and "
    "whether its flush reaches the disk: nothing inside this machine can tell.",
    DeviceKind.NETWORK: "Use the instance's own NVMe: saves share this disk's network, and "
    "its limits.",
    DeviceKind.LOOP: "Put cache_dir on the disk itself: every write goes through two filesystems.",
    DeviceKind.UNKNOWN: "Make sure that it is a local disk that keeps what it has synced.",
}


def judge_filesystem(path: Path, mount: MountedDisk, *, allow_volatile: bool) -> CheckResult:
    """Say by name which filesystem it is, and whether a commit is safe there."""
    values = {"filesystem": called(mount), "mount_point": mount.point}
    try:
        refuse_unsafe(path, mount, allow_volatile=allow_volatile)
    except ConfigError as error:
        measured = error.message.replace(f"on {mount.kind},", f"on {called(mount)},")
        return fail(measured, error.hint, **values)
    where = f"{called(mount)} at {mount.point}"
    if off := WITHOUT_BARRIERS.intersection(mount.options):
        fix = f"Mount it without `{min(off)}`: a sync that flushes nothing loses what was acked."
        return fail(f"{where}, mounted with {min(off)}", fix, **values)
    if mount.kind in TESTED:
        return ok(where, **values)
    if mount.kind in ("tmpfs", "ramfs"):
        fix = "For tests only: a power loss destroys everything. " + LOCAL_DISK
        return warn(f"{where}, which is memory (allow_volatile is on)", fix, **values)
    if mount.kind in COPY_ON_WRITE:
        fix = (
            f"{LOCAL_DISK} It works here, but syncs of a filesystem that copies on write are slow."
        )
        return warn(where, fix, **values)
    return warn(f"{where}, which cachetier is not tested on", LOCAL_DISK, **values)


def called(mount: MountedDisk) -> str:
    """Return what people call a filesystem: Windows' drives come as 9p."""
    is_drive = any(option.startswith("aname=drvfs") for option in mount.options)
    return f"{mount.kind} (drvfs, a Windows drive)" if is_drive else mount.kind


def judge_device(device: Device | None, mount: MountedDisk) -> CheckResult:
    """Say whether the disk is a real, local NVMe."""
    if device is None:
        if mount.kind in ("tmpfs", "ramfs"):
            return skipped(f"{mount.kind} has no disk")
        return skipped(f"the system does not tell which disk {mount.source or 'it'} is on")
    measured = f"{_KINDS[device.kind]} ({device.shown})"
    values = {"device": device.name, "model": device.model, "kind": str(device.kind)}
    if device.kind is DeviceKind.NVME:
        return ok(measured, **values)
    if device.kind is DeviceKind.MEMORY:
        fix = f"{LOCAL_DISK} Nothing here survives the loss of power."
        return fail(measured, fix, **values)
    return warn(measured, _DEVICE_FIXES[device.kind], **values)


def judge_directory(able: dict[str, bool] | None, refusal: ConfigError | None) -> CheckResult:
    """Say whether the service could commit here: create, lease, mark and sync a file."""
    if refusal is not None or able is None:
        message = refusal.message if refusal is not None else "it cannot be tried"
        return fail(message, refusal.hint if refusal is not None else LOCAL_DISK)
    if not able["attributes"]:
        fix = "Mount it with extended attributes (user_xattr): they rebuild a lost catalog."
        return warn("files sync and tell their writers; no extended attributes", fix, **able)
    return ok("files sync, tell their writers and keep attributes", **able)


def judge_sync(written: Times, synced: Times, device: Device | None) -> CheckResult:
    """Say how long the sync of 4 KiB takes, and whether it can have reached the disk."""
    p50, p99 = synced.p50_seconds, synced.p99_seconds
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
        return fail(f"{measured}: the sync does not reach a disk", fix, **values)
    if doubt := _doubt(alone, device):
        fix = "Make sure that the disk's write cache survives the loss of power, or turn it off."
        return warn(f"{measured}: {doubt}", fix, **values)
    if p50 > SLOW_SYNC_SECONDS or p99 > SLOW_P99_SECONDS:
        fix = "Each commit waits that long. Use an NVMe with power-loss protection, or less load."
        return warn(f"{measured}: slow", fix, **values)
    return ok(measured, **values)


def _doubt(sync_seconds: float, device: Device | None) -> str:
    """Say why such a disk cannot be so quick; empty where it can."""
    if device is None:
        return ""
    if device.kind is DeviceKind.HDD and sync_seconds < ONE_TURN_SECONDS:
        return "too fast for a rotating disk: its write cache answers"
    physical = device.kind in (DeviceKind.NVME, DeviceKind.SSD)
    if physical and device.volatile_cache and sync_seconds < FLUSHED_CACHE_SECONDS:
        return "too fast for a disk that reports a volatile write cache"
    return ""


def judge_direct_io(alignment: tuple[int, int] | None) -> CheckResult:
    """Say whether bytes can pass by the page cache, and what that asks of memory and offsets."""
    if alignment is None:
        fix = "Use ext4 or XFS on a disk that takes O_DIRECT: else puts fill the page cache."
        return warn("the filesystem refuses O_DIRECT", fix, direct_io=False)
    memory_bytes, offset_bytes = alignment
    return ok(
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
        return warn(measured, fix, **values)
    return ok(measured, **values)


def judge_space(
    capacity_bytes: int,
    used_bytes: int,
    free_bytes: int,
    checkpoint: tuple[int, str] | None,
    *,
    promised_bytes: int = 0,
) -> CheckResult:
    """Say whether the budget is there, and holds the largest checkpoint twice.

    Twice: one that drains while the next arrives.

    Args:
        used_bytes: What the cache directory takes already.
        free_bytes: What the filesystem has left for this user.
        checkpoint: This node's largest, and where that is known from.
        promised_bytes: What the shares of all principals add up to.
    """
    there = used_bytes + free_bytes
    values = {"capacity_bytes": capacity_bytes, "used_bytes": used_bytes, "free_bytes": free_bytes}
    measured = f"capacity {shown_size(capacity_bytes)}, of which the disk has {shown_size(there)}"
    if checkpoint is not None:
        size_bytes, origin = checkpoint
        values["largest_save_bytes"] = size_bytes
        measured += f"; largest save {shown_size(size_bytes)} ({origin})"
        if size_bytes > min(capacity_bytes, there):
            fix = f"Give the cache at least {shown_size(2 * size_bytes)}, or save less at a time."
            return fail(measured, fix, **values)
    if capacity_bytes > there:
        fix = f"Set capacity to at most {shown_size(there)}, or free the disk of other files."
        return warn(measured, fix, **values)
    if checkpoint is not None and 2 * checkpoint[0] > capacity_bytes:
        fix = f"Set capacity to {shown_size(2 * checkpoint[0])}: one save drains as the next comes."
        return warn(measured, fix, **values)
    if promised_bytes > capacity_bytes:
        measured += f"; principals may have {shown_size(promised_bytes)} together"
        fix = "Lower their `bytes`, or the cache may be full before a share is."
        return warn(measured, fix, **values)
    if checkpoint is None:
        measured += "; no save is known here yet (--checkpoint-size tells)"
    return ok(measured, **values)


def judge_quota(
    mount: MountedDisk, project: int, total_bytes: int, capacity_bytes: int
) -> CheckResult:
    """Say whether a project quota bounds what ranks can write, whatever they have reserved.

    Args:
        project: That of cache_dir; 0 is none.
        total_bytes: What its filesystem has in all, or its project may take.
    """
    enforced = bool(PROJECT_QUOTAS.intersection(mount.options))
    values = {"project_quotas": enforced, "project": project, "limit_bytes": total_bytes}
    if not enforced or not project:
        on = "is in no project" if enforced else "is not under a project quota"
        seen = "writes beyond a reservation are found and refused 20 times a second"
        return ok(f"cache_dir {on}: {seen}", **values)
    bound = f"the quota of project {project} ends the cache at {shown_size(total_bytes)}"
    if total_bytes > QUOTA_SHARE * capacity_bytes:
        fix = f"Set its hard limit to {shown_size(int(QUOTA_SHARE * capacity_bytes))} or less."
        return warn(f"{bound}, for a capacity of {shown_size(capacity_bytes)}", fix, **values)
    return ok(bound + (", but for root" if mount.kind == "ext4" else ""), **values)
