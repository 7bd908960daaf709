"""A catalog of the schema before comes to have the tables of today; older ones are refused."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import connection, schema
from tests.crash.golden_directory import GOLDEN, unpack

BEFORE = f"schema-{schema.VERSION - 1}.tar.xz"


@pytest.fixture
def before(tmp_path: Path) -> apsw.Connection:
    """Return the catalog that the schema before left, with everything of its log."""
    unpack(GOLDEN / BEFORE, tmp_path)
    return apsw.Connection(str(tmp_path / "catalog.db"))


def described(sql: apsw.Connection) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    query = "SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'"
    for kind, name, text in sql.execute(query):
        columns = list(sql.execute(f"PRAGMA table_xinfo({name})")) if kind == "table" else None
        found[kind, name] = columns or " ".join(str(text).split())
    return found


def test_a_catalog_of_the_schema_before_becomes_as_a_new_one(before: apsw.Connection) -> None:
    new = apsw.Connection(":memory:")
    new.execute(schema.SCHEMA)

    before.execute(schema.FROM_BEFORE)

    assert described(before) == described(new)
    assert list(before.execute("PRAGMA foreign_key_check")) == []


def test_an_older_catalog_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = apsw.Connection(str(tmp_path / "catalog.db"))
    old.pragma("user_version", schema.VERSION - 2)
    old.close()

    with pytest.raises(CatalogDamagedError, match="and the one before") as refusal:
        connection.open_writer(tmp_path / "catalog.db", 0.0)

    assert refusal.value.hint.startswith("Start the cachetier that wrote it, flush")


def test_a_migration_that_is_cut_off_anywhere_leaves_the_catalog_before(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    for last in count(1):
        for each in tmp_path.iterdir():
            each.unlink() if each.is_file() else shutil.rmtree(each)
        unpack(GOLDEN / BEFORE, tmp_path)
        if not cut_off(path, last):
            break
        left = apsw.Connection(str(path))
        assert left.pragma("user_version") == schema.VERSION - 1
        assert "replaces" not in [column[1] for column in described(left)["table", "saves"]]
        left.close()
    assert last == 3, "each statement of the migration was the last once"
    writer = connection.open_writer(path, 0.0)
    assert writer.pragma("user_version") == schema.VERSION
    connection.abandon(writer)


def cut_off(path: Path, last: int) -> bool:
    """Open a catalog and end after statement ``last`` of its migration; return whether it did."""
    seen: list[str] = []

    def trace(cursor: apsw.Cursor, statement: str, _values: Any) -> bool:
        if cursor.connection.in_transaction:
            seen.append(statement)
        return len(seen) <= last

    def hook(opened: apsw.Connection) -> None:
        opened.exec_trace = trace

    apsw.connection_hooks.append(hook)
    try:
        connection.abandon(connection.open_writer(path, 0.0))
    except CatalogDamagedError:
        return True
    finally:
        apsw.connection_hooks.remove(hook)
    return False
