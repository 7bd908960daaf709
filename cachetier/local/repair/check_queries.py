"""Reads of a catalog that may be damaged: nothing in it is taken on trust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw
from cachetier_client.bucket_format.stored import FACT_NAMES, ShardFacts, Stored

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import figures, rows, shards
from cachetier.local.catalog.rows import IS_CLEAN, IS_DIRTY
from cachetier.model.lifecycle import UNSENT_SHARDS, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard

COMPLAINTS = 20
PAGE_ROWS = 500


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row of a shard: ``shard`` is None where the row is not what was written.

    ``remotes`` have it verified; of those of the settings among them, ``unreadable`` have a row
    whose encoding cannot be read. ``settled``: it is dirty, and no remote that it waits for lacks
    it.
    """

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
    unreadable: tuple[str, ...]
    settled: bool


def complaints(sql: apsw.Connection) -> list[str]:
    """Return the errors that SQLite finds in the catalog's pages, tables and references."""
    found = rows.column(sql, f"PRAGMA integrity_check({COMPLAINTS})")
    lost = rows.column(sql, "PRAGMA foreign_key_check")
    return [
        *(line for line in found if line != "ok"),
        *(f"rows of {table} belong to nothing" for table in dict.fromkeys(lost)),
    ]


def checked_rows(
    sql: apsw.Connection, after: int, limit: int = PAGE_ROWS, run: str | None = None
) -> list[CheckedRow]:
    """Return up to ``limit`` rows of shards with versions above ``after``, ascending."""
    query = (
        "SELECT saves.state, "
        "(SELECT length(body) FROM bodies WHERE bodies.version = shards.version), "
        f"{rows.SHARD_COLUMNS} FROM shards JOIN saves ON saves.number = shards.save "
        "WHERE shards.version > ?1 AND (?2 IS NULL OR saves.run = ?2) "
        "ORDER BY shards.version LIMIT ?3"
    )
    return [_checked(sql, tuple(row)) for row in sql.execute(query, (after, run, limit)).fetchall()]


def rows_of_save(
    sql: apsw.Connection, number: int, after: int, remote: str, limit: int = PAGE_ROWS
) -> list[tuple[CheckedRow, Stored | None]]:
    """Return rows of a save likewise, each with how ``remote`` stores the shard."""
    query = (
        f"SELECT saves.state, NULL, {rows.SHARD_COLUMNS} "
        "FROM shards JOIN saves ON saves.number = shards.save "
        "WHERE shards.save = ? AND shards.version > ? ORDER BY shards.version LIMIT ?"
    )
    found = sql.execute(query, (number, after, limit)).fetchall()
    checked = [_checked(sql, tuple(row)) for row in found]
    return [(row, stored_at(sql, row.version, remote)) for row in checked]


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """The readable rest of a shard's row that fails its own digest; ``body`` if that is inside.

    ``facts`` are without hints, which no digest covers.
    """

    name: str
    rank: int
    facts: ShardFacts
    row_digest: bytes
    body: bytes | None


def damaged_row(sql: apsw.Connection, version: int) -> DamagedRow | None:
    """Return the readable columns of a row that fails its digest, or None if it is gone."""
    query = (
        "SELECT name, rank, row_digest, (SELECT body FROM bodies WHERE version = shards.version), "
        f"{', '.join(FACT_NAMES)} FROM shards WHERE version = ?"
    )
    row = sql.execute(query, (version,)).fetchone()
    if row is None:
        return None
    name, rank, row_digest, body, *facts = row
    inside = None if body is None else bytes(body)  # an empty one is inside, too
    known = rows.facts_of(*facts).without_hints()
    return DamagedRow(str(name), int(rank), known, bytes(row_digest), inside)


def names_of(sql: apsw.Connection, number: int) -> set[str]:
    """Return the names of the shards of a save that this node knows."""
    return set(rows.column(sql, "SELECT name FROM shards WHERE save = ?", number))


def row_named(
    sql: apsw.Connection, number: int, name: str, remote: str
) -> tuple[Shard, Stored] | None:
    """Return a shard of a save, and how ``remote`` stores it; None if either is not known."""
    try:
        shard = shards.shard_named(sql, number, name)
    except CatalogDamagedError:
        return None
    stored = stored_at(sql, shard.version, remote) if shard is not None else None
    return (shard, stored) if shard is not None and stored is not None else None


def checked_row(sql: apsw.Connection, version: int) -> CheckedRow | None:
    """Return one row, or None where it is gone."""
    found = checked_rows(sql, version - 1, 1)
    return found[0] if found and found[0].version == version else None


def _checked(sql: apsw.Connection, row: tuple[object, ...]) -> CheckedRow:
    save_state, body_bytes, *columns = row
    try:
        shard = rows.shard_of(tuple(columns))
    except (CatalogDamagedError, ValueError, TypeError):
        shard = None
    found = dict(zip(rows.SHARD_COLUMNS.split(", "), columns, strict=True))
    version, number, step = found["shards.version"], found["shards.save"], found["saves.step"]
    file_id = found["shards.file_id"]
    assert isinstance(version, int)
    assert isinstance(number, int)
    assert isinstance(step, int)
    remotes = sorted(shards.verified_remotes(sql, version))
    asked = shards.present_remotes(sql, version, DURABLE)
    return CheckedRow(
        version,
        number,
        str(found["saves.run"]),
        step,
        str(save_state),
        str(found["shards.name"]),
        file_id if isinstance(file_id, str) else None,
        body_bytes if isinstance(body_bytes, int) else None,
        shard,
        tuple(remotes),
        tuple(name for name in sorted(asked) if stored_at(sql, version, name) is None),
        found["shards.state"] == ShardState.DIRTY and shards.is_everywhere(sql, version),
    )


def stored_at(sql: apsw.Connection, version: int, remote: str) -> Stored | None:
    """Return how ``remote`` stores a shard; None where that is unknown, or damaged."""
    try:
        return shards.stored_of(sql, version, remote)
    except (CatalogDamagedError, ValueError):
        return None


def has_file(sql: apsw.Connection, file_id: str) -> bool:
    """Return whether a row names a data file; a walk over all of them."""
    return rows.exists(sql, "SELECT 1 FROM shards WHERE file_id = ?", file_id)


def accounts(sql: apsw.Connection) -> tuple[int, int]:
    """Return the local bytes by the indexes, as they are accounted, and by a walk over the rows."""
    walked = sql.execute(
        "SELECT coalesce(sum(size_bytes), 0) FROM shards NOT INDEXED "
        f"WHERE {IS_DIRTY} OR (here AND ({UNSENT_SHARDS.sql()} OR {IS_CLEAN}))"
    ).get
    return figures.local_bytes(sql), int(walked)


def pack_of(
    sql: apsw.Connection, number: int, remote: str, pack: str, names: Sequence[str] = ()
) -> list[Shard]:
    """Return the shards of a save in a pack, in the order of its bytes: those of ``names`` if any.

    Raises:
        CatalogDamagedError: The row of one is damaged.
    """
    if names:
        found = [shards.shard_named(sql, number, name) for name in names]
    else:
        query = (
            "SELECT version FROM drains JOIN shards USING (version) WHERE pack = ? AND remote = ? "
            "AND save = ? ORDER BY pack_start, size_bytes, version"
        )
        versions = rows.column(sql, query, pack, remote, number)
        found = [shards.shard_by_version(sql, version) for version in versions]
    return [shard for shard in found if shard is not None]
