"""The strict disk itself: what it calls safe is exactly what POSIX does."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.crash.sweep import Life
from tests.fakes.power_loss import (
    DATA_ONLY,
    EMPTY,
    NAMES_ONLY,
    PROCESS_ONLY,
    WORST,
    Content,
    Fate,
    Luck,
    TornLog,
    merged,
    torn,
)
from tests.fakes.strict_disk import PowerLoss, StrictDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[StrictDisk]:
    with StrictDisk(tmp_path).recording() as disk:
        yield disk


def survivors(disk: StrictDisk, fate: Fate = WORST) -> dict[str, bytes]:
    return {path: content.data for path, content in disk.image().survivor(fate).files.items()}


def create(path: Path, data: bytes) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(descriptor, data, 0)
    return descriptor


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_a_file_whose_name_was_not_synced_is_gone(disk: StrictDisk, tmp_path: Path) -> None:
    descriptor = create(tmp_path / "x", b"bytes")
    os.fsync(descriptor)

    assert survivors(disk) == {}
    sync_directory(tmp_path)
    assert survivors(disk) == {"x": b"bytes"}
    os.close(descriptor)


def test_a_file_whose_bytes_were_not_synced_is_empty(disk: StrictDisk, tmp_path: Path) -> None:
    descriptor = create(tmp_path / "x", b"bytes")
    sync_directory(tmp_path)

    assert survivors(disk) == {"x": b""}
    os.fsync(descriptor)
    os.pwrite(descriptor, b"other", 0)
    os.setxattr(descriptor, "user.mark", b"late")
    assert survivors(disk) == {"x": b"bytes"}
    assert disk.image().survivor(WORST).files["x"].attributes == ()
    assert disk.image().survivor(PROCESS_ONLY).files["x"].attributes == (("user.mark", b"late"),)
    os.close(descriptor)


def test_a_removal_that_was_not_synced_is_undone(disk: StrictDisk, tmp_path: Path) -> None:
    os.close(create(tmp_path / "x", b"bytes"))
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    sync_directory(tmp_path)
    (tmp_path / "x").unlink()

    assert survivors(disk) == {"x": b"bytes"}
    sync_directory(tmp_path)
    assert survivors(disk) == {}


def test_a_rename_that_was_not_synced_is_undone(disk: StrictDisk, tmp_path: Path) -> None:
    for name in ("new", "old"):
        descriptor = create(tmp_path / name, name.encode())
        os.fsync(descriptor)
        os.close(descriptor)
    sync_directory(tmp_path)
    (tmp_path / "new").replace(tmp_path / "old")

    assert survivors(disk) == {"new": b"new", "old": b"old"}
    assert survivors(disk, PROCESS_ONLY) == {"old": b"new"}
    sync_directory(tmp_path)
    assert survivors(disk) == {"old": b"new"}


def test_a_directory_needs_a_sync_of_its_parent(disk: StrictDisk, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    descriptor = create(tmp_path / "a" / "x", b"bytes")
    os.fsync(descriptor)
    os.close(descriptor)
    sync_directory(tmp_path / "a")

    assert survivors(disk) == {}
    sync_directory(tmp_path)
    assert survivors(disk) == {"a/x": b"bytes"}


def test_names_and_bytes_may_survive_apart(disk: StrictDisk, tmp_path: Path) -> None:
    descriptor = create(tmp_path / "x", b"bytes")
    assert survivors(disk, NAMES_ONLY) == {"x": b""}
    assert survivors(disk, DATA_ONLY) == {}
    sync_directory(tmp_path)
    assert survivors(disk, DATA_ONLY) == {"x": b"bytes"}
    os.close(descriptor)


def test_an_inode_that_is_used_again_is_another_file(disk: StrictDisk, tmp_path: Path) -> None:
    descriptor = create(tmp_path / "x", b"first")
    os.fsync(descriptor)
    os.close(descriptor)
    sync_directory(tmp_path)
    (tmp_path / "x").unlink()
    os.close(create(tmp_path / "y", b"second"))

    assert survivors(disk, NAMES_ONLY) == {"y": b""}


def test_a_failed_sync_drops_pages_and_a_later_success_saves_only_newer_ones(
    disk: StrictDisk, tmp_path: Path
) -> None:
    descriptor = create(tmp_path / "x", bytes(512) + b"a" * 512)
    sync_directory(tmp_path)
    disk.fail_sync_at = disk.steps + 1
    with pytest.raises(OSError, match="planned"):
        os.fsync(descriptor)
    os.pwrite(descriptor, b"b" * 512, 0)
    os.fsync(descriptor)

    assert disk.failed_syncs == 1
    assert survivors(disk) == {"x": b"b" * 512 + bytes(512)}
    os.close(descriptor)


def test_once_the_power_is_off_nothing_changes_any_more(disk: StrictDisk, tmp_path: Path) -> None:
    descriptor = create(tmp_path / "x", b"bytes")
    disk.crash_at = disk.steps + 1
    with pytest.raises(PowerLoss):
        os.fsync(descriptor)
    with pytest.raises(PowerLoss):
        os.pwrite(descriptor, b"other", 0)
    with pytest.raises(PowerLoss):
        (tmp_path / "x").unlink()

    assert survivors(disk, PROCESS_ONLY) == {"x": b"bytes"}
    os.close(descriptor)


def test_a_commit_of_sqlite_survives_from_its_sync_on(disk: StrictDisk, tmp_path: Path) -> None:
    sql = apsw.Connection(str(tmp_path / "some.db"), vfs=disk.vfs)
    for statement in ("PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"):
        sql.execute(statement).fetchall()
    first = disk.steps
    sql.execute("INSERT INTO t VALUES (1)")
    kinds = [step.split()[0] for step in disk.trace[first:]]
    assert kinds == ["write", "write", "sync"]
    synced = disk.image().survivor(WORST)
    sql.close()

    assert rows_of(synced.files, tmp_path / "after") == [(1,)]


def test_a_page_that_is_written_again_after_a_failed_sync_is_saved_though_it_holds_the_same(
    disk: StrictDisk, tmp_path: Path
) -> None:
    """So it is when a checkpoint failed, and the next one begins."""
    sql = apsw.Connection(str(tmp_path / "some.db"), vfs=disk.vfs)
    for statement in ("PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"):
        sql.execute(statement).fetchall()
    sql.execute("INSERT INTO t VALUES (1)")
    disk.fail_sync_at = disk.steps + 5  # of the log, two pages, the length, of the database
    with pytest.raises(apsw.IOError):
        sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    assert disk.trace[-1] == "sync some.db"
    sql.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    synced = disk.image().survivor(WORST).files["some.db"]
    sql.close()

    assert rows_of({"some.db": synced}, tmp_path / "after") == [(1,)]


def rows_of(files: object, place: Path) -> object:
    assert isinstance(files, dict)
    place.mkdir()
    for name, content in files.items():
        (place / name).write_bytes(content.data)
    sql = apsw.Connection(str(place / "some.db"))
    try:
        return sql.execute("SELECT x FROM t").fetchall()
    finally:
        sql.close()


@pytest.fixture
def _cut_lives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Collect what lives that were cut leave: nobody can close their catalogs in good order."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _what: None)
    yield
    gc.collect()


@pytest.mark.usefixtures("_cut_lives")
def test_the_image_of_a_step_is_what_a_cut_at_that_step_leaves(tmp_path: Path) -> None:
    """Sweeps look at images of one life; ``crash_at`` ends a life for real. Both must agree."""
    whole = Life(tmp_path / "whole", 0)
    whole.play()
    for step in random.Random(1).sample(range(20, whole.disk.steps - 1), 12):
        cut = Life(tmp_path / f"cut-{step}", 0)
        cut.disk.crash_at = step
        with pytest.raises(PowerLoss):
            cut.play()
        cut.disk.crash_at = None
        for fate in (WORST, PROCESS_ONLY):
            left = shapes(cut.disk, fate)
            assert left == shapes_of(whole, step, fate), f"step {step}"
        cut.moments.clear()  # images of every step, which its catalog would keep


def shapes(disk: StrictDisk, fate: Fate) -> list[tuple[str, int]]:
    """Describe what survives by folder and size: ids and salts differ from life to life."""
    files = disk.image().survivor(fate).files
    return sorted((_kind(path), len(content.data)) for path, content in files.items())


def shapes_of(life: Life, step: int, fate: Fate) -> list[tuple[str, int]]:
    steps = (moment for moment in life.moments if not moment.change)
    files = next(m for m in steps if m.step == step - 1).image.survivor(fate).files
    return sorted((_kind(path), len(content.data)) for path, content in files.items())


def _kind(path: str) -> str:
    return "cache/data" if path.startswith("cache/data") else path


# --- what luck may leave ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_torn_bytes_are_old_or_new_in_each_sector(seed: int) -> None:
    old, new, dice = b"o" * 1500, b"n" * 2000, random.Random(seed)

    body = torn(old, new, size_bytes=2000, keep=lambda _: dice.random() < 0.5)

    for start in range(0, 2000, 512):
        part = slice(start, start + 512)
        assert body[part] in (new[part], old[part].ljust(len(body[part]), b"\0"))


def test_sectors_written_after_a_failed_sync_are_the_only_ones_merged() -> None:
    old, dropped, new = (Content(b) for b in (b"a" * 1024, b"b" * 1024, b"b" * 512 + b"c" * 512))

    assert merged(old, new, skip_like=dropped).data == b"a" * 512 + b"c" * 512


def test_luck_is_the_same_for_the_same_seed_and_leaves_what_was_synced_alone() -> None:
    synced, live = Content(b"a" * 2048), Content(b"b" * 2048)

    assert Luck(5).content("x", synced, live) == Luck(5).content("x", synced, live)
    assert Luck(5).content("x", synced, synced) is synced
    assert len({Luck(seed).content("x", synced, live).data for seed in range(30)}) > 5


def test_a_torn_log_ends_in_the_middle_and_other_files_do_not() -> None:
    log = Content(bytes(range(256)) * 64)

    lengths = {len(TornLog(seed).content("a-wal", EMPTY, log).data) for seed in range(10)}
    assert len(lengths) > 5
    assert TornLog(1).content("data", EMPTY, log) == EMPTY
