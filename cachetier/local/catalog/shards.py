"""Rows of shards: reads, bodies, the local copy, damage, and whether a shard is at every remote.

A shard's rows in ``drains`` say which remotes hold it: without ``verified_at`` the remote was not
asked yet, or lost it. Functions that write run inside a transaction (``Store.write``).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import apsw
from cachetier_client.bucket_format.stored import Stored

from cachetier.errors import NotFoundError
from cachetier.local.catalog import notes, rows
from cachetier.local.catalog.rows import (
    IS_CLEAN,
    IS_DIRTY,
    IS_EVICTED,
    IS_QUARANTINED,
    IncidentRecord,
    NewShard,
    Summary,
)
from cachetier.local.catalog.states import move
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import AWAITED_COPIES, SOUND_SHARDS, ShardEvent, ShardState, after
from cachetier.model.names import DURABLE
from cachetier.model.packs import PACKED_UP_TO_BYTES
from cachetier.model.shard import MEMORY, Shard

# A condition on rows of ``shards``.
NOT_VERIFIED_AT = (
    "NOT EXISTS (SELECT 1 FROM verified_copies WHERE version = shards.version AND remote = ?)"
)
_STORED = ", ".join(f"copy.{column}" for column in rows.STORED_COLUMNS.split(", "))


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A condition on rows of the index of dirty shards, and the values it takes."""

    clause: str = "TRUE"
    values: tuple[object, ...] = ()


ALL = ShardFilter()
# What was lost as an object of its own comes back as one: documents may say so.
_SMALL = (
    f"shards.size_bytes <= {PACKED_UP_TO_BYTES} AND shards.version NOT IN (SELECT version "
    "FROM lost_copies WHERE pack IS NULL)"
)


def small_of(rank: int) -> ShardFilter:
    """Return the condition of shards of ``rank`` that may be packed."""
    return ShardFilter(f"shards.rank = ? AND {_SMALL}", (rank,))


def beside_small_of(ranks: Collection[int]) -> ShardFilter:
    """Return the condition of all other shards than those that ``ranks`` may pack."""
    clause = f"NOT (shards.rank IN (SELECT value FROM json_each(?)) AND {_SMALL})"
    return ShardFilter(clause, (json.dumps(sorted(ranks)),))


def shards_where(sql: apsw.Connection, condition: str, *values: object) -> list[Shard]:
    """Return the shards whose rows, joined with those of their saves, meet ``condition``."""
    query = f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON number = save WHERE {condition}"
    return [rows.shard_of(row) for row in sql.execute(query, values)]


def clean_local_shards_of(sql: apsw.Connection, number: int) -> list[Shard]:
    """Return the shards of a save whose local bytes may go."""
    return shards_where(sql, f"save = ? AND {IS_CLEAN} AND here", number)


def shards_of(sql: apsw.Connection, number: int) -> list[Shard]:
    return shards_where(sql, "save = ? ORDER BY version", number)


def summary_of(sql: apsw.Connection, number: int) -> Summary:
    query = (
        f"SELECT count(*), coalesce(sum(size_bytes), 0), coalesce(sum({IS_DIRTY}), 0), "
        f"coalesce(sum(iif({IS_DIRTY}, size_bytes, 0)), 0), "
        f"coalesce(sum({IS_QUARANTINED}), 0), coalesce(sum({IS_EVICTED}), 0), "
        f"coalesce(sum(coalesce(file_id, '') >= '{MEMORY}'), 0) "
        "FROM shards WHERE save = ?"
    )
    row = sql.execute(query, (number,)).fetchone()
    assert row is not None
    return Summary(*row)


def whole_ranks(sql: apsw.Connection, number: int) -> list[int]:
    """Return the ranks of which this node knows shards, and has every one."""
    return rows.column(
        sql,
        "SELECT rank FROM shards WHERE save = ? GROUP BY rank "
        f"HAVING sum({SOUND_SHARDS.sql_not()}) = 0 ORDER BY rank",
        number,
    )


