"""What saves reach at replicas, as the catalog records it.

Nothing that happens at a replica changes what a save is at the durable remote; only shards that
waited for a required replica become clean when it has them, or is found never to get them. Each
function runs inside a transaction (``Store.write``).
"""

from __future__ import annotations

from collections.abc import Mapping

import apsw

from cachetier.local.catalog import queries, replica_queries, statements
from cachetier.model import lifecycle
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.replication import ReplicaState


def configure(sql: apsw.Connection, replicas: Mapping[str, bool]) -> None:
    """Take ``replicas`` (name to whether it is required) for those of the settings.

    A new one gets what is open, and the published steps that were saved here and still have all
    their bytes. What one that is required from now on is still to get is dirty again. Shards
    that waited for one that is gone, or is not required any more, are clean if nothing else is
    missing.
    """
    known = {row[0] for row in sql.execute("SELECT name FROM replicas")}
    sql.execute("DELETE FROM replicas")
    sql.executemany(
        "INSERT INTO replicas VALUES (?, ?)",
        [(name, int(required)) for name, required in replicas.items()],
    )
    for name in sorted(replicas.keys() - known):
        _begin_with(sql, name)
    _wait_for_required(sql)
    query = "SELECT DISTINCT save FROM shards WHERE state = 'dirty'"
    for number in [row[0] for row in sql.execute(query)]:
        assert isinstance(number, int)
        _settle(sql, number)


def record_location(sql: apsw.Connection, number: int, remote: str, location: str) -> None:
    """Record where a save's objects go at a replica."""
    sql.execute(
        "UPDATE replications SET location = ? WHERE save = ? AND remote = ? AND location IS NULL",
        (location, number, remote),
    )


def record_part(
    sql: apsw.Connection, number: int, remote: str, rank: int, *, uploaded: bool
) -> None:
    """Record whether a rank's part is at a replica."""
    query = "DELETE FROM replicated_parts WHERE rank = ? AND save = ? AND remote = ?"
    if uploaded:
        query = (
            "INSERT OR IGNORE INTO replicated_parts SELECT save, remote, ? FROM replications "
            "WHERE save = ? AND remote = ?"
        )
    sql.execute(query, (rank, number, remote))


def record_outcome(
    sql: apsw.Connection, number: int, remote: str, state: ReplicaState, now: float
) -> bool:
    """Record how a save ended at a replica; return whether that was news.

    Unless it was published there, its shards need not wait for that replica any more.
    """
    found = replica_queries.replication_of(sql, number, remote)
    if found is None or found.state is not ReplicaState.OPEN:
        return False
    published_at = now if state is ReplicaState.PUBLISHED else None
    sql.execute(
        "UPDATE replications SET state = ?, published_at = ?, due = location IS NOT NULL "
        "WHERE save = ? AND remote = ?",
        (state, published_at, number, remote),
    )
    _settle(sql, number)
    return True


def record_lost(sql: apsw.Connection, version: int, remote: str) -> ShardState:
    """Record that a replica lost a shard; return the shard's state, dirty if it was required.

    What the replica held before its step was published there is sent again, if it is here.
    """
    shard = statements.require(sql, version)
    sql.execute("DELETE FROM drains WHERE version = ? AND remote = ?", (version, remote))
    required = replica_queries.required_replicas(sql, version)
    if shard.state is not ShardState.CLEAN or remote not in required:
        return shard.state
    state = lifecycle.after(shard.state, ShardEvent.LOST_REMOTELY)
    statements.set_shard_state(sql, version, state)
    return state


def record_swept(sql: apsw.Connection, number: int, remote: str) -> None:
    """Record that a save has nothing unfinished left at a replica."""
    sql.execute("UPDATE replications SET due = 0 WHERE save = ? AND remote = ?", (number, remote))
    statements.forget_leftovers(sql, number)


def forget(sql: apsw.Connection, number: int, remote: str) -> None:
    """Forget what a deleted save had at a replica, once its objects are gone there."""
    sql.execute(
        "DELETE FROM replications WHERE save = ? AND remote = ? AND state = 'deleted'",
        (number, remote),
    )
    statements.forget_leftovers(sql, number)


def _begin_with(sql: apsw.Connection, name: str) -> None:
    """Let a replica that is new have what can still be sent there."""
    sql.execute(
        "INSERT OR IGNORE INTO replications (save, remote) SELECT number, ? FROM saves "
        "WHERE state IN ('open', 'local_only') OR (state = 'published' "
        "AND EXISTS (SELECT 1 FROM parts WHERE save = number) "
        "AND NOT EXISTS (SELECT 1 FROM shards WHERE save = number "
        "AND file_id IS NULL AND NOT inline))",
        (name,),
    )


def _wait_for_required(sql: apsw.Connection) -> None:
    """Keep the bytes here that a required replica has not got."""
    sql.execute(
        "UPDATE shards SET state = 'dirty' WHERE state = 'clean' "
        "AND (file_id IS NOT NULL OR inline) AND EXISTS (SELECT 1 FROM replications "
        "JOIN replicas ON replicas.name = replications.remote "
        "WHERE replications.save = shards.save AND required AND replications.state = 'open' "
        "AND NOT EXISTS (SELECT 1 FROM drains WHERE version = shards.version "
        "AND drains.remote = replicas.name AND verified_at IS NOT NULL))"
    )


def _settle(sql: apsw.Connection, number: int) -> None:
    """Make clean what waits for nothing any more."""
    for shard in queries.dirty_shards_of(sql, number):
        if replica_queries.is_everywhere(sql, shard.version):
            state = lifecycle.after(shard.state, ShardEvent.VERIFIED_REMOTELY)
            statements.set_shard_state(sql, shard.version, state)
