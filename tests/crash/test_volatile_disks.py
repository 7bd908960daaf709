"""Power is cut on a disk with a volatile cache: of what no flush followed, pieces survive by luck.

What a service writes again and again in one place, as the log of a catalog, is then found torn:
some pieces are new, some as they were at any time since the last flush.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product

import pytest

from tests.crash import real_disk
from tests.crash.real_disk import cut_through_a_life, volatile_disk
from tests.crash.workload import ObjectWorkload, Workload
from tests.fakes.volatile_disk import can_forget
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import ViolationError

LIVES = list(product(range(25), (Workload, ObjectWorkload)))
LATE = 3

pytestmark = [
    pytest.mark.skipif(
        not can_forget(), reason="needs root, /dev/fuse, loop devices and mkfs.ext4 of e2fsprogs"
    ),
]


@pytest.mark.parametrize(("seed", "plays"), share_of(share_of(LIVES)))
def test_nothing_acknowledged_is_lost_when_a_disk_forgets_pieces_of_what_was_not_flushed(
    seed: int, plays: type[Workload], request: pytest.FixtureRequest
) -> None:
    with volatile_disk(seed) as disk:
        cuts = cut_through_a_life(disk, seed, plays)
    count(request, "power cuts of a volatile disk", cuts, seed)
    count(request, "pieces that a disk forgot", disk.dropped)

    assert disk.dropped > cuts
    assert disk.kept > cuts


def forget_to_sync_data(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "fsync", lambda _descriptor: None)
    patch.setattr(os, "fdatasync", lambda _descriptor: None)


def sync_data_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Each sync in a life comes three later: of a file, once what it is for was answered."""
    real, owed, judge = os.fdatasync, list[int](), os.getpid()

    def late(descriptor: int) -> None:
        if os.getpid() == judge:
            return real(descriptor)
        owed.append(os.dup(descriptor))
        for each in owed[:-LATE]:
            real(each)
            os.close(each)
        del owed[:-LATE]
        return None

    patch.setattr(os, "fsync", late)
    patch.setattr(os, "fdatasync", late)


def forget_to_sync_the_catalog(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(real_disk._CountedFile, "xSync", lambda _file, _flags: None)


def sync_the_catalog_after_the_answer(patch: pytest.MonkeyPatch) -> None:
    """Each sync of the catalog comes before its next write."""
    files = real_disk._CountedFile
    sync, write, owed = files.xSync, files.xWrite, set[int]()

    def late(file: real_disk._CountedFile, data: bytes, offset: int) -> None:
        if id(file) in owed:
            sync(file, 2)
            owed.discard(id(file))
        write(file, data, offset)

    patch.setattr(files, "xSync", lambda file, _flags: owed.add(id(file)))
    patch.setattr(files, "xWrite", late)


@pytest.mark.parametrize("plays", [Workload, ObjectWorkload])
@pytest.mark.parametrize(
    "plant",
    [
        forget_to_sync_data,
        sync_data_after_the_answer,
        forget_to_sync_the_catalog,
        sync_the_catalog_after_the_answer,
    ],
)
def test_a_service_that_answers_before_its_disk_was_flushed_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    plays: type[Workload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)

    with pytest.raises(ViolationError):  # lives go on until one is caught
        for seed in range(5):
            with volatile_disk(seed) as disk:
                cut_through_a_life(disk, seed, plays)
