"""``fsck --repair`` after the catalog's log was lost: what is on the disk comes back, whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachetier.errors import CatalogDamagedError, NotFoundError, TransientError
from cachetier.fsck.findings import FindingKind
from cachetier.local.catalog import notes
from cachetier.local.files.data_files import IDENTITY_ATTRIBUTE
from cachetier.local.lost_and_found import Identity
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.unit.fsck.damage import Patient, flip
from tests.unit.steps.test_operations import LARGE, code_of, ids, save_step


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    """A node that published step 1, was stopped, saved steps 2 and 3 and was killed."""
    patient = Patient(tmp_path, remote, clock)
    with patient.running() as node:
        save_step(node, 1)
        node.drain.drain_all()
    node = patient.started()
    for step in (2, 3):
        save_step(node, step)
    node.die()
    return patient


def file_of(patient: Patient, step: int) -> Path:
    """Return the data file that says it is of a step."""
    for path in (patient.cache_dir / "data").glob("*/*"):
        identity = Identity.parsed(os.getxattr(path, IDENTITY_ATTRIBUTE))
        if identity is not None and identity.ids.step == step:
            return path
    raise AssertionError(f"no file of step {step}")


def lose_log(patient: Patient) -> None:
    (patient.cache_dir / "catalog.db-wal").unlink()


def refused(patient: Patient) -> bool:
    return code_of(lambda: patient.started().die()) == CatalogDamagedError.code


def judge(patient: Patient, *steps: int) -> None:
    """Check that the node starts, gives back what lay in files, and tells of the rest."""
    with patient.running() as node:
        assert node.get("run", 1, "rank-0") == b"save of 1"
        for step in (1, *steps):
            assert node.get("run", step, "rank-1") == LARGE
        incidents = node.store.read(notes.incidents_after, 0)
        assert {(each.code, each.run, each.step) for each in incidents} == {
            ("log_lost", "run", max(steps))
        }
        assert "64 KiB, evicted ones" in incidents[0].message
        judge_bytes(node)
        judge_rows(node)
    with patient.running() as node:
        assert node.store.read(notes.newest_incident) == incidents[-1].number, "it lasts"


def test_every_whole_file_comes_back_and_what_may_be_lost_is_told(patient: Patient) -> None:
    lose_log(patient)
    assert refused(patient)
    assert FindingKind.LOG_LOST in patient.found()
    assert refused(patient), "looking repairs nothing"

    report = patient.repaired()

    (told,) = (o.what for o in report.outcomes if o.finding.kind is FindingKind.LOG_LOST)
    assert "may be lost" in told
    judge(patient, 2, 3)
    with patient.running() as node, pytest.raises(NotFoundError):
        node.get("run", 2, "rank-0")


def test_a_rank_that_puts_again_what_was_lost_and_seals_completes_its_step(
    patient: Patient,
) -> None:
    lose_log(patient)
    patient.repaired()

    with patient.running() as node:
        save_step(node, 2)
        save_step(node, 3)
        node.drain.drain_all()
        assert {view.step: view.state for view in node.checkpoints.steps("run")} == dict.fromkeys(
            (1, 2, 3), "published"
        )


def test_what_an_earlier_start_had_set_aside_comes_back_too(patient: Patient) -> None:
    """As by a cachetier that did not know of the loss: its start moved the files."""
    file = file_of(patient, 2)
    file.rename(patient.cache_dir / "lost+found" / file.name)
    lose_log(patient)

    patient.repaired()

    judge(patient, 2, 3)


def test_a_file_that_replaced_one_in_the_catalog_is_the_one_that_counts(patient: Patient) -> None:
    with patient.running() as node:
        node.put(ids(4), "again", LARGE)
    node = patient.started()
    node.put(ids(4), "again", LARGE[::-1] + b"newer")
    node.die()
    lose_log(patient)

    patient.checked(repair=True)

    assert patient.checked(data=True).remaining() == []
    with patient.running() as node:
        assert node.get("run", 4, "again") == LARGE[::-1] + b"newer"
        judge_bytes(node)


@pytest.mark.parametrize("ranks", [(1,), (0, 1)], ids=["its rank's part", "the step"])
def test_a_file_whose_object_was_removed_from_the_bucket_is_taken_back_and_sent_again(
    patient: Patient, remote: MemoryObjectStore, ranks: tuple[int, ...]
) -> None:
    """Documents still name it there."""
    node = patient.started()
    for rank in ranks:
        node.put(ids(4, rank), f"rank-{rank}", LARGE)
        node.checkpoints.seal(ids(4, rank), 2)
    node.drain.drain_all()
    node.die()
    remote.delete("tier/run/4/rank-1")
    lose_log(patient)

    patient.checked(repair=True)

    with patient.running() as node:
        assert node.get("run", 4, "rank-1") == LARGE
        node.drain.drain_all()
        assert remote.head("tier/run/4/rank-1") is not None
        assert node.get("run", 4, "rank-1") == LARGE


def test_a_file_with_other_bytes_than_the_published_step_is_left_and_said(
    patient: Patient, tmp_path: Path, remote: MemoryObjectStore
) -> None:
    """A node that does not know of the step takes a put of it."""
    other = Patient(tmp_path / "other", remote, patient.clock)
    node = other.started()
    node.put(ids(1, 1), "rank-1", LARGE[::-1] + b"other")
    node.die()
    lose_log(other)

    report = other.checked(repair=True)

    aside = FindingKind.FILE_SET_ASIDE
    (of_file,) = (each for each in report.outcomes if each.finding.kind is aside)
    assert not of_file.repaired
    assert "published with other bytes" in of_file.what
    assert len(list((other.cache_dir / "lost+found").iterdir())) == 1


def test_a_file_whose_bytes_are_damaged_stays_and_holds_nobody_up(patient: Patient) -> None:
    file = file_of(patient, 2)
    flip(file, 1000)
    lose_log(patient)

    report = patient.checked(repair=True)

    assert report.remaining() == []
    assert any("fail their digest" in outcome.what for outcome in report.outcomes)
    assert (patient.cache_dir / "lost+found" / file.name).exists()
    judge(patient, 3)


def test_while_the_remote_does_not_answer_the_node_does_not_start(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a step that the catalog does not know is published, only the bucket can say."""
    lose_log(patient)

    def away(*_arguments: object) -> None:
        raise TransientError("no answer")

    monkeypatch.setattr(remote, "head", away)
    report = patient.checked(repair=True)
    monkeypatch.undo()
    assert FindingKind.LOG_LOST in {finding.kind for finding in report.remaining()}
    assert refused(patient)

    patient.repaired()
    judge(patient, 2, 3)


def test_a_catalog_that_is_damaged_as_well_is_made_anew(patient: Patient) -> None:
    """The log went while it was being brought into the database."""
    lose_log(patient)
    patient.damage_index("bodies")  # a table, which no index makes anew

    report = patient.checked(repair=True)
    assert {finding.kind for finding in report.remaining()} >= {FindingKind.LOG_LOST}
    assert refused(patient)

    report = patient.checked(rebuild=True)
    assert report.remaining() == []
    (kept,) = patient.cache_dir.glob("catalog-*.db")
    kept.unlink()
    judge(patient, 2, 3)
