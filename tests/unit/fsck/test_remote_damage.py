"""What a remote lost, or holds otherwise, is found and sent again; what is not ours is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format.publication import MANIFEST_NONCE_KEY
from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES, ObjectInfo
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.errors import RemoteRefusedError, TransientError
from cachetier.fsck.findings import Finding, FindingKind
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ShardState
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.unit.fsck.damage import Patient
from tests.unit.steps.test_operations import LARGE, ids, save_step

RAW, FRAMES = "tier/run/1/rank-0", "tier/run/1/rank-1"
MANIFEST = "tier/run/1/.cachetier/manifest.json"
PART = "tier/run/1/.cachetier/rank-1.json"


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path, remote, clock)


def replaced(remote: MemoryObjectStore, key: str, body: bytes, **metadata: str) -> None:
    remote.put(key, body, digest=digest_of(body), metadata=metadata)


def damaged_manifest(remote: MemoryObjectStore) -> None:
    """Leave of the manifest only what its metadata say: that a cachetier wrote it."""
    info = remote.head(MANIFEST)
    assert info is not None
    replaced(remote, MANIFEST, b"{}", **info.metadata)


def problems(patient: Patient) -> list[Finding]:
    return [finding for finding in patient.checked().findings if finding.is_problem]


def test_a_lost_object_of_a_published_step_is_sent_again_as_it_was(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    before = remote.head(RAW)
    assert before is not None
    remote.delete(RAW)

    assert [(f.kind, f.where, f.key) for f in problems(patient)] == [
        (FindingKind.OBJECT_MISSING, "run/1/rank-0", RAW)
    ]
    patient.repaired()

    after = remote.head(RAW)
    assert after is not None
    assert (after.digest, after.metadata) == (before.digest, before.metadata)
    patient.reads_everything()
    patient.drains()


def test_a_lost_object_of_an_open_step_is_dirty_again_and_drained(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    with patient.running() as node:
        while node.drain.drain_one():
            pass
        assert {row.state for row in node.rows()} == {ShardState.CLEAN}
    for key in remote.list("tier/run/2/").keys:
        if "rank" in key and ".cachetier" not in key:
            remote.delete(key)

    assert patient.found() == [FindingKind.OBJECT_MISSING, FindingKind.OBJECT_MISSING]
    report = patient.repaired()

    assert {outcome.what for outcome in report.outcomes} == {
        "it is dirty again: the drain sends it"
    }
    patient.drains()


def test_a_lost_compressed_object_cannot_be_made_again_and_remains_a_problem(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    with patient.running() as node:
        node.put(ids(1), "a", b"a")
        save_step(node, 1)
        node.drain.drain_all()
    info = remote.head(FRAMES)
    assert info is not None
    assert info.size_bytes < len(LARGE), "this one is compressed"
    remote.delete(FRAMES)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_MISSING]
    assert "save the step again" in report.outcomes[0].what
    with patient.running() as node:
        assert node.get("run", 1, "rank-1") == LARGE


def published_in_parts(patient: Patient) -> bytes:
    """Publish a step whose shard of rank 0 went in parts, and return that."""
    body = bytes(SINGLE_PUT_BYTES + BLOCK_BYTES + 5)
    with patient.running() as node:
        node.put(ids(1), "rank-0", body)
        node.put(ids(1, 1), "rank-1", b"x")
        for rank in (0, 1):
            node.checkpoints.seal(ids(1, rank), 2)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"
    return body


def test_an_object_of_many_parts_is_sent_again(patient: Patient, remote: MemoryObjectStore) -> None:
    body = published_in_parts(patient)
    remote.delete(RAW)

    patient.repaired()

    found = remote.head(RAW)
    assert found is not None
    assert (found.size_bytes, found.digest) == (len(body), digest_of(body))
    assert list(remote.list_uploads("")) == []


def test_an_upload_that_cannot_be_completed_is_not_left_behind_by_a_repair(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    published_in_parts(patient)
    remote.delete(RAW)
    monkeypatch.setattr(remote, "complete_upload", _away)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_MISSING]
    assert (remote.head(RAW), list(remote.list_uploads(""))) == (None, [])


def _away(*_: object, **__: object) -> ObjectInfo:
    raise TransientError("planned")


def test_what_somebody_puts_while_an_object_is_sent_again_is_no_victim(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.saved()
    remote.delete(RAW)

    def overtaken(key: str, body: bytes, **given: Any) -> ObjectInfo:
        monkeypatch.undo()
        replaced(remote, key, b"mine now", author="somebody")
        return remote.put(key, body, **given)

    monkeypatch.setattr(remote, "put", overtaken)

    report = patient.checked(repair=True)

    assert [outcome.repaired for outcome in report.outcomes] == [False]
    assert "somebody else" in report.outcomes[0].what
    assert remote.get(RAW) == b"mine now"


def test_a_lost_pack_is_put_together_again(patient: Patient, remote: MemoryObjectStore) -> None:
    with patient.running() as node:
        node.drain.packing = _always
        for name in "abc":
            node.put(ids(1), name, name.encode() * 1000)
        node.put(ids(1, 1), "rank-1", b"x")
        for rank in (0, 1):
            node.checkpoints.seal(ids(1, rank), 2)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"
    (pack,) = (key for key in remote.list("tier/run/1/.cachetier/pack-").keys)
    before = remote.get(pack)
    remote.delete(pack)

    assert [finding.kind for finding in problems(patient)] == [FindingKind.OBJECT_MISSING]
    patient.repaired()

    assert remote.get(pack) == before
    with patient.running() as node:
        for row in node.rows():
            assert node.evict(row)
        assert node.get("run", 1, "b") == b"b" * 1000


def _always(_save: Save) -> bool:
    return True


def test_a_damaged_object_of_ours_is_replaced(patient: Patient, remote: MemoryObjectStore) -> None:
    patient.saved()
    info = remote.head(RAW)
    assert info is not None
    replaced(remote, RAW, b"SAVE OF 1", **info.metadata)

    assert patient.found() == [FindingKind.OBJECT_DIFFERS]
    patient.repaired()
    assert remote.get(RAW) == b"save of 1"


def test_somebody_elses_object_in_place_of_ours_is_left_alone(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    replaced(remote, RAW, b"mine now", author="somebody")

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_FOREIGN]
    assert [outcome.repaired for outcome in report.outcomes] == [False]
    assert remote.get(RAW) == b"mine now"
    patient.reads_everything()


def test_an_evicted_shard_whose_object_is_gone_is_lost_and_said_to_be(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    patient.evicts()
    remote.delete(RAW)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_MISSING]
    assert "no sound copy is left" in report.outcomes[0].what


# --- documents ------------------------------------------------------------------------------------


def test_a_lost_manifest_is_published_again(patient: Patient, remote: MemoryObjectStore) -> None:
    patient.saved()
    remote.delete(MANIFEST)

    assert patient.found() == [FindingKind.MANIFEST_MISSING]
    patient.repaired()
    assert remote.head(MANIFEST) is None, "the drain does it"
    patient.drains()
    patient.reads_everything()
    assert patient.found() == []


def test_a_damaged_manifest_of_ours_is_published_again(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    damaged_manifest(remote)

    assert patient.found() == [FindingKind.MANIFEST_DAMAGED]
    patient.repaired()
    patient.drains()
    assert patient.found() == []


def test_a_manifest_that_is_not_ours_is_left_alone(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    replaced(remote, MANIFEST, b"{}")
    assert MANIFEST_NONCE_KEY not in getattr(remote.head(MANIFEST), "metadata", {})

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.MANIFEST_DAMAGED]
    assert remote.get(MANIFEST) == b"{}"


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_part_is_written_again_byte_for_byte(
    patient: Patient, remote: MemoryObjectStore, how: str
) -> None:
    patient.saved()
    before = remote.get(PART)
    if how == "gone":
        remote.delete(PART)
    else:
        replaced(remote, PART, before[:-10])

    assert patient.found() == [FindingKind.PART_DAMAGED]
    patient.repaired()
    assert remote.get(PART) == before


def test_a_step_that_another_node_deleted_ends_here_by_a_repair(
    patient: Patient, remote: MemoryObjectStore, tmp_path: Path, clock: FakeClock
) -> None:
    patient.saved()
    other = Patient(tmp_path / "other", remote, clock)
    with other.running() as node:
        node.checkpoints.delete_step("run", 1)
        node.drain.delete_all()

    assert patient.found() == [FindingKind.STEP_ENDED]
    assert not patient.checked().as_json()["clean"]
    patient.repaired()
    assert patient.found() == []
    with patient.running() as node:
        assert not [row.name for row in node.rows() if row.step == 1]


def test_a_step_that_another_node_deleted_stays_where_it_is_pinned(
    patient: Patient, remote: MemoryObjectStore, tmp_path: Path, clock: FakeClock
) -> None:
    patient.saved()
    with patient.running() as node:
        node.checkpoints.pin("run", 1)
        used_bytes = node.store.space.used_bytes
    other = Patient(tmp_path / "other", remote, clock)
    with other.running() as node:
        node.checkpoints.delete_step("run", 1)
        node.drain.delete_all()

    report = patient.checked(repair=True)

    assert ["pinned" in each.what for each in report.outcomes] == [True]
    with patient.running() as node:
        assert node.store.space.used_bytes == used_bytes


# --- leftovers ------------------------------------------------------------------------------------


def test_an_upload_of_a_step_that_has_ended_is_noted_and_aborted(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    remote.create_upload(RAW)
    going_on = remote.create_upload("tier/run/2/rank-1")

    assert patient.found() == [FindingKind.UPLOAD_STALE]
    assert patient.checked().remaining() == []
    patient.repaired()
    assert [upload for _, upload in remote.list_uploads("")] == [going_on]


def test_objects_that_no_document_names_are_noted_and_left(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    patient.saved()
    info = remote.head(RAW)
    assert info is not None
    replaced(remote, "tier/run/1/left-over", b"x", **info.metadata)
    replaced(remote, "tier/run/1/README", b"x")

    report = patient.checked(repair=True)

    assert sorted(finding.kind for finding in report.findings) == [
        FindingKind.OBJECT_NOT_OURS,
        FindingKind.OBJECT_UNNAMED,
    ]
    assert (report.remaining(), report.outcomes) == ([], [])
    assert remote.get("tier/run/1/README") == b"x"


def test_a_claim_of_a_save_that_has_ended_is_noted(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    with patient.running() as node:
        node.put(ids(1), "rank-0", LARGE)
        node.drain.drain_one()
        save_step(node, 1, save="newer")
        assert node.checkpoints.step("run", 1)[0].save_id == "newer"

    assert patient.found() == [FindingKind.CLAIM_STALE]


# --- asking ---------------------------------------------------------------------------------------


def test_a_remote_that_does_not_answer_is_said_and_is_not_called_clean(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.saved()

    def away(*_arguments: object) -> None:
        raise TransientError("no answer")

    monkeypatch.setattr(remote, "head", away)
    report = patient.checked()

    assert (report.remaining(), report.unanswered) == ([], ["durable: no answer"])
    assert report.as_json()["clean"] is False


def test_another_nodes_lost_object_is_found_and_left_to_it(
    patient: Patient, remote: MemoryObjectStore, tmp_path: Path, clock: FakeClock
) -> None:
    other = Patient(tmp_path / "other", remote, clock)
    for rank, each in ((0, patient), (1, other)):
        with each.running() as node:
            node.put(ids(1, rank), f"rank-{rank}", LARGE)
            node.checkpoints.seal(ids(1, rank), 1)
            node.drain.drain_all()
    with patient.running() as node:
        node.drain.publish_all()
        assert node.checkpoints.step("run", 1)[0].state == "published"
    remote.delete("tier/run/1/rank-1")

    report = patient.checked(repair=True)

    assert [(f.kind, f.where) for f in report.remaining()] == [
        (FindingKind.OBJECT_MISSING, "run/1/rank-1")
    ]
    assert report.findings[0].message == "at durable: its object is missing; another node put it"
    assert report.outcomes[0].what == "another node put it: run fsck --repair there"


@pytest.mark.parametrize("kept", [True, False])
def test_another_nodes_lost_object_is_sent_by_who_has_read_it(
    patient: Patient, remote: MemoryObjectStore, tmp_path: Path, clock: FakeClock, kept: bool
) -> None:
    other = Patient(tmp_path / "other", remote, clock)
    for rank, each in ((0, patient), (1, other)):
        with each.running() as node:
            node.put(ids(1, rank), f"rank-{rank}", b"from %d" % rank)
            node.checkpoints.seal(ids(1, rank), 1)
            node.drain.drain_all()
    with patient.running() as node:
        node.drain.publish_all()
        assert node.get("run", 1, "rank-1") == b"from 1"
        if not kept:
            node.evict(next(row for row in node.rows() if row.name == "rank-1"))
    remote.delete("tier/run/1/rank-1")

    report = patient.checked(repair=True)

    if kept:
        assert report.remaining() == [], report.outcomes
        assert remote.get("tier/run/1/rank-1") == b"from 1"
    else:
        assert report.outcomes[0].what == "another node put it: run fsck --repair there"
        other.repaired()
    assert (patient.found(), other.found()) == ([], [])


def test_what_may_not_be_looked_at_is_told_by_itself_and_all_else_is_looked_at(
    patient: Patient, remote: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient.saved()
    readme = "tier/run/1/README.txt"
    replaced(remote, readme, b"encrypted with a key of theirs")
    replaced(remote, RAW, b"and so is this")
    remote.delete(FRAMES)
    head = remote.head

    def refusing(key: str) -> ObjectInfo | None:
        if key in (readme, RAW):
            raise RemoteRefusedError("400 Bad Request", key=key)
        return head(key)

    monkeypatch.setattr(remote, "head", refusing)
    report = patient.checked()
    assert report.unanswered == []
    assert [(f.kind, f.key) for f in report.findings] == [
        (FindingKind.OBJECT_FOREIGN, RAW),
        (FindingKind.OBJECT_MISSING, FRAMES),
        (FindingKind.OBJECT_NOT_OURS, readme),
    ]
    left = patient.checked(repair=True)
    assert [f.kind for f in left.remaining()] == [FindingKind.OBJECT_FOREIGN]
    assert remote.get(RAW) == b"and so is this"
