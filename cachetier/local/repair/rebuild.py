"""Rebuild a catalog that is lost for good; the old one is kept beside it."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from cachetier.local.catalog import connection
from cachetier.local.files.data_files import DiskFiles, sync_directory
from cachetier.local.lost_and_found import Identity
from cachetier.local.recovery import CATALOG_NAME, STORE_ID_NAME


def begin_anew(cache_dir: Path, now: float) -> str:
    """Put an empty catalog in the place of the one there is; return what that is called now.

    It has the id of the store whose data files these are. Files without a mark are set aside: they
    may be shards whose marks were lost, as in a copy, and no row tells any more.
    """
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    kept = f"catalog-{stamp}.db"
    for suffix in ("", "-wal", "-shm"):
        old = cache_dir / f"{CATALOG_NAME}{suffix}"
        if old.exists():
            os.replace(old, cache_dir / f"{kept}{suffix}")
    sync_directory(cache_dir)
    _set_unmarked_aside(cache_dir)
    writer = connection.open_writer(cache_dir / CATALOG_NAME, now)
    store_id = _store_id(cache_dir)
    if store_id is not None:
        writer.execute("UPDATE store SET id = ?", (store_id,)).fetchall()
    writer.close()
    sync_directory(cache_dir)
    return kept


def _set_unmarked_aside(cache_dir: Path) -> None:
    files = DiskFiles(cache_dir)
    files.prepare()
    for file_id, _ in list(files.all()):
        if files.identity(file_id) is None:
            files.set_aside(file_id)


def _store_id(cache_dir: Path) -> str | None:
    """Return the id that the directory, or else a data file, says."""
    try:
        return (cache_dir / STORE_ID_NAME).read_text().strip()
    except FileNotFoundError:
        pass
    files = DiskFiles(cache_dir)
    marks = (Identity.parsed(files.identity(file_id)) for file_id, _ in files.all())
    return next((mark.store_id for mark in marks if mark is not None), None)
