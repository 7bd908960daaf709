"""A catalog opened to be mended, before anything else relies on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier.local import connection
from cachetier.local.catalog_view import CatalogView
from cachetier.local.committer import Committer
from cachetier.local.mend_log import MendLog
from cachetier.local.recovery import CATALOG_NAME


@contextmanager
def mending(cache_dir: Path, now: float) -> Iterator[tuple[CatalogView, MendLog]]:
    """Open the catalog of a locked ``cache_dir``: to look at, and to mend.

    Raises:
        CatalogDamagedError: It cannot be opened at all.
    """
    path = cache_dir / CATALOG_NAME
    writer = connection.open_writer(path, now)
    reader = connection.open_reader(path)
    committer = Committer(writer, lambda _reason: None)
    try:
        yield CatalogView(reader), MendLog(committer)
    finally:
        reader.close()
        committer.close()
