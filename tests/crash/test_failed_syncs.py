"""The first failed sync is final: no acknowledgement follows it, and a restart judges what is left.

A kernel that failed to write pages calls them clean all the same, so that the next sync of the file
succeeds and means nothing; SQLite goes on after a failed sync as if nothing had been.
"""

from __future__ import annotations

import errno
from pathlib import Path

import apsw
import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    CatalogDamagedError,
    DiskFullError,
    FencedError,
    NotFoundError,
)
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.store import Staged
from tests.crash.judge import judge_fenced
from tests.crash.sweep import Life, Remote, judge_start, live
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_files import FaultyFiles, FileFault, fail_late, refuse
from tests.fakes.power_loss import PROCESS_ONLY, WORST
from tests.fakes.strict_disk import StrictDisk
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced

IDS = SaveIds("run", 1, "save")
LARGE = bytes(range(256)) * 400

# apsw also tells of the planned errors that SQLite passes over, as in a start-up that it gives up.
PLANNED = "ignore::pytest.PytestUnraisableExceptionWarning"


def sync_steps(place: Path) -> list[int]:
    trace = live(place / "sound", 0)[-1].disk.trace
    return [number for number, step in enumerate(trace, 1) if step.startswith("sync")]


@pytest.mark.filterwarnings(PLANNED)
def test_after_any_failed_sync_nothing_is_acknowledged_and_nothing_promised_is_lost(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fenced = refused_to_start = survived = 0
    every = sync_steps(tmp_path)
    chosen = share_of(every)
    with unsynced() as vfs:
        for step in chosen:
            life = Life(tmp_path / f"life-{step}", 0)
            life.disk.fail_sync_at = step
            try:
                life.play(at_the_end=lambda life=life: _judge_if_fenced(life))  # type: ignore[misc]
            except (CatalogDamagedError, FencedError, OSError):
                refused_to_start += 1  # it failed in a start-up
                continue
            assert life.disk.failed_syncs == 1, f"the sync at step {step} did not fail"
            fenced += life.node.store.fenced is not None
            survived += life.node.store.fenced is None
            after = [moment for moment in life.moments if moment.step >= step]
            for moment in (after[:30][-1], after[-1]):
                for fate in (WORST, PROCESS_ONLY):
                    judge_start(tmp_path / "arena", moment.image.survivor(fate), moment, vfs)

    assert fenced > 20 * len(chosen) // len(every)
    assert refused_to_start > 5 or chosen != every, "a tenth may miss the start-ups"
    count(request, "failed syncs", len(chosen), seed=0)
    assert survived < fenced, "only a sync of a checkpoint may fail without harm"


def _judge_if_fenced(life: Life) -> None:
    if life.node.store.fenced is not None:
        judge_fenced(life.node)


def test_sqlite_alone_would_go_on_after_a_failed_sync(tmp_path: Path) -> None:
    """The premise of the fence; if this fails, SQLite has changed."""
    disk = StrictDisk(tmp_path)
    with disk.recording():
        sql = apsw.Connection(str(tmp_path / "some.db"), vfs=disk.vfs)
        for statement in ("PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"):
            sql.execute(statement).fetchall()
        sql.execute("INSERT INTO t VALUES (1)")
        disk.fail_sync_at = disk.steps + 3  # header and page of one frame, then the sync
        with pytest.raises(apsw.IOError):
            sql.execute("INSERT INTO t VALUES (2)")
        sql.execute("INSERT INTO t VALUES (3)")

        assert disk.failed_syncs == 1
        assert sql.execute("SELECT x FROM t").fetchall() == [(1,), (3,)]
        sql.close()


# --- the disk, one call at a time ---------------------------------------------------------------


def node_with(cache_dir: Path, vfs: str, *faults: FileFault) -> tuple[Node, FaultyFiles]:
    cache_dir.mkdir(exist_ok=True)
    disk = DiskFiles(cache_dir)
    disk.prepare()
    files = FaultyFiles(disk, faults)
    return Node(cache_dir, Remote(), FakeClock(), files=files, vfs=vfs), files


def stored_files(cache_dir: Path) -> list[Path]:
    return sorted(cache_dir.glob("data/*/*"))


@pytest.mark.parametrize("operation", ["seal", "sync_name"])
@pytest.mark.parametrize("fault", [refuse, fail_late])
def test_a_failed_sync_of_a_file_fences_the_store_and_reads_go_on(
    tmp_path: Path, vfs: str, operation: str, fault: object
) -> None:
    assert fault in (refuse, fail_late)
    planned = (refuse if fault is refuse else fail_late)(operation, call=2)  # type: ignore[arg-type]
    node, files = node_with(tmp_path / "cache", vfs, planned)
    node.put(IDS, "sound", LARGE)

    with pytest.raises(FencedError):
        node.put(IDS, "failed", LARGE)

    assert files.fired == [planned]
    judge_fenced(node)
    assert node.get("run", 1, "sound") == LARGE
    assert len(stored_files(tmp_path / "cache")) == 2, "the file is for the next start to judge"
    node.die()


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (refuse("seal"), "removed"),
        (fail_late("seal"), "set aside"),
        (refuse("sync_name"), "set aside"),
    ],
    ids=["never marked", "marked and synced", "name not synced"],
)
def test_the_next_start_takes_the_file_of_a_failed_sync_away(
    tmp_path: Path, vfs: str, fault: FileFault, where: str
) -> None:
    node, _ = node_with(tmp_path / "cache", vfs, fault)
    with pytest.raises(FencedError):
        node.put(IDS, "failed", LARGE)
    node.die()

    again = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)

    assert stored_files(tmp_path / "cache") == []
    found = (again.recovered.rubbish_files, again.recovered.set_aside_files)
    assert found == ((1, 0) if where == "removed" else (0, 1))
    assert len(list((tmp_path / "cache" / "lost+found").iterdir())) == (where == "set aside")
    with pytest.raises(NotFoundError):
        again.get("run", 1, "failed")
    assert again.store.space.used_bytes == len(LARGE) * (where == "set aside")
    again.put(IDS, "failed", LARGE)
    again.die()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (refuse("create", number=errno.ENOSPC), "backpressure"),
        (refuse("create", number=errno.EDQUOT), "backpressure"),
        (refuse("create", number=errno.EMFILE), "backpressure"),
        (refuse("open", number=errno.EMFILE), "backpressure"),
        (refuse("create", number=errno.EIO), "backpressure"),
    ],
    ids=["disk full", "quota", "no descriptors", "no descriptor to check with", "I/O error"],
)
def test_a_disk_that_does_not_take_a_file_gives_the_room_back(
    tmp_path: Path, vfs: str, fault: FileFault, code: str
) -> None:
    node, files = node_with(tmp_path / "cache", vfs, fault)

    with pytest.raises(CachetierError) as refusal:
        node.put(IDS, "x", LARGE)

    assert (refusal.value.code, files.pending) == (code, [])
    assert node.store.space.used_bytes == 0
    assert stored_files(tmp_path / "cache") == []
    assert node.store.fenced is None
    node.put(IDS, "x", LARGE)
    node.die()


