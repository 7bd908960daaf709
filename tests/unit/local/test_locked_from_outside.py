"""Another program holds the catalog's lock while a node starts or stops: nothing is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import BackpressureError, FencedError
from cachetier.local.catalog import connection
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save")


@pytest.fixture
def start(tmp_path: Path, vfs: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Node]:
    """Starts a node that waits for no lock."""
    monkeypatch.setattr(connection, "BUSY_MILLISECONDS", 0)
    remote = MemoryObjectStore(minimum_part_bytes=1)
    return lambda: Node(tmp_path / "cache", remote, FakeClock(), vfs=vfs)


@contextmanager
def locked(cache_dir: Path) -> Iterator[None]:
    other = apsw.Connection(str(cache_dir / "catalog.db"))
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # or the log would go with it
        other.close()


def test_a_start_says_who_is_in_the_way_and_calls_nothing_damaged(
    start: Callable[[], Node],
) -> None:
    node = start()
    node.put(IDS, "x", b"bytes")
    node.close()

    with locked(node.cache_dir), pytest.raises(BackpressureError, match="holds the lock") as said:
        start()

    assert "sqlite3" in said.value.hint
    node = start()
    assert node.get("run", 1, "x") == b"bytes"
    node.close()


def test_a_stop_ends_all_the_same_and_leaves_the_log_to_the_next_start(
    start: Callable[[], Node],
) -> None:
    node = start()
    node.put(IDS, "x", b"bytes")

    with locked(node.cache_dir):
        node.close()

    with pytest.raises(FencedError):
        node.put(IDS, "y", b"late")
    node = start()
    assert node.get("run", 1, "x") == b"bytes"
    node.close()
