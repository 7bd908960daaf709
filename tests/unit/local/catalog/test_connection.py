"""A catalog that cannot be opened safely is not opened, and says what to do."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from cachetier.errors import CatalogDamagedError, ConfigError
from cachetier.local.catalog import connection
from cachetier.local.catalog.connection import open_writer


def test_a_sqlite_that_may_lose_commits_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SAFE_SQLITE", apsw.SQLITE_VERSION_NUMBER + 1)

    with pytest.raises(ConfigError, match="may lose commits") as refused:
        open_writer(tmp_path / "catalog.db", 1.0)

    assert "pinned requirements" in refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_catalog_that_is_a_directory_is_damaged_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    path.mkdir()

    with pytest.raises(CatalogDamagedError, match="cannot be opened"):
        open_writer(path, 1.0)

    assert path.is_dir()


def test_a_catalog_that_could_not_begin_its_log_is_not_marked_as_running(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    sql = apsw.Connection(str(path))
    sql.execute("PRAGMA journal_mode = DELETE").fetchall()

    with pytest.raises(CatalogDamagedError, match="create its log"):
        connection.begin_mark(sql, path)

    assert not connection.mark_path(path).exists()
    sql.close()