def dirty_shards_of(
    sql: apsw.Connection,
    number: int,
    limit: int = -1,
    remote: str | None = None,
    shard_filter: ShardFilter = ALL,
) -> list[Shard]:
    """Return the dirty shards of a save, oldest first; up to ``limit`` unless it is negative.

    Of a ``remote`` those that are not verified there yet: the others wait for another one.
    """
    return shards_where(
        sql,
        f"shards.save = ? AND {IS_DIRTY} AND {NOT_VERIFIED_AT} "
        f"AND {shard_filter.clause} ORDER BY shards.version LIMIT ?",
        *(number, remote, *shard_filter.values, limit),
    )


def shards_of_rank(
    sql: apsw.Connection, number: int, rank: int, after: int, limit: int
) -> list[Shard]:
    """Return up to ``limit`` shards of a rank's part with versions above ``after``, ascending."""
    condition = "save = ? AND rank = ? AND version > ? ORDER BY version LIMIT ?"
    return shards_where(sql, condition, number, rank, after, limit)


def stored_shards_of_rank(
    sql: apsw.Connection, number: int, rank: int, remote: str, after: int, limit: int
) -> list[tuple[Shard, Stored | None]]:
    """Return the shards of ``shards_of_rank``, each with how ``remote`` stores it."""
    shards = shards_of_rank(sql, number, rank, after, limit)
    return [(shard, stored_of(sql, shard.version, remote)) for shard in shards]


def quarantined_shards(sql: apsw.Connection) -> list[Shard]:
    """Return the shards whose local bytes are damaged."""
    # The plus keeps SQLite from walking all shards by version, to spare itself sorting these few.
    return shards_where(sql, f"{IS_QUARANTINED} ORDER BY +version")


def unsound_ranks(sql: apsw.Connection, number: int) -> frozenset[int]:
    """Return the ranks of a save that have a quarantined shard."""
    return frozenset(
        rows.column(
            sql, f"SELECT DISTINCT rank FROM shards WHERE save = ? AND {IS_QUARANTINED}", number
        )
    )


def first_shard(sql: apsw.Connection, query: str, *values: object) -> Shard | None:
    """Return the first shard that ``query``, for the columns of shards, finds; None if none."""
    row = sql.execute(query, values).fetchone()
    return rows.shard_of(row) if row else None


def shard_named(sql: apsw.Connection, number: int, name: str) -> Shard | None:
    return next(iter(shards_where(sql, "save = ? AND name = ?", number, name)), None)


def shard_by_version(sql: apsw.Connection, version: int) -> Shard | None:
    return next(iter(shards_where(sql, "version = ?", version)), None)


def body_of(sql: apsw.Connection, version: int) -> bytes | None:
    row = sql.execute("SELECT body FROM bodies WHERE version = ?", (version,)).fetchone()
    return bytes(row[0]) if row else None


def clean_local_shards(sql: apsw.Connection) -> list[Shard]:
    """Return every shard whose local bytes may go, save by save, oldest first."""
    condition = f"{IS_CLEAN} AND here AND {notes.NOT_PINNED} ORDER BY save, version"
    return shards_where(sql, condition)


def files(sql: apsw.Connection) -> Iterator[tuple[str, int, int]]:
    """Yield (file_id, version, size_bytes) of every data file that must be there."""
    query = "SELECT file_id, version, size_bytes FROM shards WHERE file_id IS NOT NULL"
    yield from sql.execute(query)


def stored_of(sql: apsw.Connection, version: int, remote: str) -> Stored | None:
    """Return how ``remote`` stores a shard, or None where nobody verified that it does."""
    return stored_in(sql, "verified_copies", version, remote)


def stored_in(sql: apsw.Connection, view: str, version: int, remote: str) -> Stored | None:
    """Return how ``remote`` stores, or stored, a shard by the row of ``view``; None without one."""
    query = (
        f"SELECT size_bytes, {_STORED} FROM {view} AS copy JOIN shards USING (version) "
        "WHERE version = ? AND remote = ?"
    )
    row = sql.execute(query, (version, remote)).fetchone()
    return rows.stored_of(row) if row else None


