"""What doctor says of a disk: every kind of filesystem and disk, honest and dishonest syncs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.units import shown_time

from cachetier.doctor import disk
from cachetier.doctor.device import Device, DeviceKind
from cachetier.doctor.findings import State
from cachetier.doctor.rawdisk import Times
from cachetier.errors import ConfigError
from cachetier.local.files.filesystem import MountedDisk, project_of

NVME = Device("nvme0n1", "SAMSUNG MZQL2", DeviceKind.NVME, volatile_cache=False)


def times(p50: float, p99: float | None = None) -> Times:
    return Times(100, p50, p99 or p50)


@pytest.mark.parametrize(
    ("mount", "state", "named"),
    [
        (MountedDisk("/", "ext4"), State.OK, "ext4"),
        (MountedDisk("/nvme", "xfs"), State.OK, "xfs at /nvme"),
        (MountedDisk("/", "btrfs"), State.WARN, "btrfs"),
        (MountedDisk("/", "zfs"), State.WARN, "zfs"),
        (MountedDisk("/", "f2fs"), State.WARN, "not tested on"),
        (
            MountedDisk("/mnt/c", "9p", options=("rw", "aname=drvfs;path=C:")),
            State.FAIL,
            "Windows",
        ),
        (MountedDisk("/mnt/c", "drvfs"), State.FAIL, "drvfs"),
        (MountedDisk("/", "9p"), State.FAIL, "9p"),
        (MountedDisk("/home", "nfs4"), State.FAIL, "nfs4"),
        (MountedDisk("/s3", "fuse.s3fs"), State.FAIL, "fuse.s3fs"),
        (MountedDisk("/win", "fuseblk"), State.WARN, "fuseblk"),
        (MountedDisk("/", "overlay"), State.FAIL, "overlay"),
        (MountedDisk("/dev/shm", "tmpfs"), State.FAIL, "tmpfs"),
        (MountedDisk("/", "ext4", options=("rw", "nobarrier")), State.FAIL, "nobarrier"),
        (MountedDisk("/", "ext4", options=("rw", "barrier=0")), State.FAIL, "barrier=0"),
    ],
)
def test_each_filesystem_is_called_by_its_name(
    mount: MountedDisk, state: State, named: str
) -> None:
    found = disk.judge_filesystem(Path("/x"), mount, allow_volatile=False)
    assert found.state is state
    assert named in found.measured


def test_memory_that_was_allowed_is_a_warning() -> None:
    found = disk.judge_filesystem(Path("/x"), MountedDisk("/", "tmpfs"), allow_volatile=True)
    assert found.state is State.WARN
    assert "tests only" in found.fix


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (DeviceKind.NVME, State.OK),
        (DeviceKind.SSD, State.WARN),
        (DeviceKind.HDD, State.WARN),
        (DeviceKind.VIRTUAL, State.WARN),
        (DeviceKind.NETWORK, State.WARN),
        (DeviceKind.LOOP, State.WARN),
        (DeviceKind.UNKNOWN, State.WARN),
        (DeviceKind.MEMORY, State.FAIL),
    ],
)
def test_only_a_local_nvme_is_fine(kind: DeviceKind, state: State) -> None:
    found = disk.judge_device(Device("sda", "A model", kind), MountedDisk("/", "ext4"))
    assert found.state is state
    assert "sda, A model" in found.measured


@pytest.mark.parametrize("kind", ["tmpfs", "zfs"])
def test_a_mount_without_a_disk_is_skipped(kind: str) -> None:
    assert disk.judge_device(None, MountedDisk("/", kind, source="pool")).state is State.SKIPPED


def test_a_directory_that_cannot_commit_fails_with_the_errors_own_hint() -> None:
    error = ConfigError("it grants no leases", hint="Use ext4.")
    found = disk.judge_directory(None, error)
    assert (found.state, found.measured, found.fix) == (State.FAIL, error.message, "Use ext4.")


@pytest.mark.parametrize(("attributes", "state"), [(True, State.OK), (False, State.WARN)])
def test_a_directory_without_attributes_is_a_warning(attributes: bool, state: State) -> None:
    able = {"direct_io": True, "leases": True, "attributes": attributes}
    assert disk.judge_directory(able, None).state is state


VOLATILE = Device("nvme0n1", "Some consumer disk", DeviceKind.NVME, volatile_cache=True)
TURNING = Device("sda", "Some rotating disk", DeviceKind.HDD)


@pytest.mark.parametrize(
    ("device", "p50", "p99", "state", "said"),
    [
        (NVME, 25e-6, 40e-6, State.OK, "p50 25 us, p99 40 us"),
        (NVME, 12e-6, 20e-6, State.FAIL, "does not reach a disk"),
        (VOLATILE, 800e-6, 2e-3, State.OK, "p50 800 us"),
        (VOLATILE, 40e-6, 60e-6, State.WARN, "volatile write cache"),
        (TURNING, 500e-6, 9e-3, State.WARN, "too fast for a rotating disk"),
        (TURNING, 8e-3, 20e-3, State.OK, "p50 8.0 ms"),
        (None, 200e-6, 1e-3, State.OK, "p50"),
        (NVME, 20e-3, 30e-3, State.WARN, "slow"),
        (NVME, 1e-3, 0.3, State.WARN, "slow"),
    ],
)
def test_a_sync_is_judged_by_what_the_disk_can_do(
    device: Device | None, p50: float, p99: float, state: State, said: str
) -> None:
    found = disk.judge_sync(times(5e-6), times(p50, p99), device)
    assert found.state is state
    assert said in found.measured
    assert found.values["p50_seconds"] == p50


def test_direct_io_names_its_alignment_or_is_a_warning() -> None:
    assert "512 B" in disk.judge_direct_io((4, 512)).measured
    assert disk.judge_direct_io(None).state is State.WARN


def test_a_slow_disk_is_a_warning_with_what_a_save_takes_there() -> None:
    fast = disk.judge_write_rate(2_000_000_000, 1.0, 8_000_000_000)
    assert fast.state is State.OK
    assert "takes 4.0 s" in fast.measured
    assert disk.judge_write_rate(100_000_000, 1.0, None).state is State.WARN


GB = 10**9


@pytest.mark.parametrize(
    ("capacity", "used", "free", "largest", "state", "fix"),
    [
        (100, 0, 200, 40, State.OK, ""),
        (100, 0, 200, None, State.OK, ""),
        (100, 0, 200, 60, State.WARN, "capacity to 120 GB"),
        (100, 0, 200, 101, State.FAIL, "at least 202 GB"),
        (100, 20, 30, 10, State.WARN, "at most 50.0 GB"),
        (100, 20, 30, 51, State.FAIL, "at least 102 GB"),
    ],
)
def test_there_must_be_room_for_two_saves(
    capacity: int, used: int, free: int, largest: int | None, state: State, fix: str
) -> None:
    known = None if largest is None else (largest * GB, "as told")
    found = disk.judge_space(capacity * GB, used * GB, free * GB, known)
    assert found.state is state
    assert fix in found.fix
    if largest is None:
        assert "--checkpoint-size" in found.measured


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2.6e-6, "2.6 us"), (85e-6, "85 us"), (1.2e-3, "1.2 ms"), (3.4, "3.4 s"), (12.0, "12 s")],
)
def test_short_times_are_shown_in_their_unit(seconds: float, shown: str) -> None:
    assert shown_time(seconds) == shown


QUOTAS_ON = ("rw", "prjquota")
GB = 10**9


@pytest.mark.parametrize(
    ("mount", "project", "limit_bytes", "state", "measured"),
    [
        (MountedDisk("/", "ext4"), 0, 900 * GB, State.OK, "not under a project quota"),
        (MountedDisk("/", "ext4"), 7, 900 * GB, State.OK, "not under a project quota"),
        (MountedDisk("/", "xfs", options=QUOTAS_ON), 0, 900 * GB, State.OK, "in no project"),
        (
            MountedDisk("/", "xfs", options=QUOTAS_ON),
            7,
            110 * GB,
            State.OK,
            "ends the cache at 110 GB",
        ),
        (MountedDisk("/", "ext4", options=QUOTAS_ON), 7, 110 * GB, State.OK, "but for root"),
        (
            MountedDisk("/", "xfs", options=QUOTAS_ON),
            7,
            900 * GB,
            State.WARN,
            "capacity of 100 GB",
        ),
    ],
)
def test_a_project_quota_is_told_and_measured_against_the_capacity(
    mount: MountedDisk, project: int, limit_bytes: int, state: State, measured: str
) -> None:
    found = disk.judge_quota(mount, project, limit_bytes, 100 * GB)
    assert found.state is state
    assert measured in found.measured
    assert found.values["project"] == project


def test_a_directory_that_was_put_into_no_project_is_in_none(tmp_path: Path) -> None:
    assert project_of(tmp_path) == 0
    assert project_of(tmp_path / "missing") == 0


def test_shares_that_are_more_than_the_capacity_are_a_warning() -> None:
    found = disk.judge_space(100 * GB, 0, 200 * GB, None, promised_bytes=150 * GB)
    assert found.state == "warn"
    assert "principals may have 150 GB together" in found.measured
    assert disk.judge_space(100 * GB, 0, 200 * GB, None, promised_bytes=100 * GB).state == "ok"