def test_a_file_that_cannot_be_removed_stays_accounted_and_the_next_start_sets_it_aside(
    tmp_path: Path, vfs: str
) -> None:
    node, files = node_with(tmp_path / "cache", vfs, refuse("remove"))
    node.put(IDS, "x", LARGE)

    node.put(IDS, "x", LARGE[::-1])

    assert files.pending == []
    assert node.store.space.used_bytes == 2 * len(LARGE)
    assert node.get("run", 1, "x") == LARGE[::-1]
    node.die()
    again = Node(tmp_path / "cache", Remote(), FakeClock(), vfs=vfs)
    assert again.recovered.set_aside_files == 1
    assert again.store.space.used_bytes == 2 * len(LARGE), "it takes room in lost+found as well"
    again.die()


def test_a_disk_too_full_to_extend_a_file_says_so_and_keeps_what_was_reserved(
    tmp_path: Path, vfs: str
) -> None:
    node, files = node_with(tmp_path / "cache", vfs, refuse("preallocate", number=errno.ENOSPC))
    staged = node.ingest.begin(IDS, "x", 1000, 0.0)
    assert isinstance(staged, Staged)

    with pytest.raises(BackpressureError):
        node.ingest.extend(staged, 5000, 0.0)

    assert files.pending == []
    assert node.store.space.used_bytes == 1000
    node.ingest.abort(staged)
    assert node.store.space.used_bytes == 0
    node.die()


# --- a full disk, at every step -----------------------------------------------------------------


@pytest.mark.filterwarnings(PLANNED)
def test_a_disk_that_is_full_at_any_step_refuses_cleanly_and_goes_on_once_there_is_room(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    trace = live(tmp_path / "sound", 0)[-1].disk.trace
    every = [n for n, step in enumerate(trace, 1) if step.startswith(("create", "allocate"))]
    every += [n for n, step in enumerate(trace, 1) if step.startswith("write")][::7]
    steps = share_of(every)
    refused_to_start = 0
    with unsynced() as vfs:
        for step in steps:
            life = Life(tmp_path / f"life-{step}", 0)
            life.disk.full_at = step
            life.workload.make_room = lambda life=life: setattr(life.disk, "full_at", None)
            try:
                life.play()
            except (CatalogDamagedError, DiskFullError, OSError):
                refused_to_start += 1
                continue
            assert life.disk.refused_for_room, f"the disk was not full at step {step}"
            end = life.moments[-1]
            judge_start(tmp_path / "arena", end.image.survivor(WORST), end, vfs)

    assert refused_to_start < len(steps) / 2 or steps != every, "a tenth may meet many start-ups"
    count(request, "steps that found the disk full", len(steps), seed=0)
