"""Power is cut on ext4 and on XFS, by their own shutdown: nothing acknowledged may be lost.

A cut counts only if a write right after it was refused, and if something acknowledged was not
published yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from tests.crash import real_disk
from tests.crash.real_disk import Cut, RealLife, loop_disk
from tests.fakes.loop_disk import EXT4, can_mount, xfs
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import ViolationError

CUTS = 20  # that count, of each life
ATTEMPTS = 100
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
    count(request, "power cuts on ext4", _cut_through_a_life(EXT4, seed), seed)


@needs_xfs
@pytest.mark.parametrize("seed", share_of(share_of(SEEDS_ON_XFS)))
def test_nothing_acknowledged_is_lost_when_the_power_of_xfs_goes(
    seed: int, request: pytest.FixtureRequest
) -> None:
    count(request, "power cuts on XFS", _cut_through_a_life(xfs(), seed), seed)


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

    with pytest.raises(ViolationError):
        _cut_through_a_life(EXT4, seed=0)


def _cut_through_a_life(make: Sequence[str], seed: int) -> int:
    """Cut the power again and again; return how many cuts count."""
    with loop_disk(make) as disk:
        life, cuts = RealLife(disk, seed), list[Cut]()
        while sum(cut.counts for cut in cuts) < CUTS:
            assert len(cuts) < ATTEMPTS, "hardly a cut had anything to lose"
            cuts.append(life.cut())
            assert cuts[-1].refused, "the power is still on"
        life.cut(last=True)
    return sum(cut.counts for cut in cuts)