def verified_remotes(sql: apsw.Connection, version: int) -> set[str]:
    return set(rows.column(sql, "SELECT remote FROM verified_copies WHERE version = ?", version))


def insert_shard(sql: apsw.Connection, save: Save, new: NewShard, now: float) -> Shard:
    """Insert a shard and return it."""
    sql.execute(
        "INSERT INTO shards (save, file_id, inline, state, committed_at, "
        f"{', '.join(rows.PUT_COLUMNS)}) VALUES (?, ?, ?, ?, ?{', ?' * len(rows.PUT_COLUMNS)})",
        (
            *(save.number, new.file_id, int(new.body is not None), new.state, now),
            *rows.row_of_new_shard(save.save_id, new),
        ),
    )
    version = sql.last_insert_rowid()
    if new.body is not None:
        sql.execute("INSERT INTO bodies VALUES (?, ?)", (version, new.body))
    for copy in new.copies:
        insert_stored(sql, version, copy.remote, copy.stored, now)
    of_save = save.number, save.run, save.step, save.save_id
    place = new.state, new.file_id, new.body is not None, now
    return Shard(version, *of_save, new.name, new.rank, new.content, *place, new.facts)


def insert_stored(
    sql: apsw.Connection, version: int, remote: str, stored: Stored, verified_at: float
) -> None:
    """Remember that ``remote`` holds a shard, and how it stores it."""
    columns = rows.STORED_COLUMNS.split(", ")
    news = ", ".join(f"{column} = excluded.{column}" for column in columns)
    sql.execute(
        f"INSERT INTO drains (version, remote, verified_at, {rows.STORED_COLUMNS}) "
        f"VALUES (?, ?, ?{', ?' * len(columns)}) ON CONFLICT (version, remote) DO UPDATE SET "
        f"verified_at = excluded.verified_at, {news}",
        (version, remote, verified_at, *rows.row_of_stored(stored)),
    )


def delete_shard(sql: apsw.Connection, version: int) -> None:
    sql.execute("DELETE FROM shards WHERE version = ?", (version,))


def require(sql: apsw.Connection, version: int) -> Shard:
    shard = shard_by_version(sql, version)
    if shard is None:
        raise NotFoundError(f"shard version {version} was replaced or deleted")
    return shard


def local_bytes_of(sql: apsw.Connection, number: int) -> tuple[int, int]:
    """Return (shards, bytes) of a save that lie on this node."""
    query = "SELECT count(*), coalesce(sum(size_bytes), 0) FROM shards WHERE save = ? AND here"
    shards, size_bytes = sql.execute(query, (number,)).get
    return int(shards), int(size_bytes)


def evict(sql: apsw.Connection, version: int) -> Shard:
    """Record that a shard's local bytes go; return it as it was, with the file that is now free.

    Raises:
        NotFoundError: It was replaced or deleted meanwhile.
        PinnedError: Its step is pinned.
    """
    shard = require(sql, version)
    notes.refuse_pinned(sql, shard.run, shard.step)
    _place(sql, version, None, ShardEvent.EVICT)
    return shard


def record_damage(
    sql: apsw.Connection,
    version: int,
    incident: IncidentRecord | None,
    now: float,
    *,
    gone: bool = False,
) -> Shard:
    """Record that a shard's local bytes are damaged, or ``gone``; return it as it was.

    A clean one is evicted, as a remote has it; ``incident`` is recorded if it becomes quarantined.

    Raises:
        NotFoundError: It was replaced or deleted meanwhile.
    """
    shard = require(sql, version)
    state = after(shard.state, ShardEvent.LOCAL_DAMAGE)
    if gone or state is ShardState.EVICTED:
        _place(sql, version, None, ShardEvent.LOCAL_DAMAGE)
    else:
        move(sql, version, ShardEvent.LOCAL_DAMAGE)
    if incident is not None and state not in (shard.state, ShardState.EVICTED):
        notes.insert_incident(sql, incident, now)
    return shard


