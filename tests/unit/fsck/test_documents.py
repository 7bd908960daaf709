"""Manifests and parts that are lost or damaged: whose step it is, is never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import ManifestState

from cachetier.fsck.findings import FindingKind, FsckReport
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.unit.fsck.damage import Patient
from tests.unit.fsck.test_nothing_is_lost import manifest_of
from tests.unit.fsck.test_remote_damage import MANIFEST, PART, damaged_manifest, replaced
from tests.unit.steps.test_operations import LARGE, ids, save_step


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path, remote, clock)


@pytest.fixture
def other(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path / "other", remote, clock)


def overwritten(first: Patient, then: Patient, clock: FakeClock) -> None:
    """Let another node replace the step that a first one saved."""
    first.saved()
    clock.advance(10.0)
    with then.running() as node:
        save_step(node, 1, "newer", overwrite=True)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"


def left(report: FsckReport) -> str:
    (outcome,) = (each for each in report.outcomes if not each.repaired)
    return outcome.what


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_the_manifest_of_a_newer_save_that_this_node_does_not_know_is_left_to_its_node(
    patient: Patient,
    other: Patient,
    remote: MemoryObjectStore,
    clock: FakeClock,
    how: str,
) -> None:
    overwritten(patient, other, clock)
    damaged_manifest(remote) if how == "damaged" else remote.delete(MANIFEST)
    before = remote.head(MANIFEST)

    report = patient.checked(repair=True)

    assert "save newer" in left(report)
    assert "on the node that saved it" in left(report)
    assert "tier/run/1~newer/" in left(report)
    assert remote.head(MANIFEST) == before

    other.repaired()
    with other.running() as node:
        node.drain.drain_all()
        assert node.get("run", 1, "rank-0") == b"newer of 1"
    assert manifest_of(remote).save_id == "newer"
    assert patient.found() == [FindingKind.STEP_ENDED]


def test_a_claim_alone_of_an_unknown_save_does_not_keep_the_step_from_being_mended(
    patient: Patient, other: Patient, remote: MemoryObjectStore, clock: FakeClock
) -> None:
    patient.saved()
    clock.advance(10.0)
    with other.running() as node:
        node.put(ids(1, save="newer", overwrite=True), "rank-0", LARGE)
        node.drain.drain_one()
    damaged_manifest(remote)

    patient.repaired()
    patient.drains()
    assert manifest_of(remote).save_id == "save"


def test_parts_that_went_with_the_manifest_are_written_again(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    """Somebody removed the folder `.cachetier`: a manifest alone would never be published."""
    patient.saved()
    folder = "tier/run/1/.cachetier/"
    before = {key: remote.get(key) for key in remote.list(folder).keys if key != MANIFEST}
    for key in remote.list(folder).keys:
        remote.delete(key)

    patient.repaired()
    patient.drains()

    assert {key: remote.get(key) for key in before} == before
    assert manifest_of(remote).state is ManifestState.PUBLISHED
    assert patient.found() == []
    patient.evicts()
    patient.reads_everything()


def test_a_damaged_part_without_a_manifest_is_written_again(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    before = remote.get(PART)
    replaced(remote, PART, before[:-10])
    remote.delete(MANIFEST)

    patient.repaired()
    patient.drains()
    assert remote.get(PART) == before


def test_parts_of_other_nodes_are_asked_for_where_they_were_made(
    patient: Patient, other: Patient, remote: MemoryObjectStore
) -> None:
    for rank, each in ((0, patient), (1, other)):
        with each.running() as node:
            node.put(ids(1, rank), f"rank-{rank}", LARGE)
            node.checkpoints.seal(ids(1, rank), 1)
            node.drain.drain_all()
    with patient.running() as node:
        node.drain.publish_all()
    for key in remote.list("tier/run/1/.cachetier/").keys:
        remote.delete(key)

    report = patient.repaired()
    assert "ranks 1" in report.outcomes[0].what
    other.repaired()

    for each in (patient, other):
        with each.running() as node:
            node.drain.drain_all()
    assert manifest_of(remote).state is ManifestState.PUBLISHED
    assert (patient.found(), other.found()) == ([], [])


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_part_of_a_step_that_waits_for_others_is_written_again(
    patient: Patient, remote: MemoryObjectStore, how: str
) -> None:
    """The drain writes it once: without it the step would wait for ever, whoever else comes."""
    with patient.running() as node:
        node.put(ids(1), "rank-0", LARGE)
        node.checkpoints.seal(ids(1), 1)
        node.drain.drain_all()
    part = "tier/run/1/.cachetier/rank-0.json"
    before = remote.get(part)
    if how == "gone":
        remote.delete(part)
    else:
        replaced(remote, part, before[:-10])

    assert patient.found() == [FindingKind.PART_DAMAGED]
    patient.repaired()

    assert remote.get(part) == before
    with patient.running() as node:
        node.put(ids(1, 1), "rank-1", b"x")
        node.checkpoints.seal(ids(1, 1), 1)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"


def test_a_published_step_whose_place_is_forgotten_gets_it_from_its_manifest(
    patient: Patient,
) -> None:
    patient.saved()
    patient.evicts()
    patient.sql("UPDATE copies SET location = NULL WHERE save = 1")

    assert patient.found() == [FindingKind.ROW_CONTRADICTS]
    patient.repaired()
    patient.reads_everything()


def test_a_step_of_which_everything_was_removed_comes_back_in_one_run(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    before = set(remote.list("tier/run/1/").keys)
    for key in before:
        remote.delete(key)

    patient.repaired()
    patient.drains()

    assert set(remote.list("tier/run/1/").keys) == before
    patient.evicts()
    patient.reads_everything()


def test_no_part_is_written_that_names_an_object_which_is_not_there(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    with patient.running() as node:
        node.put(ids(1), "rank-0", LARGE)
        node.checkpoints.seal(ids(1), 1)
        node.drain.drain_all()
    info = remote.head("tier/run/1/rank-0")
    assert info is not None
    assert info.size_bytes < len(LARGE), "compressed, so that it cannot be made again"
    for key in remote.list("tier/run/1/").keys:
        if not key.endswith("manifest.json"):
            remote.delete(key)

    report = patient.checked(repair=True)

    assert [f.kind for f in report.remaining()] == [
        FindingKind.PART_DAMAGED,
        FindingKind.OBJECT_MISSING,
    ]
    assert remote.head("tier/run/1/.cachetier/rank-0.json") is None


@pytest.mark.parametrize("sealed", [False, True])
def test_the_damaged_manifest_of_a_step_that_is_to_be_published_is_found_and_claimed_again(
    patient: Patient, remote: MemoryObjectStore, sealed: bool
) -> None:
    """The drain waits for it for ever, and says nothing worse than that it is a conflict."""
    with patient.running() as node:
        for rank in (0, 1):
            node.put(ids(1, rank), f"rank-{rank}", LARGE)
            if sealed:
                node.checkpoints.seal(ids(1, rank), 2)
        while node.drain.drain_one():
            pass
    damaged_manifest(remote)

    assert patient.found() == [FindingKind.MANIFEST_DAMAGED]
    patient.repaired()
    assert manifest_of(remote).state is ManifestState.CLAIMED
    with patient.running() as node:
        for rank in (0, 1):
            node.checkpoints.seal(ids(1, rank), 2)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"
    assert patient.found() == []


@pytest.mark.parametrize("which", [MANIFEST, PART])
def test_a_document_of_a_newer_cachetier_is_not_written_over(
    patient: Patient, remote: MemoryObjectStore, which: str
) -> None:
    with patient.running() as node:
        for rank in (0, 1):
            node.put(ids(1, rank), f"rank-{rank}", LARGE)
        node.checkpoints.seal(ids(1, 1), 2)
        node.drain.drain_all()
    info = remote.head(which)
    assert info is not None
    newer = b'{"format": 2, "run": "run", "step": 1}'
    replaced(remote, which, newer, **info.metadata)

    report = patient.checked(repair=True)

    assert "another version" in left(report)
    assert remote.get(which) == newer
