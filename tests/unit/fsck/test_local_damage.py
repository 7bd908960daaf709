"""What is damaged on the node is found, said and repaired, and no acknowledged byte is lost."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from cachetier.errors import ConfigError, DirectoryInUseError
from cachetier.fsck.findings import FindingKind
from cachetier.local.files.data_files import IDENTITY_ATTRIBUTE
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.unit.fsck.damage import Patient
from tests.unit.steps.test_operations import LARGE, ids, save_step


@pytest.fixture
def patient(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock) -> Patient:
    return Patient(tmp_path, remote, clock)


def row_of(patient: Patient, shard: Shard) -> Shard:
    with patient.running() as node:
        return next(row for row in node.rows() if row.version == shard.version)


def test_a_sound_node_is_clean_and_nothing_is_changed_by_looking(patient: Patient) -> None:
    patient.saved()
    before = {p: p.stat().st_mtime_ns for p in patient.cache_dir.rglob("*") if p.is_file()}

    report = patient.checked(data=True)

    assert (report.findings, report.remaining(), report.online) == ([], [], False)
    assert (report.shards, report.objects) == (4, 2)
    assert report.checked_bytes == report.size_bytes == 2 * (len(LARGE) + len(b"save of 1"))
    assert {p: p.stat().st_mtime_ns for p in patient.cache_dir.rglob("*") if p.is_file()} == before


def test_a_lost_file_of_a_clean_shard_is_fetched_again(patient: Patient) -> None:
    lost = patient.saved()["1/rank-1"]
    patient.path(lost).unlink()

    assert patient.found() == [FindingKind.FILE_MISSING]
    patient.repaired()

    assert patient.said == [
        "repair run/1/rank-1: take its bytes here out of use, and fetch them again"
    ]
    assert row_of(patient, lost).state is ShardState.CLEAN
    patient.reads_everything()
    patient.drains()


def test_a_lost_file_of_a_dirty_shard_remains_a_problem_and_is_never_called_sound(
    patient: Patient,
) -> None:
    lost = patient.saved()["2/rank-1"]
    patient.path(lost).unlink()

    report = patient.checked(repair=True)

    assert [(o.finding.kind, o.repaired) for o in report.outcomes] == [
        (FindingKind.FILE_MISSING, False)
    ]
    assert [finding.kind for finding in report.remaining()] == [FindingKind.FILE_MISSING]
    assert patient.found() == [FindingKind.QUARANTINED]


@pytest.mark.parametrize("size", [0, 99_999, 100_001])
def test_a_file_of_another_size_is_found(patient: Patient, size: int) -> None:
    shard = patient.saved()["1/rank-1"]
    os.truncate(patient.path(shard), size)

    assert patient.found() == [FindingKind.FILE_SIZE]
    patient.repaired()
    patient.reads_everything()


def test_a_flipped_bit_is_found_only_where_the_data_is_read(patient: Patient) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.flip(shard)

    assert patient.found() == []
    assert patient.found(data=True) == [FindingKind.BYTES_DAMAGED]
    patient.repaired(data=True)
    patient.reads_everything()
    patient.drains()


def test_damaged_bytes_that_are_nowhere_else_are_kept_in_quarantine(patient: Patient) -> None:
    shard = patient.saved()["2/rank-1"]
    patient.flip(shard)

    report = patient.checked(data=True, repair=True)

    assert [outcome.repaired for outcome in report.outcomes] == [False]
    assert patient.path(shard).exists()
    assert row_of(patient, shard).state is ShardState.QUARANTINED


def test_damaged_bytes_whose_remote_copy_is_gone_too_are_not_thrown_away(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    shard = patient.saved()["1/rank-1"]
    patient.flip(shard)
    remote.delete("tier/run/1/rank-1")

    report = patient.checked(data=True, repair=True)

    assert len(report.remaining()) == 2
    assert patient.path(shard).exists(), "most of it may still be of use to somebody"


def test_a_damaged_body_in_the_catalog_is_found_and_fetched_again(patient: Patient) -> None:
    shard = patient.saved()["1/rank-0"]
    patient.sql(
        "UPDATE bodies SET body = CAST('SAVE of 1' AS BLOB) WHERE version = ?", shard.version
    )

    assert patient.found(data=True) == [FindingKind.BYTES_DAMAGED]
    patient.repaired(data=True)
    patient.reads_everything()


def test_a_body_that_is_gone_from_the_catalog_is_found(patient: Patient) -> None:
    shard = patient.saved()["1/rank-0"]
    patient.sql("DELETE FROM bodies WHERE version = ?", shard.version)

    assert patient.found() == [FindingKind.ROW_CONTRADICTS]
    patient.repaired()
    patient.reads_everything()


@pytest.mark.parametrize(
    ("shard", "change"),
    [
        ("1/rank-1", "digest = zeroblob(8)"),
        ("1/rank-1", "name = 'rank-7'"),
        ("2/rank-1", "size_bytes = 5"),
        ("2/rank-1", "block_digests = x'0102'"),
    ],
)
def test_a_damaged_row_is_written_again_from_its_file(
    patient: Patient, shard: str, change: str
) -> None:
    row = patient.saved()[shard]
    patient.sql(f"UPDATE shards SET {change} WHERE version = ?", row.version)

    assert FindingKind.ROW_DAMAGED in patient.found()
    patient.repaired()

    assert row_of(patient, row).content == row.content
    patient.reads_everything()
    patient.drains()


@pytest.mark.parametrize("change", ["digest = zeroblob(8)", "size_bytes = 1"])
def test_a_damaged_row_of_a_body_is_written_again_as_its_own_digest_proves(
    patient: Patient, change: str
) -> None:
    row = patient.saved()["2/rank-0"]
    patient.sql(f"UPDATE shards SET {change} WHERE version = ?", row.version)

    patient.repaired()

    assert row_of(patient, row).content == row.content
    patient.reads_everything()
    patient.drains()


@pytest.mark.parametrize("change", ["digest = x'0102030405060708'", "size_bytes = 1"])
def test_a_damaged_row_of_an_empty_shard_is_written_again_as_its_own_digest_proves(
    patient: Patient, change: str
) -> None:
    with patient.running() as node:
        node.put(ids(3), "empty", b"")
        (row,) = node.rows()
    patient.sql(f"UPDATE shards SET {change} WHERE version = ?", row.version)

    patient.repaired()

    assert row_of(patient, row).content == row.content
    with patient.running() as node:
        assert node.get("run", 3, "empty") == b""


@pytest.mark.parametrize("change", ["name = 'rank-7'", "rank = 1", "row_digest = zeroblob(8)"])
def test_a_damaged_row_of_a_published_step_is_written_again_as_its_part_says(
    patient: Patient, change: str
) -> None:
    """Whoever deleted the step for the sake of one row would lose it on every node."""
    row = patient.saved()["1/rank-0"]
    patient.sql(f"UPDATE shards SET {change} WHERE version = ?", row.version)

    patient.repaired()
    patient.reads_everything()


def test_a_damaged_row_without_bytes_is_written_again_as_its_part_says(patient: Patient) -> None:
    row = patient.saved()["1/rank-1"]
    with patient.running() as node:
        assert node.evict(row)
    patient.sql("UPDATE shards SET block_digests = x'0102' WHERE version = ?", row.version)

    patient.repaired()
    patient.reads_everything()


def test_a_damaged_row_that_nothing_tells_of_is_left_to_a_person(patient: Patient) -> None:
    row = patient.saved()["2/rank-0"]
    patient.sql("UPDATE shards SET name = 'other' WHERE version = ?", row.version)

    report = patient.checked(repair=True)

    assert [f.kind for f in report.remaining()] == [FindingKind.ROW_DAMAGED]
    assert "save the step again" in report.outcomes[0].what


@pytest.mark.parametrize(
    ("shard", "change", "then"),
    [
        ("1/rank-1", "state = 'evicted'", ShardState.CLEAN),
        ("1/rank-1", "file_id = NULL", ShardState.CLEAN),
        ("2/rank-1", "state = 'clean'", ShardState.DIRTY),
    ],
)
def test_a_row_that_contradicts_itself_is_put_right(
    patient: Patient, shard: str, change: str, then: ShardState
) -> None:
    row = patient.saved()[shard]
    patient.sql(f"UPDATE shards SET {change} WHERE version = ?", row.version)

    assert FindingKind.ROW_CONTRADICTS in patient.found()
    patient.repaired()

    assert row_of(patient, row).state is then
    patient.reads_everything()
    patient.drains()


@pytest.mark.parametrize("change", ["file_id = NULL", "file_id = replace(file_id, 'a', 'b')"])
def test_a_dirty_shard_gets_the_file_back_that_its_row_forgot(
    patient: Patient, change: str
) -> None:
    """No row names the file, so that start-up sets it aside; but it says whose it is."""
    row = patient.saved()["2/rank-1"]
    file_id = "a" + (row.file_id or "")[1:]
    path = patient.cache_dir / "data" / file_id[:2] / file_id
    path.parent.mkdir(exist_ok=True)
    path.parent.mkdir(exist_ok=True)
    patient.path(row).rename(path)
    patient.sql("UPDATE shards SET file_id = ? WHERE version = ?", file_id, row.version)
    patient.sql(f"UPDATE shards SET {change} WHERE version = ?", row.version)

    assert FindingKind.FILE_ORPHAN in patient.found()
    patient.repaired()

    assert row_of(patient, row).state is ShardState.DIRTY
    patient.reads_everything()
    patient.drains()


def test_adopting_gives_a_sealed_ranks_shard_its_file_back_too(patient: Patient) -> None:
    row = patient.saved()["2/rank-1"]
    patient.sql(
        "UPDATE shards SET file_id = NULL, state = 'quarantined' WHERE version = ?", row.version
    )
    with patient.running():
        pass  # start-up sets the file aside

    report = patient.checked(adopt=True)

    assert [outcome.repaired for outcome in report.outcomes] == [True]
    patient.reads_everything()
    patient.drains()


def test_a_dirty_shard_that_waits_for_nothing_is_clean_again(patient: Patient) -> None:
    """The drain sends only what is not verified: this one would never leave the node."""
    row = patient.saved()["1/rank-1"]
    patient.sql("UPDATE shards SET state = 'dirty' WHERE version = ?", row.version)

    assert patient.found() == [FindingKind.ROW_CONTRADICTS]
    patient.repaired()
    assert row_of(patient, row).state is ShardState.CLEAN


def test_an_index_that_lost_a_row_is_made_anew(patient: Patient) -> None:
    patient.saved()
    patient.damage_index("dirty_shards")

    found = patient.found()
    assert FindingKind.CATALOG_DAMAGED in found
    assert FindingKind.ACCOUNTING in found
    patient.repaired()
    patient.drains()


def test_a_catalog_that_is_no_database_is_told_and_left(patient: Patient) -> None:
    patient.saved()
    (patient.cache_dir / "catalog.db").write_bytes(b"x" * 8192)

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.CATALOG_DAMAGED]
    assert "docs/recovery.md" in report.findings[0].message
    assert (patient.cache_dir / "catalog.db").read_bytes() == b"x" * 8192


def test_repairing_without_a_catalog_begins_no_empty_one(patient: Patient) -> None:
    """An empty catalog would disown every data file, and stand in the way of the right one."""
    patient.saved()
    catalog = patient.cache_dir / "catalog.db"
    catalog.rename(patient.cache_dir / "away.db")
    (patient.cache_dir / "store-id").unlink()

    report = patient.checked(repair=True)

    assert [finding.kind for finding in report.remaining()] == [FindingKind.CATALOG_DAMAGED]
    assert not catalog.exists()
    (patient.cache_dir / "away.db").rename(catalog)
    assert patient.found() == []


# --- files without a row --------------------------------------------------------------------------


def stray(patient: Patient, *, mark: bytes | None) -> Path:
    file_id = secrets.token_hex(16)
    path = patient.cache_dir / "data" / file_id[:2] / file_id
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(LARGE)
    if mark is not None:
        os.setxattr(path, IDENTITY_ATTRIBUTE, mark)
    return path


def test_what_a_put_left_unfinished_is_a_note_and_goes(patient: Patient) -> None:
    patient.saved()
    path = stray(patient, mark=None)

    report = patient.checked()
    assert [(f.kind, f.is_problem) for f in report.findings] == [(FindingKind.FILE_UNMARKED, False)]
    patient.repaired()
    assert not path.exists()


def test_an_orphan_goes_to_lost_and_found_and_stays_there(patient: Patient) -> None:
    shard = patient.saved()["2/rank-1"]
    mark = os.getxattr(patient.path(shard), IDENTITY_ATTRIBUTE)
    path = stray(patient, mark=mark)

    report = patient.checked()
    assert [f.kind for f in report.findings] == [FindingKind.FILE_ORPHAN]
    assert "the catalog has the shard" in report.findings[0].message
    patient.repaired()
    assert (patient.cache_dir / "lost+found" / path.name).read_bytes() == LARGE
    assert patient.found() == [FindingKind.FILE_SET_ASIDE]


def test_a_shard_that_the_catalog_lost_is_adopted_when_it_is_asked_for(patient: Patient) -> None:
    shard = patient.saved()["2/rank-1"]
    patient.sql("DELETE FROM shards WHERE version = ?", shard.version)
    patient.sql("DELETE FROM parts WHERE rank = 1 AND save = 2")

    assert patient.found() == [FindingKind.FILE_ORPHAN]
    report = patient.checked(repair=True, adopt=True)

    assert report.remaining() == []
    assert [o.repaired for o in report.outcomes] == [True, True]
    with patient.running() as node:
        assert node.get("run", 2, "rank-1") == LARGE
        node.checkpoints.seal(ids(2, 1), 2)
    patient.reads_everything()
    patient.drains()


def test_a_damaged_orphan_is_not_adopted(patient: Patient) -> None:
    shard = patient.saved()["2/rank-1"]
    patient.sql("DELETE FROM shards WHERE version = ?", shard.version)
    patient.sql("DELETE FROM parts WHERE rank = 1 AND save = 2")
    patient.flip(shard)

    report = patient.checked(adopt=True)

    assert [outcome.repaired for outcome in report.outcomes] == [False]
    assert "fail their digest" in report.outcomes[0].what


def test_a_lost_catalog_is_rebuilt_from_the_data_files(patient: Patient) -> None:
    patient.saved()
    (patient.cache_dir / "catalog.db").unlink()
    assert patient.found() == [FindingKind.CATALOG_DAMAGED]

    report = patient.checked(rebuild=True)

    taken = {outcome.finding.where for outcome in report.outcomes}
    assert taken == {"the catalog", "run/1/rank-1", "run/2/rank-1"}
    assert all(outcome.repaired for outcome in report.outcomes)
    with patient.running() as node:
        assert node.get("run", 1, "rank-1") == LARGE, "from the remote, which has published it"
        assert node.get("run", 1, "rank-0") == b"save of 1"
        assert node.get("run", 2, "rank-1") == LARGE
        node.checkpoints.seal(ids(2, 1), 2)
        assert node.checkpoints.step("run", 2)[0].ranks == (1,)
    assert patient.checked(data=True).remaining() == []


def test_what_a_rank_has_brought_to_the_remote_is_not_adopted_to_be_sealed_with_less(
    patient: Patient, remote: MemoryObjectStore
) -> None:
    """Small shards went with the catalog: a part without them is another than the drain wrote."""
    with patient.running() as node:
        node.put(ids(1), "small", b"small")
        node.put(ids(1), "large", LARGE)
        node.checkpoints.seal(ids(1), 1)
        node.drain.drain_all()
    (patient.cache_dir / "catalog.db").unlink()

    report = patient.checked(rebuild=True)

    assert any("do not seal" in outcome.what for outcome in report.outcomes)
    with patient.running() as node:
        node.put(ids(1, 1), "rank-1", b"x")
        node.checkpoints.seal(ids(1, 1), 1)
        node.drain.drain_all()
        assert node.get("run", 1, "large") == LARGE
        assert node.get("run", 1, "small") == b"small"


# --- beside a running service ---------------------------------------------------------------------


def test_beside_a_running_service_it_looks_and_repairs_nothing(patient: Patient) -> None:
    patient.saved()
    with patient.running() as node:
        save_step(node, 3)
        lost = next(row for row in node.rows() if (row.step, row.name) == (3, "rank-1"))
        stray(patient, mark=None)  # a put in progress

        report = patient.checked(data=True)
        assert (report.online, report.findings, report.shards) == (True, [], 6)

        patient.path(lost).unlink()
        assert patient.found() == [FindingKind.FILE_MISSING]
        with pytest.raises(DirectoryInUseError) as refusal:
            patient.checked(repair=True)
        assert "Stop it" in refusal.value.hint


def test_beside_a_running_service_a_file_that_no_row_names_is_found(patient: Patient) -> None:
    shard = patient.saved()["2/rank-1"]
    with patient.running():
        path = stray(patient, mark=os.getxattr(patient.path(shard), IDENTITY_ATTRIBUTE))

        (found,) = patient.checked().findings

        assert (found.kind, found.file_id) == (FindingKind.FILE_ORPHAN, path.name)
        assert path.exists(), "it only looked"


def test_a_catalog_of_another_schema_is_not_looked_at(patient: Patient) -> None:
    patient.saved()
    patient.sql("PRAGMA user_version = 9999")

    with pytest.raises(ConfigError, match="schema 9999") as refusal:
        patient.checked()

    assert "Use the cachetier that wrote it" in refusal.value.hint


@pytest.mark.parametrize("marked", [True, False])
def test_a_store_that_lost_its_catalog_and_its_id_is_the_one_that_its_files_name(
    patient: Patient, marked: bool
) -> None:
    shard = patient.saved()["2/rank-1"]
    store_id = (patient.cache_dir / "store-id").read_text()
    for name in ("catalog.db", "store-id"):
        (patient.cache_dir / name).unlink()
    if not marked:
        for path in (patient.cache_dir / "data").glob("*/*"):
            os.removexattr(path, IDENTITY_ATTRIBUTE)

    patient.checked(rebuild=True)

    assert ((patient.cache_dir / "store-id").read_text() == store_id) == marked
    with patient.running() as node:
        if marked:
            assert node.get("run", 2, "rank-1") == LARGE
        else:
            kept = patient.cache_dir / "lost+found" / patient.path(shard).name
            assert kept.read_bytes() == LARGE


def test_a_directory_without_a_cache_is_refused_and_not_made_one(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock
) -> None:
    nothing = Patient(tmp_path / "nothing", remote, clock)

    with pytest.raises(ConfigError):
        nothing.checked()

    assert not nothing.cache_dir.exists()
