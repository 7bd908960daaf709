"""Repairs that nothing but ``cachetier fsck`` makes; each runs inside a transaction."""

from __future__ import annotations

import apsw
from cachetier_client.bucket_format.stored import Content, Stored
from cachetier_client.io import digests

from cachetier.local.catalog import local_copies, queries, replica_queries, rows, statements
from cachetier.local.catalog.records import LOG_LOST, LOST_WITH_LOG, IncidentRecord
from cachetier.model.lifecycle import ShardEvent, ShardState, after


def reindex(sql: apsw.Connection) -> None:
    """Make every index anew from its table, and drop what was sent of shards not known here."""
    sql.execute("REINDEX").fetchall()
    sql.execute("DELETE FROM drains WHERE version NOT IN (SELECT version FROM shards)")
    sql.execute(
        "DELETE FROM uploaded_parts WHERE NOT EXISTS (SELECT 1 FROM drains "
        "WHERE version = uploaded_parts.version AND remote = uploaded_parts.remote)"
    )


def rewrite(
    sql: apsw.Connection, version: int, save_id: str, name: str, rank: int, content: Content
) -> None:
    """Write again what a shard's row says of the shard; where its bytes are stays."""
    sql.execute(
        "UPDATE shards SET name = ?, rank = ?, size_bytes = ?, digest = ?, "
        "block_digests = ?, element_size = 0, row_digest = ? WHERE version = ?",
        (
            name,
            rank,
            content.size_bytes,
            rows.packed(content.digest),
            digests.pack(content.block_digests),
            rows.row_digest(save_id, name, rank, content),
            version,
        ),
    )


def remember(sql: apsw.Connection, version: int, remote: str, stored: Stored, now: float) -> None:
    """Write again how ``remote``, which was just asked, stores a shard.

    A dirty one that waited for nothing else is clean.
    """
    shard = statements.require(sql, version)
    statements.insert_stored(sql, version, remote, stored, now)
    everywhere = replica_queries.is_everywhere(sql, version)
    if shard.state is ShardState.DIRTY and everywhere:
        statements.set_shard_state(sql, version, after(shard.state, ShardEvent.VERIFIED_REMOTELY))


def quarantine(sql: apsw.Connection, version: int, incident: IncidentRecord, now: float) -> None:
    """Keep the damaged bytes of a clean shard, as no remote says that it has others.

    As what the remotes held it stays known, so that it can be sent there again as that.
    """
    shard = statements.require(sql, version)
    dirty = after(shard.state, ShardEvent.LOST_REMOTELY)
    statements.set_shard_state(sql, version, after(dirty, ShardEvent.LOCAL_DAMAGE))
    statements.insert_incident(sql, incident, now)


def reinstate(sql: apsw.Connection, version: int) -> None:
    """Take a shard out of quarantine, as its bytes here were found to be sound."""
    state = local_copies.restored_state(sql, statements.require(sql, version))
    statements.set_shard_state(sql, version, state)


def report_lost_log(sql: apsw.Connection, now: float) -> None:
    """Record for every run known here what may have gone with a log; nothing says what it held."""
    query = "SELECT run, max(step) FROM saves WHERE state <> 'deleted' GROUP BY run"
    for run, step in sql.execute(query).fetchall() or [("", 0)]:
        incident = IncidentRecord(
            LOG_LOST,
            f"the node lost its catalog's log: {LOST_WITH_LOG}",
            "Compare `cachetier ls RUN STEP` with what was saved; save again what is missing, or "
            "seal what is whole.",
            str(run),
            int(str(step)),
        )
        statements.insert_incident(sql, incident, now)


def take_back(sql: apsw.Connection, run: str, step: int, save_id: str) -> None:
    """Write down that files of a save come back here, whose seals may be lost."""
    sql.execute("INSERT OR IGNORE INTO taken_back VALUES (?, ?, ?)", (run, step, save_id))


def reopen(sql: apsw.Connection, number: int) -> bool:
    """Let the drain publish a save once more; return False if this node has no part of it."""
    if not queries.parts_of(sql, number):
        return False
    sql.execute(
        "UPDATE saves SET state = 'open' WHERE number = ? AND state = 'published'",
        (number,),
    )
    return True


def reopen_at(sql: apsw.Connection, number: int, remote: str) -> bool:
    """Let the drain of a replica publish a save there once more, likewise."""
    if not queries.parts_of(sql, number):
        return False
    sql.execute(
        "UPDATE replications SET state = 'open', due = 1 WHERE save = ? AND remote = ?",
        (number, remote),
    )
    return True
