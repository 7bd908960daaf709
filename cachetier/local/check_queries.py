"""Reads of a catalog that may be damaged: nothing in it is taken on trust."""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from cachetier.errors import CatalogDamagedError
from cachetier.local import queries, rows
from cachetier.model.shard import Shard
from cachetier.model.stored import Stored

COMPLAINTS = 20
PAGE_ROWS = 500
_HERE = "(file_id IS NOT NULL OR inline)"


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row of a shard: ``shard`` is None where the row is not what was written."""

    version: int
    number: int
    run: str
    step: int
    save_state: str
    name: str
    file_id: str | None
    body_bytes: int | None
    shard: Shard | None
    remotes: tuple[str, ...]


def complaints(sql: apsw.Connection) -> list[str]:
    """Return what SQLite itself finds wrong with the catalog's pages, tables and references."""
    found = [str(row[0]) for row in sql.execute(f"PRAGMA integrity_check({COMPLAINTS})")]
    lost = [str(row[0]) for row in sql.execute("PRAGMA foreign_key_check").fetchall()]
    return [
        *(line for line in found if line != "ok"),
        *(f"a row of {table} belongs to nothing" for table in lost[:COMPLAINTS]),
    ]


def checked_rows(
    sql: apsw.Connection, after: int, limit: int = PAGE_ROWS, run: str | None = None
) -> list[CheckedRow]:
    """Return up to ``limit`` rows of shards with versions above ``after``, ascending."""
    query = (
        f"SELECT {rows.SHARD_COLUMNS}, saves.number, saves.state, "
        "(SELECT length(body) FROM bodies WHERE bodies.version = shards.version) "
        "FROM shards JOIN saves ON saves.number = shards.save "
        "WHERE shards.version > ?1 AND (?2 IS NULL OR saves.run = ?2) "
        "ORDER BY shards.version LIMIT ?3"
    )
    return [_checked(sql, tuple(row)) for row in sql.execute(query, (after, run, limit)).fetchall()]


def rows_of_save(
    sql: apsw.Connection, number: int, after: int, remote: str, limit: int = PAGE_ROWS
) -> list[tuple[CheckedRow, Stored | None]]:
    """Return rows of a save likewise, each with as what ``remote`` holds the shard."""
    query = (
        f"SELECT {rows.SHARD_COLUMNS}, saves.number, saves.state, NULL "
        "FROM shards JOIN saves ON saves.number = shards.save "
        "WHERE shards.save = ? AND shards.version > ? ORDER BY shards.version LIMIT ?"
    )
    found = sql.execute(query, (number, after, limit)).fetchall()
    checked = [_checked(sql, tuple(row)) for row in found]
    return [(row, stored_at(sql, row.version, remote)) for row in checked]


def names_of(sql: apsw.Connection, number: int) -> set[str]:
    """Return the names of the shards of a save that this node knows."""
    query = "SELECT name FROM shards WHERE save = ?"
    return {str(row[0]) for row in sql.execute(query, (number,))}


def checked_row(sql: apsw.Connection, version: int) -> CheckedRow | None:
    """Return one row, or None where it is gone."""
    found = checked_rows(sql, version - 1, 1)
    return found[0] if found and found[0].version == version else None


def _checked(sql: apsw.Connection, row: tuple[object, ...]) -> CheckedRow:
    *columns, number, save_state, body_bytes = row
    try:
        shard = rows.shard_of(tuple(columns))
    except (CatalogDamagedError, ValueError, TypeError):
        shard = None
    version, run, step, _, name = columns[:5]
    file_id = columns[11]
    assert isinstance(version, int)
    assert isinstance(number, int)
    assert isinstance(step, int)
    return CheckedRow(
        version,
        number,
        str(run),
        step,
        str(save_state),
        str(name),
        file_id if isinstance(file_id, str) else None,
        body_bytes if isinstance(body_bytes, int) else None,
        shard,
        tuple(sorted(queries.verified_remotes(sql, version))),
    )


def stored_at(sql: apsw.Connection, version: int, remote: str) -> Stored | None:
    """Return as what ``remote`` holds a shard; None where that is unknown, or damaged."""
    try:
        return queries.stored_of(sql, version, remote)
    except (CatalogDamagedError, ValueError):
        return None


def has_file(sql: apsw.Connection, file_id: str) -> bool:
    """Return whether a row names a data file; a walk over all of them."""
    query = "SELECT 1 FROM shards WHERE file_id = ?"
    return sql.execute(query, (file_id,)).fetchone() is not None


def accounts(sql: apsw.Connection) -> tuple[int, int]:
    """Return the local bytes by the indexes, as they are accounted, and by a walk over the rows."""
    walked = sql.execute(
        "SELECT coalesce(sum(size_bytes), 0) FROM shards NOT INDEXED "
        f"WHERE state IN ('dirty', 'quarantined') OR (state = 'clean' AND {_HERE})"
    ).get
    return queries.totals(sql).local_bytes, int(walked)


def members_of_pack(sql: apsw.Connection, number: int, remote: str, pack: str) -> list[int]:
    """Return the versions of the shards of a save in a pack, in the order of its bytes."""
    query = (
        "SELECT version FROM drains JOIN shards USING (version) WHERE pack = ? AND remote = ? "
        "AND save = ? ORDER BY pack_start, size_bytes, version"
    )
    return [int(row[0]) for row in sql.execute(query, (pack, remote, number))]
