"""What is written down of objects that were verified at the durable remote and are gone from there.

A shard whose object is missing is dirty again. What it was stored as stays known (a row of
``drains`` that is not verified any more), as documents in the bucket may say so. The functions that
write run inside a transaction (``Store.write``).
"""

from __future__ import annotations

import apsw
from cachetier_client.bucket_format.stored import Stored

from cachetier.local.catalog import drain_writes, queries, statements
from cachetier.local.catalog.records import IncidentRecord
from cachetier.model.checkpoint import OPEN_STATES, Save, SaveState
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard

LIVE = (*OPEN_STATES, SaveState.PUBLISHED, SaveState.REPLICATED)

_LOST = "drains.stored_bytes IS NOT NULL AND drains.verified_at IS NULL"


def saves_to_send_again(sql: apsw.Connection, remote: str) -> list[Save]:
    """Return the published saves of which ``remote`` lost shards whose bytes are here."""
    lost = (
        "SELECT save FROM drains JOIN shards USING (version) "
        f"WHERE drains.remote = ? AND {_LOST} AND shards.state = 'dirty'"
    )
    condition = f"state = 'published' AND number IN ({lost}) ORDER BY number"
    return queries.saves_where(sql, condition, remote)


def saves_to_verify(sql: apsw.Connection, remote: str) -> list[Save]:
    """Return the published saves with dirty shards that were not verified at ``remote``.

    It lost them, or another node published the save before this node's drain had looked.
    """
    unsent = (
        "SELECT save FROM shards WHERE state = 'dirty' AND NOT EXISTS (SELECT 1 FROM drains WHERE "
        "version = shards.version AND remote = ? AND verified_at IS NOT NULL)"
    )
    condition = f"state = 'published' AND number IN ({unsent}) ORDER BY number"
    return queries.saves_where(sql, condition, remote)


def is_lacking(sql: apsw.Connection, save: Save, remote: str) -> bool:
    """Return whether ``remote`` published a save, and lost shards of it that are to be sent."""
    return any(save.number == each.number for each in saves_to_send_again(sql, remote))


def lost_as(sql: apsw.Connection, version: int, remote: str) -> Stored | None:
    """Return as what ``remote`` held a shard before it lost it; None if it did not lose it."""
    return queries.stored_where(sql, version, remote, _LOST)


def lost_packs(sql: apsw.Connection, number: int, remote: str) -> dict[int, str]:
    """Return the name of the pack that each lost shard of a save was in, by the shard's version."""
    query = (
        "SELECT version, pack FROM drains JOIN shards USING (version) WHERE drains.remote = ? "
        f"AND {_LOST} AND save = ? AND pack IS NOT NULL"
    )
    return dict(sql.execute(query, (remote, number)))


def is_described(sql: apsw.Connection, shard: Shard) -> bool:
    """Return whether a document at the durable remote says as what ``shard`` is stored there."""
    query = (
        "SELECT state = 'published' OR EXISTS (SELECT 1 FROM parts WHERE save = number "
        "AND rank = ? AND uploaded) FROM saves WHERE number = ?"
    )
    return bool(sql.execute(query, (shard.rank, shard.save)).get)


def _in_one_object(sql: apsw.Connection, version: int, remote: str) -> list[Shard]:
    """Return the shards that ``remote`` held in one object with ``version``, itself among them."""
    query = (
        "SELECT other.version FROM drains AS this JOIN drains AS other USING (pack, remote) "
        "JOIN shards AS here ON here.version = this.version "
        "JOIN shards AS there ON there.version = other.version AND there.save = here.save "
        "WHERE this.version = ? AND remote = ?"
    )
    versions = [row[0] for row in sql.execute(query, (version, remote))]
    return [statements.require(sql, each) for each in versions or [version]]


def record_missing(
    sql: apsw.Connection,
    version: int,
    remote: str,
    incident: IncidentRecord,
    now: float,
    *,
    publish_again: bool,
) -> bool:
    """Record that the object of a shard is missing: the drain sends it again if it is here.

    With ``publish_again`` its save's documents are written again too, where this node has a part of
    it. Every save gets such an incident once; return whether this was it.
    """
    shard = statements.require(sql, version)
    number = shard.save
    for each in _in_one_object(sql, version, remote):
        if each.state is ShardState.CLEAN:
            drain_writes.record_lost(sql, each.version, remote)
    sql.execute("UPDATE saves SET swept = 0 WHERE number = ?", (number,))
    if publish_again and shard.state is ShardState.CLEAN and queries.parts_of(sql, number):
        sql.execute("UPDATE parts SET uploaded = 0 WHERE save = ?", (number,))
        sql.execute(
            "UPDATE saves SET wanted = 1, state = 'open' WHERE number = ? AND state = 'published'",
            (number,),
        )
    known = "SELECT 1 FROM incidents WHERE run = ? AND step = ? AND message = ?"
    if sql.execute(known, (incident.run, incident.step, incident.message)).fetchone():
        return False
    statements.insert_incident(sql, incident, now)
    return True
