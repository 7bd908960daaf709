"""Reads of the catalog that concern what saves have reached at replicas."""

from __future__ import annotations

from dataclasses import dataclass, replace

import apsw

from cachetier.local.catalog import queries, rows
from cachetier.local.catalog.queries import ALL, ShardFilter
from cachetier.model.checkpoint import RankPart, Save, SaveState
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.replication import AWAITED_STATES, ReplicaState, shown_state
from cachetier.model.shard import Shard

_AWAITED = ", ".join(f"'{state}'" for state in AWAITED_STATES)
_HAS_BYTES = "(shards.file_id IS NOT NULL OR shards.inline)"
_NOT_THERE = (
    "NOT EXISTS (SELECT 1 FROM drains WHERE version = shards.version AND drains.remote = ? "
    "AND verified_at IS NOT NULL)"
)
_NOT_THERE_1 = _NOT_THERE.replace("?", "?1")


@dataclass(frozen=True, slots=True)
class Replication:
    """What a save has reached at one replica."""

    remote: str
    state: ReplicaState
    location: str | None
    published_at: float | None


@dataclass(frozen=True, slots=True)
class Lag:
    """What a remote is still owed; ``given_up`` counts the steps that it will never get whole."""

    steps: int = 0
    shards: int = 0
    size_bytes: int = 0
    given_up: int = 0


def configured(sql: apsw.Connection) -> dict[str, bool]:
    """Return the replicas the catalog knows as those of the settings, and which are required."""
    return {name: bool(required) for name, required in sql.execute("SELECT * FROM replicas")}


def location_at(sql: apsw.Connection, shard: Shard, remote: str, *, durable: bool) -> str | None:
    """Return where a remote has the objects of a shard's save, or None."""
    if durable:
        save = queries.save_by_number(sql, shard.save)
        return save.location if save is not None else None
    found = replication_of(sql, shard.save, remote)
    return found.location if found is not None else None


def replication_of(sql: apsw.Connection, number: int, remote: str) -> Replication | None:
    return next((each for each in replications_of(sql, number) if each.remote == remote), None)


def replications_of(sql: apsw.Connection, number: int) -> list[Replication]:
    """Return what a save has reached at each replica of the settings."""
    query = (
        "SELECT remote, state, location, published_at FROM replications "
        "JOIN replicas ON name = remote WHERE save = ? ORDER BY remote"
    )
    return [
        Replication(remote, ReplicaState(state), location or None, published_at)
        for remote, state, location, published_at in sql.execute(query, (number,))
    ]


def due_saves(sql: apsw.Connection, remote: str) -> list[Save]:
    """Return the saves with work left at a replica, as its drain sees them, by arrival.

    Their state and their location are those of the replica.
    """
    columns = ", ".join(f"saves.{column}" for column in rows.SAVE_COLUMNS.split(", "))
    query = (
        f"SELECT replications.state, replications.location, {columns} FROM replications "
        "JOIN saves ON saves.number = replications.save "
        "WHERE replications.remote = ? AND replications.due ORDER BY saves.number"
    )
    return [
        _seen_there(rows.save_of(row), ReplicaState(state), location)
        for state, location, *row in sql.execute(query, (remote,))
    ]


def save_at(sql: apsw.Connection, number: int, remote: str) -> Save | None:
    """Return a save as the drain of a replica sees it."""
    save = queries.save_by_number(sql, number)
    found = replication_of(sql, number, remote)
    if save is None or found is None:
        return None
    return _seen_there(save, found.state, found.location)


def _seen_there(save: Save, there: ReplicaState, location: str | None) -> Save:
    """Return a save as a replica's drain sees it; what is durable replaces any other there."""
    overwrite = save.overwrite or save.state is SaveState.PUBLISHED
    state = shown_state(save.state, there)
    return replace(save, state=state, location=location, overwrite=overwrite)


def parts_at(sql: apsw.Connection, number: int, remote: str) -> list[RankPart]:
    """Return the parts of a save; ``uploaded`` tells of the replica."""
    query = "SELECT rank FROM replicated_parts WHERE save = ? AND remote = ?"
    there = {row[0] for row in sql.execute(query, (number, remote))}
    parts = queries.parts_of(sql, number)
    return [replace(part, uploaded=part.rank in there) for part in parts]


