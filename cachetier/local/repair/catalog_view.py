"""A read-only view of a catalog, whole or damaged, alone or beside the running service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from cachetier.errors import CatalogDamagedError, ConfigError
from cachetier.local.catalog import connection, schema, wal
from cachetier.local.recovery import CATALOG_NAME, refuse_other_store
from cachetier.local.repair.peek import peeked

Result = TypeVar("Result")


class CatalogView:
    """Reads of one catalog; each sees it as it is at that moment."""

    def __init__(self, sql: apsw.Connection) -> None:
        self._sql = sql

    def read(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Run ``query``.

        Raises:
            CatalogDamagedError: The database itself cannot be read.
        """
        try:
            return query(self._sql)
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
            wal.check(path.with_name(f"{CATALOG_NAME}-wal"))
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
    if found != schema.VERSION:
        raise ConfigError(
            f"the catalog has schema {found}, this cachetier knows {schema.VERSION}",
            hint="Use the cachetier that wrote it, or start this one once: it brings an older "
            "catalog up to date.",
        )
    refuse_other_store(cache_dir, connection.store_id_of(sql))
    return CatalogView(sql)
