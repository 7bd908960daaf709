"""What the catalog forgot of a remote copy is taken from the documents in the bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.fsck.findings import FindingKind
from cachetier.local.catalog import shards
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node
from tests.unit.fsck.damage import Patient
from tests.unit.fsck.test_remote_damage import PART, RAW
from tests.unit.steps.test_operations import LARGE, ids, save_step

FORGET = "DELETE FROM drains WHERE version = ?"


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path, remote, clock)


def always(_save: Save) -> bool:
    return True


def saved_compressed(patient: Patient) -> Shard:
    """Publish step 1, its rank-1 as zstd frames, and return that shard."""
    with patient.running() as node:
        node.put(ids(1), "a", b"a")
        save_step(node, 1)
        node.drain.drain_all()
        return next(row for row in node.rows() if row.name == "rank-1")


def saved_packed(patient: Patient, ranks: tuple[int, ...] = (0, 1)) -> list[Shard]:
    """Save step 1 with three shards in a pack, seal it as ``ranks``, and return those shards."""
    with patient.running() as node:
        node.drain.packing = always
        for name in "abc":
            node.put(ids(1), name, name.encode() * 1000)
        for rank in ranks:
            node.checkpoints.seal(ids(1, rank), 2)
        while node.drain.drain_one():
            pass
        if len(ranks) > 1:
            node.drain.publish_all()
        return [row for row in node.rows() if row.name in "abc"]


def comes_back_from_the_bucket(node: Node, shard: Shard) -> bytes:
    row = next(row for row in node.rows() if row.version == shard.version)
    if row.state is not ShardState.EVICTED:
        assert node.evict(row)
    return node.get("run", 1, shard.name)


def verified_clean(patient: Patient, shard: Shard) -> None:
    """The row is clean for good: with its object verified, and nothing for the drain to do."""
    with patient.running() as node:
        row = next(row for row in node.rows() if row.version == shard.version)
        assert row.state is ShardState.CLEAN
        remotes = node.store.read(lambda sql: shards.verified_remotes(sql, shard.version))
        assert remotes == {DURABLE}
        assert node.checkpoints.step("run", 1)[0].dirty_bytes == 0


def test_a_shard_that_a_published_step_names_is_verified_again_not_dirty(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.sql(FORGET, shard.version)

    assert patient.found() == [FindingKind.ROW_CONTRADICTS]
    patient.repaired()

    verified_clean(patient, shard)
    with patient.running() as node:
        assert comes_back_from_the_bucket(node, shard) == LARGE


def test_a_compressed_one_is_known_with_its_frames_again(patient: Patient) -> None:
    shard = saved_compressed(patient)
    patient.sql(FORGET, shard.version)

    patient.repaired()

    verified_clean(patient, shard)
    with patient.running() as node:
        assert comes_back_from_the_bucket(node, shard) == LARGE


def test_if_the_object_is_gone_too_it_is_sent_as_the_part_describes_it(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = patient.saved()["1/rank-0"]
    patient.sql(FORGET, shard.version)
    remote.delete(RAW)

    patient.repaired()

    verified_clean(patient, shard)
    assert remote.get(RAW) == b"save of 1"


def test_a_compressed_object_that_is_gone_too_is_left_with_what_to_do(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = saved_compressed(patient)
    patient.sql(FORGET, shard.version)
    remote.delete("tier/run/1/rank-1")

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.ROW_CONTRADICTS]
    assert "save the step again" in report.outcomes[0].what
    with patient.running() as node:
        assert node.get("run", 1, "rank-1") == LARGE


def test_an_evicted_shard_whose_copy_was_forgotten_is_not_called_lost(patient: Patient) -> None:
    shard = patient.saved()["1/rank-1"]
    with patient.running() as node:
        assert node.evict(shard)
    patient.sql(FORGET, shard.version)

    patient.repaired()
    patient.reads_everything()


def test_a_quarantined_shard_whose_copy_was_forgotten_is_fetched(patient: Patient) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.flip(shard)
    patient.sql(FORGET, shard.version)
    patient.sql("UPDATE shards SET state = 'quarantined' WHERE version = ?", shard.version)

    patient.repaired()
    patient.reads_everything()


def test_a_shard_of_a_published_step_that_is_dirty_for_ever_is_found(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    """Nothing drains a step that is published."""
    shard = patient.saved()["1/rank-0"]
    patient.sql(FORGET, shard.version)
    patient.sql("UPDATE shards SET state = 'dirty' WHERE version = ?", shard.version)

    assert patient.found() == [FindingKind.ROW_CONTRADICTS]
    patient.repaired()

    verified_clean(patient, shard)


def test_what_a_published_step_does_not_name_is_left_and_said_to_be(patient: Patient) -> None:
    shard = patient.saved()["1/rank-0"]
    patient.sql(FORGET, shard.version)
    name = "rank-9"
    digest = patient.row_digest(shard, name)
    patient.sql(
        "UPDATE shards SET state = 'dirty', name = ?, row_digest = ? WHERE version = ?",
        name,
        digest,
        shard.version,
    )

    report = patient.checked(repair=True)

    (left,) = [o for o in report.outcomes if o.finding.kind is FindingKind.ROW_CONTRADICTS]
    assert not left.repaired
    assert "does not name it" in left.what


@pytest.mark.parametrize("change", ["stored_bytes = 5", "stored_digest = x'01'", "frames = x'00'"])
def test_a_damaged_row_of_a_remote_copy_is_found_and_written_again(
    patient: Patient, change: str
) -> None:
    """Readers would be told that the catalog is damaged."""
    shard = saved_compressed(patient)
    patient.sql(f"UPDATE drains SET {change} WHERE version = ?", shard.version)

    assert patient.found()
    patient.repaired()

    verified_clean(patient, shard)
    with patient.running() as node:
        assert comes_back_from_the_bucket(node, shard) == LARGE


def test_an_object_that_is_as_the_step_says_is_not_blamed_for_a_wrong_row(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = patient.saved()["1/rank-0"]
    before = remote.head(RAW)
    patient.sql("UPDATE drains SET stored_digest = zeroblob(8) WHERE version = ?", shard.version)

    assert patient.found() == [FindingKind.ROW_CONTRADICTS]
    report = patient.repaired()

    assert "catalog" in report.outcomes[0].what
    assert remote.head(RAW) == before, "nothing was sent"
    verified_clean(patient, shard)


@pytest.mark.parametrize("change", ["pack_start = pack_start + 1", "pack = NULL"])
def test_a_row_that_says_otherwise_than_the_step_where_a_shard_lies_is_put_right(
    patient: Patient, change: str
) -> None:
    """Its object is there and sound: only who reads it would meet other bytes."""
    shards = saved_packed(patient)
    patient.sql(f"UPDATE drains SET {change} WHERE version = ?", shards[0].version)

    assert FindingKind.ROW_CONTRADICTS in patient.found()
    patient.repaired()

    with patient.running() as node:
        assert comes_back_from_the_bucket(node, shards[0]) == b"a" * 1000


def test_a_lost_part_does_not_keep_a_raw_object_from_being_known(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    """The manifest says enough of it, and the part can then be written again."""
    shard = patient.saved()["1/rank-1"]
    before = remote.get(PART)
    patient.sql(FORGET, shard.version)
    remote.delete(PART)

    patient.repaired()
    assert remote.get(PART) == before
    verified_clean(patient, shard)


def test_a_pack_that_is_forgotten_and_gone_is_put_together_as_the_part_says(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shards = saved_packed(patient)
    (pack,) = (key for key in remote.list("tier/run/1/.cachetier/pack-").keys)
    before = remote.get(pack)
    remote.delete(pack)
    patient.sql("DELETE FROM drains")

    patient.repaired()

    assert remote.get(pack) == before
    with patient.running() as node:
        for shard in shards:
            assert comes_back_from_the_bucket(node, shard) == shard.name.encode() * 1000


# --- steps that are not published -----------------------------------------------------------------


def test_every_shard_of_a_lost_pack_is_dirty_again_in_one_run(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    saved_packed(patient, (0,))
    (pack,) = (key for key in remote.list("tier/run/1/.cachetier/pack-").keys)
    remote.delete(pack)

    report = patient.repaired()

    assert "2 others" in report.outcomes[0].what
    with patient.running() as node:
        assert {row.state for row in node.rows()} == {ShardState.DIRTY}


def sealed_and_sent(patient: Patient, body: bytes) -> None:
    """Bring the part of one rank of two to the remote: the step waits for the other."""
    with patient.running() as node:
        node.put(ids(1), "rank-0", body)
        node.checkpoints.seal(ids(1), 1)
        node.drain.drain_all()
        assert node.checkpoints.step("run", 1)[0].state != "published"


def test_an_object_that_a_part_describes_goes_back_as_that_before_the_step_is_published(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    sealed_and_sent(patient, b"small")
    before = remote.head(RAW)
    assert before is not None
    remote.delete(RAW)

    patient.repaired()

    after = remote.head(RAW)
    assert after is not None
    assert (after.digest, after.metadata) == (before.digest, before.metadata)


def test_the_drain_never_sends_otherwise_what_a_part_describes(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    """A part is written once: had its object other frames, no other node could read the shard."""
    sealed_and_sent(patient, LARGE)
    info = remote.head(RAW)
    assert info is not None
    assert info.size_bytes < len(LARGE), "this one is compressed"
    remote.delete(RAW)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.OBJECT_MISSING]
    assert "save the step again" in report.outcomes[0].what
    with patient.running() as node:
        assert {row.state for row in node.rows()} == {ShardState.CLEAN}
        assert node.get("run", 1, "rank-0") == LARGE


def test_a_forgotten_copy_of_an_open_step_is_sent_again_by_the_drain(patient: Patient) -> None:
    patient.saved()
    with patient.running() as node:
        while node.drain.drain_one():
            pass
        shard = next(row for row in node.rows() if (row.step, row.name) == (2, "rank-1"))
    patient.sql(FORGET, shard.version)

    report = patient.repaired()

    assert report.outcomes[0].what == "it is dirty again: the drain sends it"
    patient.drains()


# --- steps that are another's now -----------------------------------------------------------------


def test_a_step_that_another_node_deleted_is_one_finding_and_gets_nothing_back(
    patient: Patient, remote: MemoryObjectStore, tmp_path: Path, clock: FakeClock
) -> None:
    patient.saved()
    other = Patient(tmp_path / "other", remote, clock)
    with other.running() as node:
        node.checkpoints.delete_step("run", 1)
        node.drain.delete_all()
    left = remote.list("tier/run/1").keys

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.findings] == [FindingKind.STEP_ENDED]
    assert remote.list("tier/run/1").keys == left
    assert report.remaining() == []


def test_objects_of_a_save_that_a_newer_one_replaced_are_missed_by_nobody(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    with patient.running() as node:
        node.put(ids(1), "rank-0", LARGE)
        node.drain.drain_one()
        save_step(node, 1, save="newer")
        node.drain.drain_all()
    remote.delete(RAW)

    assert patient.checked().remaining() == []
