"""What fsck took back under a new catalog is what was acknowledged: nothing displaces or drops it.

Its seals went with the old catalog, so that it looks like a save that never was completed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachetier.local.catalog import saves
from cachetier.model.lifecycle import SaveState
from cachetier.reclaim.gc import Collection, GarbageKind
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.stateful.node import Node
from tests.unit.fsck.damage import Patient
from tests.unit.reclaim.test_gc import HOUR, garbage, kinds
from tests.unit.steps.test_operations import LARGE, ids, save_step

DAY = 24 * HOUR


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path, remote, clock)


def rebuilt(patient: Patient) -> None:
    """Lose the catalog a day after everything was written, and make it anew."""
    for path in (patient.cache_dir / "data").glob("*/*"):
        os.utime(path, (patient.clock.now(), patient.clock.now()))
    patient.clock.advance(DAY)
    (patient.cache_dir / "catalog.db").unlink()
    assert all(outcome.repaired for outcome in patient.checked(rebuild=True).outcomes)


def collected(node: Node, clock: FakeClock) -> Collection:
    return garbage(node, clock).collect(0.0, dry_run=False)


def test_gc_leaves_what_nobody_has_sealed_again(patient: Patient, clock: FakeClock) -> None:
    patient.saved()
    rebuilt(patient)
    with patient.running() as node:
        save_step(node, 3)
        node.drain.drain_all()
        clock.advance(100 * DAY)

        found = collected(node, clock)
        assert found.rubbish == ()
        assert [(each.step, each.command) for each in found.left] == [(2, "cachetier delete run 2")]
        assert "taken back by fsck" in found.left[0].why
        assert node.get("run", 2, "rank-1") == LARGE

        node.checkpoints.seal(ids(2, 1), 1)
        node.drain.drain_all()
        assert "rank 0 of 2 is to come" in collected(node, clock).left[0].why
        node.put(ids(2, 0), "rank-0", b"again")
        node.checkpoints.seal(ids(2, 0), 2)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 2)[0].state == str(SaveState.PUBLISHED)
        assert collected(node, clock) == Collection(dry_run=False, rubbish=())
        judge_bytes(node)
        judge_rows(node)


def test_what_was_put_after_a_rebuild_and_never_sealed_goes_as_ever(
    patient: Patient, clock: FakeClock
) -> None:
    patient.saved()
    rebuilt(patient)
    with patient.running() as node:
        node.put(ids(3), "rank-0", LARGE)
        save_step(node, 4)
        node.drain.drain_all()
        clock.advance(HOUR)

        assert kinds(collected(node, clock)) == [(GarbageKind.INCOMPLETE, 3)]
        assert node.get("run", 2, "rank-1") == LARGE


def test_a_save_that_was_taken_back_began_when_it_did(patient: Patient, clock: FakeClock) -> None:
    patient.saved()
    began = clock.now()
    rebuilt(patient)
    with patient.running() as node:
        (save,) = node.store.read(lambda sql: saves.saves_of(sql, "run", 2))
        assert save.started_at == began
        assert {row.committed_at for row in node.rows() if row.step == 2} == {began}


def test_a_save_that_was_taken_back_displaces_no_newer_one_of_another_node(
    patient: Patient, tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock
) -> None:
    with patient.running() as node:
        node.put(ids(2, 1, "old"), "rank-1", LARGE)
    other = Node(tmp_path / "other", remote, clock)
    try:
        rebuilt(patient)
        clock.jump(-DAY / 2)
        other.put(ids(2, 0, "new"), "rank-0", b"new")
        other.checkpoints.seal(ids(2, 0, "new"), 1)
        other.drain.drain_all()
        clock.jump(DAY / 2)
        with patient.running() as node:
            node.drain.drain_all()
        other.put(ids(2, 1, "new"), "rank-1", LARGE)
        other.checkpoints.seal(ids(2, 1, "new"), 2)
        other.drain.drain_all()

        assert other.checkpoints.step("run", 2)[0].state == str(SaveState.PUBLISHED)
        assert other.get("run", 2, "rank-0") == b"new"
    finally:
        other.close()
