"""The catalog's log is lost while it held acknowledged commits: the node says so, and takes back.

SQLite opens a database without its log, and says nothing of the commits that went with it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import connection
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

LARGE = random.Random(1).randbytes(100_000)
SMALL = b"inside the catalog"
Harm = Callable[[Path], object]


def ids(step: int, rank: int = 0) -> SaveIds:
    return SaveIds("run", step, f"save-{step}", rank, 2)


def opened(cache_dir: Path, vfs: str) -> Node:
    return Node(cache_dir, MemoryObjectStore(minimum_part_bytes=1), FakeClock(), vfs=vfs)


def log_of(cache_dir: Path) -> Path:
    return cache_dir / "catalog.db-wal"


def files_of(cache_dir: Path) -> dict[str, bytes]:
    files = [path for path in cache_dir.rglob("*") if path.is_file()]
    return {path.name: path.read_bytes() for path in files if not path.name.endswith("-shm")}


@pytest.fixture
def killed(tmp_path: Path, vfs: str) -> Path:
    """A node that was stopped in good order, then saved three steps, and was killed."""
    cache_dir = tmp_path / "cache"
    node = opened(cache_dir, vfs)
    node.put(ids(1), "before", LARGE)
    node.close()
    node = opened(cache_dir, vfs)
    shutil.copy(log_of(cache_dir), tmp_path / "earlier-log")
    for step in (2, 3, 4):
        node.put(ids(step), "large", LARGE)
        node.put(ids(step, 1), "small", SMALL)
    node.die()
    return cache_dir


def remove(cache_dir: Path) -> None:
    log_of(cache_dir).unlink()


def empty(cache_dir: Path) -> None:
    log_of(cache_dir).write_bytes(b"")


def cut(cache_dir: Path) -> None:
    log_of(cache_dir).write_bytes(log_of(cache_dir).read_bytes()[:20])


def begin_another(cache_dir: Path) -> None:
    """Let somebody write the database without its log."""
    remove(cache_dir)
    sql = apsw.Connection(str(cache_dir / "catalog.db"))
    sql.execute("CREATE TABLE notes (x)")
    sql.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    sql.close()


def look_with_sqlite(cache_dir: Path) -> None:
    remove(cache_dir)
    sql = apsw.Connection(str(cache_dir / "catalog.db"))
    sql.execute("SELECT * FROM shards").fetchall()
    sql.close()


@pytest.mark.parametrize("harm", [remove, empty, cut, begin_another, look_with_sqlite])
def test_a_log_that_is_lost_is_refused_and_nothing_is_touched(
    killed: Path, vfs: str, harm: Harm
) -> None:
    harm(killed)
    before = files_of(killed)

    for _ in range(2):
        with pytest.raises(CatalogDamagedError, match="acknowledged commits") as refusal:
            opened(killed, vfs)
        assert "cachetier fsck --repair" in refusal.value.hint
    assert files_of(killed) == before


@pytest.mark.parametrize("lives", [1, 3])
def test_a_log_is_the_same_however_often_it_was_started_over_or_the_service_killed(
    killed: Path, vfs: str, lives: int
) -> None:
    for life in range(lives):
        node = opened(killed, vfs)
        for mode in ("PASSIVE", "FULL", "RESTART", "TRUNCATE") * 3:
            node.put(ids(5), f"{life}", mode.encode())
            node.store._committer._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
            if mode == "TRUNCATE":
                node.put(ids(5), f"{life}", b"after it")
        node.die()
    node = opened(killed, vfs)

    assert {row.name for row in node.rows() if row.step == 5} == {f"{n}" for n in range(lives)}
    assert node.get("run", 4, "large") == LARGE
    node.close()


def test_a_checkpoint_by_another_program_is_no_loss(killed: Path, vfs: str) -> None:
    """Those that copy databases while they are in use make some of their own."""
    node = opened(killed, vfs)
    for mode in ("TRUNCATE", "RESTART") * 5:
        other = apsw.Connection(str(killed / "catalog.db"))
        other.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        other.close()
        node.put(ids(5), "x", mode.encode())
    node.die()

    node = opened(killed, vfs)
    assert node.get("run", 5, "x") == b"RESTART"
    node.close()


@pytest.mark.parametrize("stop", [Node.die, Node.close])
def test_a_start_while_another_program_holds_the_catalog_is_no_loss(
    killed: Path, vfs: str, stop: Callable[[Node], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite finds the index of the log made, and counts how often it starts it over from 0."""
    monkeypatch.setattr(connection, "BUSY_MILLISECONDS", 0)
    other = apsw.Connection(str(killed / "catalog.db"))
    other.execute("BEGIN IMMEDIATE")
    node = opened(killed, vfs)
    other.execute("ROLLBACK")
    other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    other.close()
    node.put(ids(5), "x", LARGE)
    stop(node)

    node = opened(killed, vfs)
    assert node.get("run", 5, "x") == LARGE
    assert node.get("run", 4, "small") == SMALL
    node.close()


def test_a_clean_stop_needs_no_log(killed: Path, vfs: str) -> None:
    opened(killed, vfs).close()
    assert not log_of(killed).exists()
    assert not (killed / "running").exists()

    node = opened(killed, vfs)
    assert (killed / "running").exists()
    assert node.get("run", 4, "small") == SMALL
    node.close()


def test_a_fenced_node_leaves_the_log_as_it_is(killed: Path, vfs: str) -> None:
    node = opened(killed, vfs)
    node.put(ids(5), "x", SMALL)
    node.store.fence("a sync failed")
    node.close()
    assert log_of(killed).stat().st_size > 0

    node = opened(killed, vfs)
    assert node.get("run", 5, "x") == SMALL
    node.close()
