"""What a repair must not cost: the last bytes of a shard, a newer save, another's objects."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.bucket_format.documents import Manifest, ManifestState, encode
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import MANIFEST_NONCE_KEY

from cachetier.errors import TransientError
from cachetier.fsck.findings import FindingKind
from cachetier.local.catalog import shards
from cachetier.local.files.data_files import IDENTITY_ATTRIBUTE
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node
from tests.unit.fsck.damage import Patient, flip
from tests.unit.fsck.test_remote_damage import MANIFEST, damaged_manifest, replaced
from tests.unit.steps.test_operations import LARGE, ids, save_step


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path, remote, clock)


def manifest_of(remote: MemoryObjectStore) -> Manifest:
    seen = Bucket(remote, Layout("tier")).manifest("run", 1)
    assert seen is not None
    return seen.manifest


def put(remote: MemoryObjectStore, manifest: Manifest) -> None:
    replaced(remote, MANIFEST, encode(manifest), **{MANIFEST_NONCE_KEY: manifest.nonce})


# --- bytes here -----------------------------------------------------------------------------------


def test_bytes_that_an_evicted_row_still_names_stay_if_no_remote_has_them(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.sql("UPDATE shards SET state = 'evicted' WHERE version = ?", shard.version)
    remote.delete("tier/run/1/rank-1")

    patient.checked(repair=True)

    lost = patient.cache_dir / "lost+found" / patient.path(shard).name
    assert patient.path(shard).exists() or lost.exists()


def test_a_rebuild_keeps_files_whose_marks_are_gone(patient: Patient) -> None:
    """As after a copy of the directory without its attributes."""
    shard = patient.saved()["2/rank-1"]
    os.removexattr(patient.path(shard), IDENTITY_ATTRIBUTE)
    (patient.cache_dir / "catalog.db").unlink()

    report = patient.checked(rebuild=True)

    lost = patient.cache_dir / "lost+found" / patient.path(shard).name
    assert lost.read_bytes() == LARGE
    assert "has no readable label" in str([outcome.what for outcome in report.outcomes])


def test_adopting_an_older_save_does_not_supersede_one_that_came_since(patient: Patient) -> None:
    shard = patient.saved()["2/rank-1"]
    body, mark = LARGE, os.getxattr(patient.path(shard), IDENTITY_ATTRIBUTE)
    patient.sql("DELETE FROM saves WHERE step = 2")
    patient.sql("DELETE FROM shards WHERE save NOT IN (SELECT number FROM saves)")
    for table in ("parts", "copies", "copied_parts"):
        patient.sql(f"DELETE FROM {table} WHERE save NOT IN (SELECT number FROM saves)")
    with patient.running() as node:  # the old file goes to lost+found; the step is saved again
        save_step(node, 2, "since")
    lost = patient.cache_dir / "lost+found" / patient.path(shard).name
    assert (lost.read_bytes(), os.getxattr(lost, IDENTITY_ATTRIBUTE)) == (body, mark)

    before = patient.clock.now() - 60.0
    os.utime(lost, (before, before))

    report = patient.checked(adopt=True)

    assert [outcome.repaired for outcome in report.outcomes] == [False]
    assert "since" in report.outcomes[0].what
    assert lost.exists()
    with patient.running() as node:
        assert node.get("run", 2, "rank-0") == b"since of 2"
        node.drain.drain_all()
        assert node.checkpoints.step("run", 2)[0].save_id == "since"
        assert node.checkpoints.step("run", 2)[0].state == "published"


def test_a_catalog_of_another_store_is_no_clean_one(patient: Patient) -> None:
    patient.saved()
    (patient.cache_dir / "store-id").write_text("another\n")

    assert FindingKind.CATALOG_DAMAGED in patient.found()
    assert patient.checked(repair=True).remaining()


def test_a_repair_never_lets_sqlite_cut_off_what_follows_a_damaged_frame(
    patient: Patient,
) -> None:
    """Start-up refuses such a log, as the commits behind the damage were acknowledged."""
    patient.saved()
    node = Node(patient.cache_dir, patient.remote, patient.clock)
    for number in range(12):
        node.put(ids(3), f"small-{number}", bytes([number]) * 200)
    node.die()
    log = patient.cache_dir / "catalog.db-wal"
    flip(log, log.stat().st_size // 3)
    before = log.read_bytes()

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.CATALOG_DAMAGED]
    assert log.read_bytes() == before


def test_bytes_that_cannot_be_fetched_now_are_not_called_lost(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = patient.saved()["2/rank-1"]
    with patient.running() as node:
        node.drain.drain_all()
    patient.path(shard).unlink()
    with patient.running():
        pass  # start-up makes it evicted
    patient.sql("UPDATE shards SET state = 'quarantined' WHERE version = ?", shard.version)

    def away(*_arguments: object) -> None:
        raise TransientError("no answer")

    monkeypatch.setattr(remote, "get", away)
    monkeypatch.setattr(remote, "read_into", away)
    report = patient.checked(repair=True)

    told = next(o.what for o in report.outcomes if o.finding.kind is FindingKind.QUARANTINED)
    assert told == "its bytes are kept in quarantine: not now: no answer"


def test_a_lost_file_whose_object_is_gone_too_is_not_said_to_be_at_the_remote(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.path(shard).unlink()
    remote.delete("tier/run/1/rank-1")

    report = patient.checked(repair=True)

    assert len(report.remaining()) == 2
    assert {o.what for o in report.outcomes} == {
        "no sound copy is left. Save the step again, or restore another one"
    }


def test_damaged_bytes_stay_while_no_remote_can_be_asked_whether_it_has_others(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.flip(shard)

    def away(*_arguments: object) -> None:
        raise TransientError("no answer")

    monkeypatch.setattr(remote, "head", away)
    monkeypatch.setattr(remote, "read_into", away)
    report = patient.checked(data=True, repair=True)
    monkeypatch.undo()

    (told,) = (o.what for o in report.outcomes if o.finding.kind is FindingKind.BYTES_DAMAGED)
    assert told == "its bytes are kept in quarantine: not now: no answer"
    assert patient.path(shard).exists()
    patient.repaired()
    patient.reads_everything()


@pytest.mark.parametrize("which", ["2/rank-0", "2/rank-1"])
def test_quarantined_bytes_that_have_their_digest_after_all_are_used_again(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """The disk could not be read for a while; no remote need be there."""
    shard = patient.saved()[which]
    before = rows_of(patient)
    with patient.running() as node:
        node.store.write(shards.record_damage, shard.version, None, 0.0)
    monkeypatch.setattr(remote, "read_into", None)

    assert patient.found() == [FindingKind.QUARANTINED]
    patient.repaired()
    assert rows_of(patient) == before
    patient.reads_everything()
    patient.drains()


def rows_of(patient: Patient) -> list[Shard]:
    with patient.running() as node:
        return node.rows()


# --- documents ------------------------------------------------------------------------------------


def test_a_step_that_another_save_claims_since_is_not_given_up_for_it(
    patient: Patient, remote: MemoryObjectStore, clock: FakeClock
) -> None:
    """The manifest was lost, and another node began the step anew: it may never complete it."""
    patient.saved()
    published = manifest_of(remote)
    theirs = replace(
        published,
        save_id="elsewhere",
        state=ManifestState.CLAIMED,
        parts=(),
        shards=(),
        started_at=published.started_at + 10.0,
        location="1~elsewhere",
    )
    put(remote, theirs)
    assert patient.found() == [FindingKind.MANIFEST_MISSING]

    report = patient.checked(repair=True)

    assert "the drain publishes it" in report.outcomes[0].what
    with patient.running() as node:
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"
        assert node.get("run", 1, "rank-1") == LARGE


def test_a_damaged_manifest_never_leaves_the_step_to_another_save(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    """Who finds no manifest begins where this save's objects lie, and writes over them."""
    patient.saved()
    damaged_manifest(remote)

    patient.repaired()

    assert manifest_of(remote).state is ManifestState.CLAIMED
    assert (manifest_of(remote).save_id, manifest_of(remote).location) == ("save", "1")
    patient.drains()
    assert patient.found() == []


