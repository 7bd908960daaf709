"""Open a catalog for repair, before anything else relies on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import connection, wal
from cachetier.local.catalog.committer import Committer
from cachetier.local.recovery import CATALOG_NAME, refuse_other_store
from cachetier.local.repair.catalog_view import CatalogView


@contextmanager
def mending(cache_dir: Path, now: float) -> Iterator[tuple[CatalogView, Committer]]:
    """Open the catalog of a locked ``cache_dir``: to look at, and to mend.

    Raises:
        CatalogDamagedError: It cannot be opened at all, or opening it would lose commits.
    """
    path = cache_dir / CATALOG_NAME
    if not path.exists():  # opening it would make an empty one
        raise CatalogDamagedError(f"{CATALOG_NAME} is missing")
    wal.check(path.with_name(f"{CATALOG_NAME}-wal"))  # SQLite drops what follows a damaged frame
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
