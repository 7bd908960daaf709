"""Repairs of the catalog that nothing but ``cachetier fsck`` makes."""

from __future__ import annotations

import apsw

from cachetier.local.catalog import queries, replica_queries, rows, statements
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.records import IncidentRecord
from cachetier.model.lifecycle import ShardEvent, ShardState, after
from cachetier.model.names import DURABLE
from cachetier.model.shard import Content
from cachetier.model.stored import Stored


class MendLog:
    """Mends rows. Thread-safe; every method may raise FencedError."""

    def __init__(self, committer: Committer) -> None:
        self._run = committer.run

    def reindex(self) -> None:
        """Make every index anew from its table, and drop what was sent of shards not known here."""

        def operation(sql: apsw.Connection) -> None:
            sql.execute("REINDEX").fetchall()
            sql.execute("DELETE FROM drains WHERE version NOT IN (SELECT version FROM shards)")
            sql.execute(
                "DELETE FROM uploaded_parts WHERE NOT EXISTS (SELECT 1 FROM drains "
                "WHERE version = uploaded_parts.version AND remote = uploaded_parts.remote)"
            )

        self._run(operation)

    def rewrite(self, version: int, save_id: str, name: str, rank: int, content: Content) -> None:
        """Write again what a shard's row says of the shard; where its bytes are stays."""
        self._run(
            lambda sql: sql.execute(
                "UPDATE shards SET name = ?, rank = ?, size_bytes = ?, digest = ?, "
                "block_digests = ?, element_size = 0, row_digest = ? WHERE version = ?",
                (
                    name,
                    rank,
                    content.size_bytes,
                    rows.packed(content.digest),
                    rows.packed_blocks(content),
                    rows.row_digest(save_id, name, rank, content),
                    version,
                ),
            ).fetchall()
        )

    def remember(self, version: int, remote: str, stored: Stored, now: float) -> None:
        """Write again as what ``remote``, which was just asked, holds a shard.

        A dirty one that waited for nothing else is clean.
        """

        def operation(sql: apsw.Connection) -> None:
            shard = statements.require(sql, version)
            statements.insert_stored(sql, version, remote, stored, now)
            everywhere = replica_queries.is_everywhere(sql, version, DURABLE)
            if shard.state is ShardState.DIRTY and everywhere:
                _set_state(sql, version, after(shard.state, ShardEvent.VERIFIED_REMOTELY))

        self._run(operation)

    def quarantine(self, version: int, incident: IncidentRecord, now: float) -> None:
        """Keep the damaged bytes of a clean shard, as no remote says that it has others.

        As what the remotes held it stays known, so that it can be sent there again as that.
        """

        def operation(sql: apsw.Connection) -> None:
            shard = statements.require(sql, version)
            dirty = after(shard.state, ShardEvent.LOST_REMOTELY)
            _set_state(sql, version, after(dirty, ShardEvent.LOCAL_DAMAGE))
            statements.insert_incident(sql, incident, now)

        self._run(operation)

    def reinstate(self, version: int) -> None:
        """Take a shard out of quarantine, as its bytes here were found to be sound."""

        def operation(sql: apsw.Connection) -> None:
            state = after(statements.require(sql, version).state, ShardEvent.RESTORED)
            if replica_queries.is_everywhere(sql, version, DURABLE):
                state = after(state, ShardEvent.VERIFIED_REMOTELY)
            _set_state(sql, version, state)

        self._run(operation)

    def take_back(self, run: str, step: int, save_id: str) -> None:
        """Write down that files of a save come back here, whose seals may be lost."""
        self._run(
            lambda sql: sql.execute(
                "INSERT OR IGNORE INTO taken_back VALUES (?, ?, ?)", (run, step, save_id)
            ).fetchall()
        )

    def reopen(self, number: int) -> bool:
        """Let the drain publish a save once more; return False if this node has no part of it."""

        def operation(sql: apsw.Connection) -> bool:
            if not queries.parts_of(sql, number):
                return False
            sql.execute(
                "UPDATE saves SET state = 'open' WHERE number = ? AND state = 'published'",
                (number,),
            )
            return True

        return self._run(operation)

    def reopen_at(self, number: int, remote: str) -> bool:
        """Let the drain of a replica publish a save there once more, likewise."""

        def operation(sql: apsw.Connection) -> bool:
            if not queries.parts_of(sql, number):
                return False
            sql.execute(
                "UPDATE replications SET state = 'open', due = 1 WHERE save = ? AND remote = ?",
                (number, remote),
            )
            return True

        return self._run(operation)


def _set_state(sql: apsw.Connection, version: int, state: ShardState) -> None:
    sql.execute("UPDATE shards SET state = ? WHERE version = ?", (state, version))
