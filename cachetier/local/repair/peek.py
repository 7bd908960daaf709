"""A look into a catalog from outside, that changes nothing on the disk.

For tools that work beside a service, or without one. SQLite would create files to read a database
in WAL mode; where there is no WAL nothing is missing from the database itself, and it is read as
if nobody could write to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import apsw

from cachetier.local.recovery import CATALOG_NAME

BUSY_MILLISECONDS = 2_000


@contextmanager
def peeked(cache_dir: Path) -> Iterator[apsw.Connection | None]:
    """Lend a read-only connection to the catalog of ``cache_dir``; None where there is none.

    Raises:
        apsw.Error: It cannot be read: no rights, or damaged.
    """
    path = (cache_dir / CATALOG_NAME).absolute()
    if not path.exists():
        yield None
        return
    wal = path.with_name(f"{path.name}-wal")
    immutable = not wal.exists() or wal.stat().st_size == 0
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if immutable else ''}"
    connection = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        yield connection
    finally:
        connection.close()


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