def shards_wanted_at(
    sql: apsw.Connection, number: int, remote: str, limit: int = -1, shard_filter: ShardFilter = ALL
) -> list[Shard]:
    """Return shards of a save with bytes here that ``remote`` does not have, oldest first.

    Each state has an index of its own that is in this order, so that no more is read than asked.
    """
    of_state = " UNION ALL ".join(
        f"SELECT {rows.SHARD_COLUMNS} FROM shards JOIN saves ON saves.number = shards.save "
        f"WHERE shards.save = ? AND shards.state = '{state}' AND {_HAS_BYTES} "
        f"AND {_NOT_THERE} AND {shard_filter.clause}"
        for state in (ShardState.DIRTY, ShardState.CLEAN)
    )
    values = (number, remote, *shard_filter.values)
    query = f"{of_state} ORDER BY 1 LIMIT ?"  # by version
    return [rows.shard_of(row) for row in sql.execute(query, (*values, *values, limit))]


def is_out_of_reach(sql: apsw.Connection, number: int, remote: str) -> bool:
    """Return whether some shard of a save is neither at ``remote`` nor here."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM shards WHERE shards.save = ? AND shards.state = 'evicted' "
        f"AND {_NOT_THERE})"
    )
    return bool(sql.execute(query, (number, remote)).get)


def required_replicas(sql: apsw.Connection, version: int) -> set[str]:
    """Return the replicas that a shard must be at before it is clean."""
    query = (
        "SELECT replicas.name FROM replicas "
        "JOIN replications ON replications.remote = replicas.name "
        "JOIN shards ON shards.save = replications.save "
        f"WHERE shards.version = ? AND required AND replications.state IN ({_AWAITED})"
    )
    return {row[0] for row in sql.execute(query, (version,))}


def is_everywhere(sql: apsw.Connection, version: int) -> bool:
    """Return whether a shard is verified at every remote that it must be at to be clean."""
    return {DURABLE} | required_replicas(sql, version) <= queries.verified_remotes(sql, version)


def present_remotes(sql: apsw.Connection, version: int, durable: str) -> set[str]:
    """Return the remotes of the settings at which a shard is verified."""
    replicas = {row[0] for row in sql.execute("SELECT name FROM replicas")}
    return queries.verified_remotes(sql, version) & {durable, *replicas}


def lag_of(sql: apsw.Connection, remote: str) -> Lag:
    """Return what a replica is still owed; given up are steps that are of some use elsewhere."""
    steps, shards, size_bytes = sql.execute(
        "SELECT count(DISTINCT shards.save), count(*), coalesce(sum(shards.size_bytes), 0) "
        "FROM replications JOIN saves ON saves.number = replications.save "
        "JOIN shards ON shards.save = replications.save "
        "WHERE replications.remote = ? AND replications.due AND replications.state = 'open' "
        "AND saves.state IN ('open', 'published') AND shards.state IN ('dirty', 'clean') "
        f"AND {_HAS_BYTES} AND {_NOT_THERE}",
        (remote, remote),
    ).get
    given_up = sql.execute(
        "SELECT count(*) FROM replications JOIN saves ON number = save WHERE remote = ? "
        "AND replications.state IN ('given_up', 'refused', 'superseded') "
        "AND saves.state IN ('open', 'published')",
        (remote,),
    ).get
    return Lag(steps, shards, size_bytes, int(given_up))


def waiting_since(sql: apsw.Connection, remote: str) -> float | None:
    """Return when the first save that ``remote`` is owed something of was sealed here, if any."""
    sealed_at: float | None = sql.execute(
        "SELECT min(sealed_at) FROM (SELECT max(sealed_at) AS sealed_at FROM replications "
        "JOIN saves ON saves.number = replications.save "
        "JOIN parts ON parts.save = replications.save WHERE remote = ?1 AND due "
        "AND replications.state = 'open' AND saves.state IN ('open', 'published') "
        "AND EXISTS (SELECT 1 FROM shards WHERE shards.save = replications.save "
        f"AND shards.state IN ('dirty', 'clean') AND {_HAS_BYTES} AND {_NOT_THERE_1}) "
        "GROUP BY replications.save HAVING min(parts.state = 'sealed'))",
        (remote,),
    ).get
    return sealed_at


def durable_lag(sql: apsw.Connection, remote: str) -> Lag:
    """Return what the durable remote is still owed."""
    steps, shards, size_bytes = sql.execute(
        "SELECT count(DISTINCT shards.save), count(*), coalesce(sum(size_bytes), 0) FROM shards "
        "JOIN saves ON saves.number = shards.save "
        f"WHERE shards.state = 'dirty' AND saves.state = 'open' AND {_NOT_THERE}",
        (remote,),
    ).get
    return Lag(steps, shards, size_bytes, 0)
