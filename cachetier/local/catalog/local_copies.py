"""What changes of a shard when its local bytes go, come back, or are found damaged.

Each function runs inside a transaction (``Store.write``).
"""

from __future__ import annotations

import apsw

from cachetier.local.catalog import pins, replica_queries, statements
from cachetier.local.catalog.records import IncidentRecord
from cachetier.model import lifecycle
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.shard import Shard


def evict(sql: apsw.Connection, version: int) -> Shard:
    """Record that a shard's local bytes go; return it as it was, with the file that is now free.

    Raises:
        NotFoundError: It was replaced or deleted meanwhile.
        PinnedError: Its step is pinned.
    """
    shard = statements.require(sql, version)
    pins.refuse_pinned(sql, shard.run, shard.step)
    _place(sql, version, lifecycle.after(shard.state, ShardEvent.EVICT), None)
    return shard


def record_damage(
    sql: apsw.Connection, version: int, incident: IncidentRecord | None, now: float
) -> Shard:
    """Record that a shard's local bytes are damaged; return it as it was.

    A clean one is evicted, as a remote has it; ``incident`` is recorded if it becomes quarantined.

    Raises:
        NotFoundError: It was replaced or deleted meanwhile.
    """
    shard = statements.require(sql, version)
    state = lifecycle.after(shard.state, ShardEvent.LOCAL_DAMAGE)
    if state is ShardState.EVICTED:
        _place(sql, version, state, None)
        return shard
    statements.set_shard_state(sql, version, state)
    if incident is not None and state is not shard.state:
        statements.insert_incident(sql, incident, now)
    return shard


def attach(sql: apsw.Connection, version: int, file_id: str) -> Shard:
    """Give a shard its restored local file; return it as it was before.

    An evicted one is clean again; a quarantined one dirty, if a remote still waits for it.
    """
    shard = statements.require(sql, version)
    _place(sql, version, restored_state(sql, shard), file_id)
    return shard


def restored_state(sql: apsw.Connection, shard: Shard) -> ShardState:
    """Return the state of a shard whose local bytes are sound again."""
    state = lifecycle.after(shard.state, ShardEvent.RESTORED)
    if replica_queries.is_everywhere(sql, shard.version):
        state = lifecycle.after(state, ShardEvent.VERIFIED_REMOTELY)
    return state


def _place(sql: apsw.Connection, version: int, state: ShardState, file_id: str | None) -> None:
    sql.execute("DELETE FROM bodies WHERE version = ?", (version,))
    sql.execute(
        "UPDATE shards SET state = ?, file_id = ?, inline = 0 WHERE version = ?",
        (state, file_id, version),
    )