def test_a_manifest_that_was_written_anew_meanwhile_stays(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.saved()
    sound = manifest_of(remote)
    replaced(remote, MANIFEST, b"{}", **{MANIFEST_NONCE_KEY: sound.nonce})
    report = patient.checked()
    assert [finding.kind for finding in report.findings] == [FindingKind.MANIFEST_DAMAGED]
    theirs = replace(sound, save_id="newer", location="1~newer", nonce="n")
    looks = iter(range(1000))
    head = remote.head

    def repaired_elsewhere(key: str) -> object:
        if key == MANIFEST and next(looks) == 1:
            put(remote, theirs)
        return head(key)

    monkeypatch.setattr(remote, "head", repaired_elsewhere)
    report = patient.checked(repair=True)
    monkeypatch.undo()

    assert [outcome.repaired for outcome in report.outcomes] == [False]
    assert manifest_of(remote).save_id == "newer"


def test_an_upload_that_no_save_names_is_somebody_elses(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    foreign = remote.create_upload("tier/run/1/video.mp4")

    assert patient.found() == []
    patient.repaired()
    assert [upload for _, upload in remote.list_uploads("")] == [foreign]


def test_a_file_that_somebody_moved_to_lost_and_found_comes_back_and_stays(
    patient: Patient,
) -> None:
    """As by a start under an older catalog: the right one, once it is back, names the same file."""
    path = patient.path(patient.saved()["2/rank-1"])
    path.rename(patient.cache_dir / "lost+found" / path.name)

    patient.repaired()

    assert path.read_bytes() == LARGE
    patient.reads_everything()
    with patient.running() as node:
        judge_bytes(node)
