"""A catalog opened from outside the service: to be looked at, repaired, or begun again.

It may be whole or damaged, alone or beside the service that writes it. A look changes nothing on
the disk: SQLite would create files to read a database in WAL mode; where there is no WAL nothing is
missing from the database itself, and it is read as if nobody could write to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import apsw

from cachetier.errors import CatalogDamagedError, ConfigError
from cachetier.local.catalog import connection, schema
from cachetier.local.catalog.committer import Committer
from cachetier.local.files.data_files import DiskFiles, sync_directory
from cachetier.local.lost_and_found import Identity
from cachetier.local.recovery import CATALOG_NAME, refuse_other_store, store_id_in
from cachetier.model.names import STORE_ID_NAME

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
BUSY_MILLISECONDS = 2_000


class CatalogView:
    """Reads of one catalog; each sees it as it is at that moment."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql

    def read(
        self,
        query: Callable[Concatenate[apsw.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Run ``query`` with ``args``.

        Raises:
            CatalogDamagedError: The database itself cannot be read.
        """
        try:
            return query(self._sql, *args, **kwargs)
        except apsw.Error as error:
            raise CatalogDamagedError(f"the catalog cannot be read: {error}") from error


@contextmanager
def viewed(cache_dir: Path, *, alone: bool) -> Iterator[CatalogView]:
    """Open the catalog of ``cache_dir`` for reading; ``alone``: nobody else writes it.

    Raises:
        CatalogDamagedError: It is missing, damaged, or of another store.
        ConfigError: It has another schema.
    """
    path = cache_dir / CATALOG_NAME
    if not path.exists():
        raise CatalogDamagedError(f"{CATALOG_NAME} is missing")
    try:
        if alone:
            connection.check_log(path, may_be_lost=True)
            with peeked(cache_dir) as sql:
                assert sql is not None
                yield _usable(sql, cache_dir)
            return
        reader = connection.open_reader(path)
        try:
            yield _usable(reader, cache_dir)
        finally:
            reader.close()
    except apsw.Error as error:
        raise CatalogDamagedError(f"{CATALOG_NAME} cannot be read: {error}") from error


def _usable(sql: apsw.Connection, cache_dir: Path) -> CatalogView:
    found = int(sql.pragma("user_version"))
    if not found and (cache_dir / STORE_ID_NAME).exists():
        raise CatalogDamagedError(f"{CATALOG_NAME} is empty")
    if found != schema.VERSION:
        raise ConfigError(
            f"the catalog has schema {found}, this cachetier knows {schema.VERSION}",
            hint="Use the cachetier that wrote it, or start this one once: it brings an older "
            "catalog up to date.",
        )
    refuse_other_store(cache_dir, connection.store_id_of(sql))
    return CatalogView(sql)


@contextmanager
def mending(
    cache_dir: Path, now: float, *, log_may_be_lost: bool = False
) -> Iterator[tuple[CatalogView, Committer]]:
    """Open the catalog of a locked ``cache_dir``: to look at, and to mend.

    Raises:
        CatalogDamagedError: It cannot be opened at all, or opening it would lose commits.
    """
    path = cache_dir / CATALOG_NAME
    if not path.exists():  # opening it would make an empty one
        raise CatalogDamagedError(f"{CATALOG_NAME} is missing")
    connection.check_log(path, may_be_lost=log_may_be_lost)
    writer = connection.open_writer(path, now)
    try:
        refuse_other_store(cache_dir, connection.store_id_of(writer))
        reader = connection.open_reader(path)
    except BaseException:
        connection.abandon(writer)
        raise
    committer = Committer(writer, lambda _reason: None)
    try:
        yield CatalogView(reader), committer
    finally:
        reader.close()
        committer.close()


@contextmanager
def peeked(cache_dir: Path) -> Iterator[apsw.Connection | None]:
    """Lend a read-only connection to the catalog of ``cache_dir``; None where there is none.

    Raises:
        apsw.Error: It cannot be read: no rights, or damaged.
    """
    path = cache_dir.resolve() / CATALOG_NAME
    if not path.exists():
        yield None
        return
    log = path.with_name(f"{path.name}-wal")
    immutable = not log.exists() or log.stat().st_size == 0
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW
    sql = apsw.Connection(uri, flags=flags)
    try:
        sql.set_busy_timeout(BUSY_MILLISECONDS)
        yield sql
    finally:
        sql.close()


def largest_save(cache_dir: Path) -> int | None:
    """Return the bytes of the largest save that this node ever held; None where nobody can tell."""
    query = (
        "SELECT sum(size_bytes) AS size_bytes FROM shards GROUP BY save "
        "ORDER BY size_bytes DESC LIMIT 1"
    )
    with suppress(apsw.Error, OSError), peeked(cache_dir) as sql:
        row = sql.execute(query).fetchone() if sql is not None else None
        return int(row[0]) if row else None
    return None


# --- a catalog that is lost for good -------------------------------------------------------------


def begin_anew(cache_dir: Path, now: float) -> str:
    """Replace the catalog by an empty one; return the new name of the old one.

    It has the id of the store whose data files these are. Files without a mark are set aside: they
    may be shards whose marks were lost, as in a copy, and no row tells any more. Until the files
    are taken back and ``running.remove`` is called, no service starts on it.
    """
    connection.begin_mark_without_log(cache_dir / CATALOG_NAME)
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
    connection.close_writer(writer, sound=True)
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
    found = store_id_in(cache_dir)
    if found is not None:
        return found
    files = DiskFiles(cache_dir)
    marks = (Identity.parsed(files.identity(file_id)) for file_id, _ in files.all())
    return next((mark.store_id for mark in marks if mark is not None), None)
