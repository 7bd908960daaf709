"""Power is cut on ext4 and on XFS, by their own shutdown: nothing acknowledged may be lost.

A cut counts only if a write right after it was refused, and if something acknowledged was not
published yet.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier import libc
from cachetier.errors import CachetierError
from tests.crash import real_disk
from tests.crash.real_disk import cut_through_a_life, loop_disk, told_by_child
from tests.crash.sweep import Remote
from tests.fakes.fake_clock import FakeClock
from tests.fakes.loop_disk import EXT4, can_mount, xfs
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import ViolationError
from tests.stateful.node import Node

SMALL, LARGE = bytes(range(200)), bytes(range(250)) * 300
SEEDS_ON_EXT4, SEEDS_ON_XFS = range(100), range(25)

needs_ext4 = pytest.mark.skipif(
    not can_mount(), reason="needs root, loop devices and mkfs.ext4 of e2fsprogs"
)
needs_xfs = pytest.mark.skipif(
    not can_mount(xfs()), reason="needs root, loop devices and mkfs.xfs: `make xfs` gets it"
)


@needs_ext4
@pytest.mark.parametrize("seed", share_of(share_of(SEEDS_ON_EXT4)))
def test_nothing_acknowledged_is_lost_when_the_power_of_ext4_goes(
    seed: int, request: pytest.FixtureRequest
) -> None:
    with loop_disk(EXT4) as disk:
        count(request, "power cuts on ext4", cut_through_a_life(disk, seed), seed)


@needs_xfs
@pytest.mark.parametrize("seed", share_of(share_of(SEEDS_ON_XFS)))
def test_nothing_acknowledged_is_lost_when_the_power_of_xfs_goes(
    seed: int, request: pytest.FixtureRequest
) -> None:
    with loop_disk(xfs()) as disk:
        count(request, "power cuts on XFS", cut_through_a_life(disk, seed), seed)


@needs_ext4
@pytest.mark.parametrize("forgotten", ["data", "catalog"])
def test_a_service_that_forgets_to_sync_is_caught(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forgotten == "data":
        monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
        monkeypatch.setattr(os, "fdatasync", lambda _descriptor: None)
    else:
        monkeypatch.setattr(real_disk._CountedFile, "xSync", lambda _file, _flags: None)

    with loop_disk(EXT4) as disk, pytest.raises(ViolationError):
        cut_through_a_life(disk, seed=0)


@needs_ext4
@pytest.mark.parametrize("stopped", ["stopped", "killed"])
def test_a_copied_directory_that_nobody_synced_survives_once_its_service_has_started(
    tmp_path: Path, stopped: str
) -> None:
    assert _read_after_a_copy_and_a_cut(tmp_path / "cache", stopped) == [SMALL, LARGE]


@needs_ext4
@pytest.mark.parametrize("stopped", ["stopped", "killed"])
def test_a_start_that_leaves_a_copy_unsynced_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: str
) -> None:
    monkeypatch.setattr(libc, "syncfs", lambda _descriptor: None)

    with pytest.raises(CachetierError):
        _read_after_a_copy_and_a_cut(tmp_path / "cache", stopped)


def _read_after_a_copy_and_a_cut(original: Path, stopped: str) -> list[bytes]:
    """Copy a node's directory, start its service, and cut the power; return what can be read."""
    node = Node(original, Remote(), FakeClock(), vfs="unix")
    for name, data in (("small", SMALL), ("large", LARGE)):
        node.put(SaveIds("run", 1, "save"), name, data)
    if stopped == "stopped":
        node.close()
    else:
        node.die()
    with loop_disk(EXT4) as disk:
        copy = disk.path / "cache"
        shutil.copytree(original, copy)

        def start(tell: Callable[[object], NoReturn]) -> None:
            Node(copy, Remote(), FakeClock(), vfs="unix")
            disk.cut_power()
            tell("the power is cut")

        assert told_by_child(start) == "the power is cut"
        disk.power_on()
        node = Node(copy, Remote(), FakeClock(), vfs="unix")
        try:
            return [node.get("run", 1, "small"), node.get("run", 1, "large")]
        finally:
            node.die()