def attach(sql: apsw.Connection, version: int, file_id: str) -> Shard:
    """Give a shard its restored local file; return it as it was before.

    An evicted one is clean again; a quarantined one dirty, if a remote still waits for it.
    """
    shard = require(sql, version)
    _place(sql, version, file_id, *_restored(sql, version))
    return shard


def write_back(sql: apsw.Connection, version: int, file_id: str) -> Shard:
    """Record that the bytes of a shard in memory are in a file on the disk; return it as it was.

    Raises:
        NotFoundError: It was replaced or deleted, or its bytes went meanwhile.
    """
    shard = require(sql, version)
    if not shard.in_memory:
        raise NotFoundError(f"shard version {version} is not in memory any more")
    sql.execute("UPDATE shards SET file_id = ? WHERE version = ?", (file_id, version))
    return shard


def _restored(sql: apsw.Connection, version: int) -> tuple[ShardEvent, ...]:
    """Return the events of a shard whose local bytes are sound again."""
    everywhere = is_everywhere(sql, version)
    return (ShardEvent.RESTORED, *([ShardEvent.VERIFIED_REMOTELY] if everywhere else []))


def _place(sql: apsw.Connection, version: int, file_id: str | None, *events: ShardEvent) -> None:
    sql.execute("DELETE FROM bodies WHERE version = ?", (version,))
    move(sql, version, *events, also="file_id = ?, inline = 0", values=(file_id,))


def reindex(sql: apsw.Connection) -> None:
    """Rebuild every index from its table, and drop the copies of shards that have no row."""
    sql.execute("REINDEX").fetchall()
    sql.execute("DELETE FROM drains WHERE version NOT IN (SELECT version FROM shards)")
    sql.execute(
        "DELETE FROM uploaded_parts WHERE NOT EXISTS (SELECT 1 FROM drains "
        "WHERE version = uploaded_parts.version AND remote = uploaded_parts.remote)"
    )


def rewrite(sql: apsw.Connection, version: int, save_id: str, right: NewShard) -> None:
    """Write a shard's identity into its row again; the place of its bytes stays."""
    assigned = ", ".join(f"{column} = ?" for column in rows.PUT_COLUMNS)
    values = *rows.row_of_new_shard(save_id, right), version
    sql.execute(f"UPDATE shards SET {assigned} WHERE version = ?", values)


def quarantine(sql: apsw.Connection, version: int, incident: IncidentRecord, now: float) -> None:
    """Keep the damaged bytes of a clean shard, as no remote says that it has others.

    The remote encodings are kept, so that a later upload uses the same ones.
    """
    require(sql, version)
    move(sql, version, ShardEvent.LOST_REMOTELY, ShardEvent.LOCAL_DAMAGE)
    notes.insert_incident(sql, incident, now)


def reinstate(sql: apsw.Connection, version: int) -> None:
    """Take a shard out of quarantine, as its bytes here were found to be sound."""
    require(sql, version)
    move(sql, version, *_restored(sql, version))


def configured_replicas(sql: apsw.Connection) -> dict[str, bool]:
    """Return the replicas the catalog knows as those of the settings, and which are required."""
    return {name: bool(required) for name, required in sql.execute("SELECT * FROM replicas")}


def required_replicas(sql: apsw.Connection, version: int) -> set[str]:
    """Return the replicas that a shard must be at before it is clean."""
    return set(
        rows.column(
            sql,
            "SELECT replicas.name FROM replicas "
            "JOIN copies ON copies.remote = replicas.name "
            "JOIN shards ON shards.save = copies.save "
            f"WHERE shards.version = ? AND required AND {AWAITED_COPIES.sql('copies.state')}",
            version,
        )
    )


def is_everywhere(sql: apsw.Connection, version: int) -> bool:
    """Return whether a shard is verified at every remote that it must be at to be clean."""
    return {DURABLE} | required_replicas(sql, version) <= verified_remotes(sql, version)


def present_remotes(sql: apsw.Connection, version: int, durable: str) -> set[str]:
    """Return the remotes of the settings at which a shard is verified."""
    replicas = set(rows.column(sql, "SELECT name FROM replicas"))
    return verified_remotes(sql, version) & {durable, *replicas}
