"""What control groups of both versions allow, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.doctor.limits import CgroupLimits, limits_of


class Machine:
    """A made-up /proc and the groups it points to."""

    def __init__(self, root: Path) -> None:
        self.proc, self.groups = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.groups.mkdir()
        self._mounts: list[str] = []

    def mount(self, kind: str, point: str = "", options: str = "rw", root: str = "/") -> None:
        where = self.groups / point if point else self.groups
        self._mounts.append(f"30 1 0:26 {root} {where} rw - {kind} {kind} {options}")
        (self.proc / "self/mountinfo").write_text("\n".join(self._mounts))

    def member(self, text: str, pid: str = "self") -> None:
        (self.proc / pid).mkdir(exist_ok=True)
        (self.proc / pid / "cgroup").write_text(text)

    def write(self, path: str, text: str) -> None:
        file = self.groups / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_version_2_takes_the_least_limit_on_the_way_up(machine: Machine) -> None:
    machine.mount("cgroup2")
    machine.member("0::/pods/one\n")
    machine.write("pods/one/memory.max", "max")
    machine.write("pods/memory.max", "1073741824")
    machine.write("pods/one/cpu.max", "150000 100000")
    machine.write("pods/cpu.max", "max 100000")
    machine.write("pods/io.max", "8:0 rbps=1 wbps=2\n259:0 rbps=max wbps=104857600 riops=max")
    assert limits_of(None, "259:0", machine.proc) == CgroupLimits(1 << 30, 1.5, None, 104857600)


def test_version_1_has_a_hierarchy_for_each_controller(machine: Machine) -> None:
    for name in ("memory", "cpu", "blkio"):
        machine.mount("cgroup", name, f"rw,{name}")
    machine.member("4:memory:/a\n2:cpu,cpuacct:/b\n1:blkio:/c\n")
    machine.write("memory/a/memory.limit_in_bytes", str(2 << 30))
    machine.write("memory/memory.limit_in_bytes", "9223372036854771712")
    machine.write("cpu/b/cpu.cfs_quota_us", "50000")
    machine.write("cpu/b/cpu.cfs_period_us", "100000")
    machine.write("blkio/c/blkio.throttle.read_bps_device", "259:0 1000")
    assert limits_of(None, "259:0", machine.proc) == CgroupLimits(2 << 30, 0.5, 1000, None)


def test_a_container_sees_its_own_group_as_the_root(machine: Machine) -> None:
    machine.mount("cgroup2", root="/docker/abc")
    machine.member("0::/docker/abc\n")
    machine.write("memory.max", "500")
    assert limits_of(None, "", machine.proc).memory_bytes == 500


def test_another_process_has_limits_of_its_own(machine: Machine) -> None:
    machine.mount("cgroup2")
    machine.member("0::/\n")
    machine.member("0::/service\n", "42")
    machine.write("service/memory.max", "700")
    assert limits_of(42, "", machine.proc).memory_bytes == 700
    assert limits_of(None, "", machine.proc).memory_bytes is None


def test_a_machine_without_groups_has_no_limits(machine: Machine) -> None:
    assert limits_of(None, "259:0", machine.proc) == CgroupLimits()
