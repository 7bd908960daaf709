"""``fsck --repair`` and ``--rebuild`` are killed, or lose power, at every step, and run again.

Whoever starts the node in between gets everything that was promised, or a refusal; and a second
repair ends as one that nobody disturbed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cachetier.errors import CatalogDamagedError, ConfigError
from tests.crash.sweep import Remote
from tests.fakes.fake_clock import FakeClock
from tests.fakes.power_loss import PROCESS_ONLY, WORST, Image
from tests.fakes.strict_disk import StrictDisk
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import judge_bytes, judge_rows, require
from tests.stateful.node import Node
from tests.stateful.unsynced import default_vfs, unsynced
from tests.unit.fsck.damage import Patient, flip
from tests.unit.steps.test_operations import LARGE, save_step

Promise = dict[tuple[int, str], bytes]


@dataclass
class Case:
    """A patient, how it is repaired, and what must be there in the end."""

    damage: Callable[[Patient], None]
    options: dict[str, bool]
    promise: Promise = field(default_factory=dict)
    stays_damaged: bool = False


def lose_log(patient: Patient) -> None:
    node = patient.started()
    save_step(node, 3)
    node.die()
    (patient.cache_dir / "catalog.db-wal").unlink()


def lose_catalog(patient: Patient) -> None:
    (patient.cache_dir / "catalog.db").unlink()


def damage_here_and_there(patient: Patient) -> None:
    """Damage a published file, lose another to lost+found, and an object, and a row."""
    with patient.running() as node:
        rows = {f"{row.step}/{row.name}": row for row in node.rows()}
    flip(patient.path(rows["1/rank-1"]), 1000)
    lost = patient.path(rows["2/rank-1"])
    lost.rename(patient.cache_dir / "lost+found" / lost.name)
    patient.remote.delete("tier/run/1/rank-0")
    patient.sql("UPDATE shards SET digest = ? WHERE name = 'rank-0' AND save = 2", b"damaged!")
    patient.damage_index("dirty_shards")


FILES = {(1, "rank-1"): LARGE, (2, "rank-1"): LARGE}
STEP_1, SMALL = {(1, "rank-0"): b"save of 1"}, {(2, "rank-0"): b"save of 2"}
CASES = {
    "lost log": Case(
        lose_log, {"repair": True}, {**FILES, **STEP_1, **SMALL, (3, "rank-1"): LARGE}
    ),
    "lost catalog": Case(lose_catalog, {"rebuild": True}, {**FILES, **STEP_1}),
    "damage": Case(
        damage_here_and_there,
        {"repair": True, "data": True},
        {**FILES, **STEP_1, **SMALL},
        stays_damaged=True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_repair_that_is_killed_anywhere_is_repeated_and_ends_well(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    case, seen = CASES[name], set()
    with unsynced() as vfs, default_vfs(vfs):
        patient = Patient(tmp_path / "one", Remote(), FakeClock())
        patient.saved()
        case.damage(patient)
    moments = list(killed_at_each_step(patient, case))
    assert len(moments) > 50
    (tmp_path / "two").mkdir()
    with unsynced() as vfs, default_vfs(vfs):
        for image, remote in share_of(moments):
            for fate in (WORST, PROCESS_ONLY):
                survivor = image.survivor(fate)
                if survivor.identity in seen:
                    continue
                seen.add(survivor.identity)
                survivor.write_to(tmp_path / "two")
                judge_start(Patient(tmp_path / "two", remote.copy(), FakeClock()), case)
                survivor.write_to(tmp_path / "two")
                judge_repair(Patient(tmp_path / "two", remote.copy(), FakeClock()), case)
    count(request, "repairs that were killed", len(seen), seed=0)


def killed_at_each_step(patient: Patient, case: Case) -> list[tuple[Image, Remote]]:
    """Repair once, undisturbed; return what there was before each step, and at the end."""
    assert isinstance(patient.remote, Remote)
    remote, moments = patient.remote, []
    disk = StrictDisk(patient.cache_dir.parent)
    disk.on_step = lambda: moments.append((disk.image(), remote.copy()))
    with disk.recording(), default_vfs(disk.vfs):
        report = patient.checked(**case.options)
    assert report.remaining() == [], report.outcomes
    disk.on_step = lambda: None
    moments.append((disk.image(), remote.copy()))
    return moments


def judge_start(patient: Patient, case: Case) -> None:
    """Start the node as it is: it refuses, or has everything, unless what is damaged stays so."""
    if case.stays_damaged:
        return
    try:
        node = patient.started()
    except CatalogDamagedError:
        return
    try:
        judge(node, case.promise)
    finally:
        node.die()


def judge_repair(patient: Patient, case: Case) -> None:
    try:
        report = patient.checked(**case.options)
    except ConfigError as error:
        require("nothing is rebuilt" in error.message, str(error))
    else:
        require(report.remaining() == [], f"left: {report.outcomes}")
    left = patient.checked(data=True).remaining()
    require(not left, f"not clean after a second repair: {left}")
    for kept in patient.cache_dir.glob("catalog-*"):
        os.unlink(kept)
    with patient.running() as node:
        judge(node, case.promise)
        judge_bytes(node)
        judge_rows(node)


def judge(node: Node, promise: Promise) -> None:
    for (step, name), body in promise.items():
        require(node.get("run", step, name) == body, f"step {step} has other bytes of {name}")
