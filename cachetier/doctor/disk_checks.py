"""The checks of the cache's disk: measure, then let ``disk`` judge."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cachetier.doctor import disk, rawdisk
from cachetier.doctor.device import Device, device_at
from cachetier.doctor.findings import CheckResult, fail, skipped
from cachetier.doctor.save_size import largest_known
from cachetier.doctor.scratch import scratch
from cachetier.doctor.subject import Patient
from cachetier.errors import ConfigError
from cachetier.local.files import data_files
from cachetier.local.files.filesystem import Mount, mount_of

Measured = TypeVar("Measured")
MOUNTINFO = Path("/proc/self/mountinfo")
_SHARE_OF_FREE = 10  # a tenth of what is free is written at most


def check_filesystem(patient: Patient) -> CheckResult:
    path, mount = _mount(patient)
    return disk.judge_filesystem(path, mount, allow_volatile=patient.allow_volatile)


def check_device(patient: Patient) -> CheckResult:
    return disk.judge_device(_device(patient), _mount(patient)[1])


def check_directory(patient: Patient) -> CheckResult:
    def probed(place: Path) -> CheckResult:
        try:
            return disk.judge_directory(data_files.probe(place), None)
        except ConfigError as error:
            return disk.judge_directory(None, error)

    return _written("directory", patient, probed)


def check_sync(patient: Patient) -> CheckResult:
    def measured(place: Path) -> CheckResult:
        written, synced = rawdisk.synced_writes(place, patient.sync_seconds)
        return disk.judge_sync(written, synced, _device(patient))

    return _written("sync", patient, measured)


def check_direct_io(patient: Patient) -> CheckResult:
    def measured(place: Path) -> CheckResult:
        needs = rawdisk.direct_io(place)
        return disk.judge_direct_io(
            None if needs is None else (needs.memory_bytes, needs.offset_bytes)
        )

    return _written("direct-io", patient, measured)


def check_write_rate(patient: Patient) -> CheckResult:
    def measured(place: Path) -> CheckResult:
        room = _free_bytes(place) // _SHARE_OF_FREE
        size_bytes = min(patient.write_bytes, room) // rawdisk.BLOCK_BYTES * rawdisk.BLOCK_BYTES
        if size_bytes == 0:
            return skipped("write-rate", "too little is free to try")
        data = rawdisk.random_memory(size_bytes)
        seconds = rawdisk.write_file(place / "large", data)
        known = largest_known(patient)
        return disk.judge_write_rate(size_bytes, seconds, known[0] if known else None)

    return _written("write-rate", patient, measured)


def check_space(patient: Patient) -> CheckResult:
    place = _nearest(patient.cache_dir)
    status = os.statvfs(place)
    if patient.service is not None:
        capacity_bytes = int(patient.service["capacity_bytes"])
    else:
        capacity_bytes = patient.capacity_bytes(status.f_blocks * status.f_frsize)
    return disk.judge_space(
        capacity_bytes, _used_bytes(patient.cache_dir), _free_bytes(place), largest_known(patient)
    )


# --- how it is measured --------------------------------------------------------------------------


def _written(name: str, patient: Patient, measure: Callable[[Path], CheckResult]) -> CheckResult:
    """Measure in a directory of our own; say so where there can be none."""
    try:
        with scratch(patient.cache_dir) as place:
            return measure(place)
    except OSError as error:
        fix = "Run it as the service's user, or let that user create and write cache_dir."
        return fail(name, f"{error.filename or patient.cache_dir}: {error.strerror}", fix)


def _mount(patient: Patient) -> tuple[Path, Mount]:
    path = Path(os.path.realpath(patient.cache_dir))
    return path, mount_of(path, MOUNTINFO.read_text(errors="surrogateescape"))


def _device(patient: Patient) -> Device | None:
    mount = _mount(patient)[1]
    return device_at(mount.device, mount.source)


def _nearest(path: Path) -> Path:
    """Return the directory itself, or the first above it that exists."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _free_bytes(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _used_bytes(cache_dir: Path) -> int:
    """Return what the cache's files take; what cannot be read counts as nothing."""
    used = 0
    for directory, _names, names in os.walk(cache_dir):
        for name in names:
            try:
                used += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    return used
