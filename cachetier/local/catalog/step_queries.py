"""Reads of one save for people: what each rank put and when, and its shards, a window at a time.

A window costs what the save has on this node, not what the catalog has: saves of ten thousand
shards are looked at once a second.
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw
from cachetier_client.identity.names import GENERATION_MARK

from cachetier.local.catalog import rows
from cachetier.model.lifecycle import ShardState


@dataclass(frozen=True, slots=True)
class RankProgress:
    """What a rank put into a save here, and how far it is at one remote; times in UTC seconds.

    ``uploaded_at``: when the last of the ``uploaded`` shards was verified there.
    """

    rank: int
    shards: int
    size_bytes: int
    uploaded: int
    uploaded_bytes: int
    damaged: int
    first_at: float
    last_at: float
    uploaded_at: float | None


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard is: ``here``, and since when at the one remote; ``copies`` are at others."""

    version: int
    rank: int
    name: str
    size_bytes: int
    digest: int
    state: ShardState
    committed_at: float
    verified_at: float | None
    here: bool
    copies: int


@dataclass(frozen=True, slots=True)
class ShardCount:
    """How many ``shards`` of a save are in one state at one place: see ``ShardPlace``."""

    state: ShardState
    here: bool
    verified: bool
    copied: bool
    shards: int


_AT_REMOTE = "FROM shards LEFT JOIN drains ON drains.version = shards.version AND remote = ?2 "
_PLACE = (
    "SELECT shards.version, rank, name, size_bytes, digest, state, committed_at, verified_at, "
    "file_id IS NOT NULL OR inline, (SELECT count(*) FROM drains AS others WHERE "
    "others.version = shards.version AND remote <> ?2 AND others.verified_at IS NOT NULL) "
    f"{_AT_REMOTE} WHERE save = ?1 "
)


def is_known(sql: apsw.Connection, run: str, step: int | None) -> bool:
    """Return whether there is a save of a run or its branches, or of that step of it."""
    query = (
        "SELECT 1 FROM saves WHERE (run = ?1 OR run >= ?2 AND run < ?3) "
        "AND (?4 IS NULL OR step = ?4) LIMIT 1"
    )
    first, after = f"{run}{GENERATION_MARK}", f"{run}{chr(ord(GENERATION_MARK) + 1)}"
    return sql.execute(query, (run, first, after, step)).fetchone() is not None


def rank_progress(sql: apsw.Connection, number: int, remote: str) -> list[RankProgress]:
    """Return how far each rank of a save is, by rank; those that put nothing are left out."""
    query = (
        "SELECT rank, count(*), sum(size_bytes), count(verified_at), "
        "coalesce(sum(iif(verified_at IS NOT NULL, size_bytes, 0)), 0), "
        "sum(state = 'quarantined'), min(committed_at), max(committed_at), max(verified_at) "
        f"{_AT_REMOTE} WHERE save = ?1 GROUP BY rank ORDER BY rank"
    )
    return [RankProgress(*row) for row in sql.execute(query, (number, remote))]


def shard_places(
    sql: apsw.Connection, number: int, remote: str, start: int, limit: int
) -> list[ShardPlace]:
    """Return ``limit`` shards of a save from the ``start``-th on, by rank and arrival."""
    query = f"{_PLACE} ORDER BY rank, shards.version LIMIT ?3 OFFSET ?4"
    return [_place_of(row) for row in sql.execute(query, (number, remote, limit, start))]


def shard_place(sql: apsw.Connection, number: int, remote: str, version: int) -> ShardPlace | None:
    """Return where one shard of a save is; None: there is none of this version."""
    row = sql.execute(f"{_PLACE} AND shards.version = ?3", (number, remote, version)).fetchone()
    return None if row is None else _place_of(row)


def shard_counts(sql: apsw.Connection, number: int, remote: str) -> list[ShardCount]:
    """Return how many shards of a save are where."""
    query = (
        "SELECT state, file_id IS NOT NULL OR inline, verified_at IS NOT NULL, "
        "EXISTS (SELECT 1 FROM drains AS others WHERE others.version = shards.version "
        "AND remote <> ?2 AND others.verified_at IS NOT NULL), count(*) "
        f"{_AT_REMOTE} WHERE save = ?1 GROUP BY 1, 2, 3, 4"
    )
    return [
        ShardCount(ShardState(state), bool(here), bool(verified), bool(copied), shards)
        for state, here, verified, copied, shards in sql.execute(query, (number, remote))
    ]


def _place_of(row: rows.Row) -> ShardPlace:
    version, rank, name, size_bytes, digest, state, committed_at, verified_at, here, copies = row
    what = version, rank, name, size_bytes, rows.unpacked(digest), ShardState(state)
    return ShardPlace(*what, committed_at, verified_at, bool(here), copies)
