"""Where the drain's own CPU group may be made: paths read from fakes, and the real thing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachetier.drain.priority import cgroup
from cachetier.drain.priority.cgroup import NAME as PREFIX
from cachetier.drain.priority.cgroup import (
    CpuGroup,
    Hierarchy,
    find_group,
    hierarchies,
    make_group,
    sweep,
)
from cachetier.drain.priority.policy import CpuPriority

NAME = f"{PREFIX}test"


def fake_proc(tmp_path: Path, groups: list[str], mounts: list[str]) -> Path:
    proc = tmp_path / "proc"
    proc.mkdir(exist_ok=True)
    (proc / "cgroup").write_text("".join(f"{line}\n" for line in groups))
    (proc / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    return proc


def mounted(point: Path | str, kind: str, options: str = "rw", root: str = "/") -> str:
    shown = str(point).replace(" ", "\\040")
    return f"30 24 0:26 {root} {shown} rw,nosuid - {kind} {kind} {options}"


@pytest.mark.parametrize(
    ("groups", "mounts", "found"),
    [
        # version 2 alone, below the root
        (["0::/a/b"], [mounted("/cg", "cgroup2")], [Hierarchy(2, Path("/cg/a/b"), False)]),
        # a container that sees its own group as the root
        (["0::/"], [mounted("/cg", "cgroup2")], [Hierarchy(2, Path("/cg"), True)]),
        # both: version 2 comes first, whatever the order
        (
            ["9:name=systemd:/", "1:cpu,cpuacct:/x", "0::/y"],
            [mounted("/cg/cpu", "cgroup", "rw,cpu,cpuacct"), mounted("/cg/u", "cgroup2")],
            [Hierarchy(2, Path("/cg/u/y"), False), Hierarchy(1, Path("/cg/cpu/x"), False)],
        ),
        # cpuset and cpuacct are other controllers
        (
            ["3:cpuset:/", "2:cpuacct:/", "1:cpu:/"],
            [mounted("/cg/cpuset", "cgroup", "rw,cpuset"), mounted("/cg/cpu", "cgroup", "rw,cpu")],
            [Hierarchy(1, Path("/cg/cpu"), True)],
        ),
        # a part of the hierarchy is mounted, as in containers of version 1
        (
            ["4:cpu:/docker/abc"],
            [mounted("/cg/cpu", "cgroup", "rw,cpu", root="/docker/abc")],
            [Hierarchy(1, Path("/cg/cpu"), True)],
        ),
        (
            ["4:cpu:/docker/abc"],
            [mounted("/cg/cpu", "cgroup", "rw,cpu", root="/docker/other")],
            [],
        ),
        (["0::/a b"], [mounted("/c g", "cgroup2")], [Hierarchy(2, Path("/c g/a b"), False)]),
        # nothing that makes sense
        ([], [], []),
        (["0::/../up"], [mounted("/cg", "cgroup2")], []),
        (["nonsense", "1:cpu", "::"], ["nonsense", "1 2 3 - ", "- cgroup2 a b"], []),
    ],
)
def test_the_own_group_is_found(
    tmp_path: Path, groups: list[str], mounts: list[str], found: list[Hierarchy]
) -> None:
    assert hierarchies(fake_proc(tmp_path, groups, mounts)) == found


def test_without_any_control_groups_there_is_none(tmp_path: Path) -> None:
    assert hierarchies(tmp_path / "nothing") == []
    assert make_group(NAME, tmp_path / "nothing") is None
    sweep(tmp_path / "nothing")


def version_1(tmp_path: Path) -> tuple[Path, Path]:
    """Return a group of version 1 and its ``proc``."""
    own = tmp_path / "cpu"
    own.mkdir()
    return own, fake_proc(tmp_path, ["1:cpu:/"], [mounted(own, "cgroup", "rw,cpu")])


def made_with(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let every new directory have these files, as control groups do."""
    mkdir = Path.mkdir

    def make(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        mkdir(self, mode, parents, exist_ok)
        for name in ("cgroup.procs", *names):
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", make)


def test_a_group_of_version_1_stands_last_or_has_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, proc = version_1(tmp_path)
    made_with(monkeypatch, "cpu.shares")
    group = make_group(NAME, proc)
    assert group is not None
    assert group.path == own / NAME
    assert (group.path / "cpu.shares").read_text() == "2"
    assert group.set_priority(CpuPriority.SHARE) == "cpu.shares=15"
    assert (group.path / "cpu.shares").read_text() == "15"
    assert group.set_priority(CpuPriority.LARGE_SHARE) == "cpu.shares=70"
    group.enter()
    assert (group.path / "cgroup.procs").read_text() == str(os.getpid())
    found = find_group(NAME, proc)
    assert found is not None
    assert found.path == group.path
    assert (group.path / "cpu.shares").read_text() == "70"
    assert find_group(f"{NAME}-other", proc) is None


def test_a_kernel_that_knows_idle_groups_is_asked_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _own, proc = version_1(tmp_path)
    made_with(monkeypatch, "cpu.shares", "cpu.idle")
    group = make_group(NAME, proc)
    assert group is not None
    assert group.set_priority(CpuPriority.LAST) == "cpu.idle=1"
    assert (group.path / "cpu.idle").read_text() == "1"
    assert group.set_priority(CpuPriority.SHARE) == "cpu.shares=15"
    assert (group.path / "cpu.idle").read_text() == "0"


def test_a_group_without_a_cpu_share_is_not_left_behind(tmp_path: Path) -> None:
    own, proc = version_1(tmp_path)

    assert make_group(NAME, proc) is None
    assert list(own.iterdir()) == []


def version_2(tmp_path: Path, path: str) -> tuple[Path, Path]:
    own = tmp_path / "cg" / path.strip("/")
    own.mkdir(parents=True)
    return own, fake_proc(tmp_path, [f"0::{path}"], [mounted(tmp_path / "cg", "cgroup2")])


def test_at_the_root_of_version_2_the_group_is_a_child_if_the_cpu_is_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, proc = version_2(tmp_path, "/")
    assert make_group(NAME, proc) is None
    (own / "cgroup.subtree_control").write_text("cpuset memory")
    assert make_group(NAME, proc) is None
    (own / "cgroup.subtree_control").write_text("cpuset cpu memory")
    made_with(monkeypatch, "cpu.weight")
    group = make_group(NAME, proc)

    assert group is not None
    assert group.path == own / NAME
    assert (group.path / "cpu.weight").read_text() == "1"
    assert group.set_priority(CpuPriority.SHARE) == "cpu.weight=2"
    assert group.set_priority(CpuPriority.LARGE_SHARE) == "cpu.weight=7"


def test_below_a_group_that_was_delegated_it_is_a_sibling_of_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, proc = version_2(tmp_path, "/unit/serve")
    (own.parent / "cgroup.subtree_control").touch()
    made_with(monkeypatch, "cpu.weight")
    assert make_group(NAME, proc) is None
    monkeypatch.setattr(cgroup, "_is_delegated", lambda path: path == own.parent)
    group = make_group(NAME, proc)

    assert group is not None
    assert group.path == own.parent / NAME
    assert (own.parent / "cgroup.subtree_control").read_text() == "+cpu"


def test_only_empty_groups_of_drains_are_swept_away(tmp_path: Path) -> None:
    own, proc = version_1(tmp_path)
    for name in (NAME, f"{NAME}-of-another", f"{NAME}-with-somebody", "other"):
        (own / name).mkdir()
    (own / f"{NAME}-with-somebody" / "somebody").touch()
    sweep(proc)

    assert sorted(path.name for path in own.iterdir()) == [f"{NAME}-with-somebody", "other"]


def test_a_real_group_is_entered_ranked_and_removed() -> None:
    name = f"{NAME}-{os.getpid()}"
    group = make_group(name)
    if group is None:
        pytest.skip("no control group for the CPU can be made here")
    try:
        inside = _in_group(group)
        assert [line for line in inside if line.endswith(f"/{name}")]
        assert group.set_priority(CpuPriority.SHARE) != group.set_priority(CpuPriority.LAST)
    finally:
        sweep()

    assert not group.path.exists()


def _in_group(group: CpuGroup) -> list[str]:
    """Return the groups of a process after it entered."""
    code = (
        "import sys; from pathlib import Path\n"
        "from cachetier.drain.priority.cgroup import CpuGroup\n"
        "CpuGroup(Path(sys.argv[1]), 1).enter()\n"
        "print(Path('/proc/self/cgroup').read_text())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(group.path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ended.stdout.split("\n")
