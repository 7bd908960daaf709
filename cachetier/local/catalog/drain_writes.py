"""What the drain has reached, as the catalog records it: uploads, parts, verdicts.

Only ``serve`` writes it; the drain process reports over its channel and waits for the answer, so
what it was told is recorded is synced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import apsw

from cachetier.local.catalog import queries, rank_parts, replica_queries, rows, statements
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.records import FinishedUploadPart, IncidentRecord
from cachetier.model import lifecycle
from cachetier.model.checkpoint import OPEN_STATES, Save, SaveState
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.model.shard import Shard
from cachetier.model.stored import Codec, InPack, Stored

_IN_PACKS = (ShardState.DIRTY, ShardState.CLEAN, ShardState.EVICTED)


class DrainLog:
    """Writes the drain's progress. Thread-safe; every method may raise FencedError.

    Methods that name a shard's version raise NotFoundError when it was replaced or deleted
    meanwhile: the drain then drops that work.
    """

    def __init__(self, committer: Committer, policy: Policy = DRAIN_ALL) -> None:
        self._run = committer.run
        self._policy = policy

    def begin_upload(
        self,
        version: int,
        remote: str,
        upload_id: str,
        part_bytes: int,
        codec: Codec = Codec.RAW,
        element_size: int = 0,
    ) -> None:
        """Remember a multipart upload, so that it goes on after a crash."""

        def operation(sql: apsw.Connection) -> None:
            statements.require(sql, version)
            sql.execute(
                "DELETE FROM uploaded_parts WHERE version = ? AND remote = ?", (version, remote)
            )
            sql.execute(
                "INSERT INTO drains (version, remote, upload_id, part_bytes, codec, element_size) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (version, remote) DO UPDATE SET "
                "upload_id = excluded.upload_id, part_bytes = excluded.part_bytes, "
                "codec = excluded.codec, element_size = excluded.element_size",
                (version, remote, upload_id, part_bytes, codec, element_size),
            )

        self._run(operation)

    def forget_upload(self, version: int, remote: str) -> None:
        """Forget an upload that the store no longer knows."""

        def operation(sql: apsw.Connection) -> None:
            sql.execute(
                "DELETE FROM uploaded_parts WHERE version = ? AND remote = ?", (version, remote)
            )
            sql.execute(
                "UPDATE drains SET upload_id = NULL, part_bytes = NULL "
                "WHERE version = ? AND remote = ?",
                (version, remote),
            )

        self._run(operation)

    def record_parts(self, version: int, remote: str, parts: Sequence[FinishedUploadPart]) -> None:
        """Remember finished parts of an upload."""

        def operation(sql: apsw.Connection) -> None:
            statements.require(sql, version)
            sql.executemany(
                "INSERT OR REPLACE INTO uploaded_parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(version, remote, *rows.row_of_upload_part(part)) for part in parts],
            )

        self._run(operation)

    def count_attempt(self, version: int, remote: str) -> int:
        """Count one more attempt at draining a shard and return which it is."""

        def operation(sql: apsw.Connection) -> int:
            statements.require(sql, version)
            sql.execute(
                "INSERT INTO drains (version, remote, attempts) VALUES (?, ?, 1) "
                "ON CONFLICT (version, remote) DO UPDATE SET attempts = attempts + 1",
                (version, remote),
            )
            return int(
                sql.execute(
                    "SELECT attempts FROM drains WHERE version = ? AND remote = ?",
                    (version, remote),
                ).get
            )

        return self._run(operation)

    def record_verified(
        self,
        version: int,
        remote: str,
        required: Sequence[str],
        now: float,
        stored: Stored | None = None,
    ) -> ShardState:
        """Record that ``remote`` holds the shard, verified; without ``stored``, its raw bytes.

        Clean once every remote of ``required`` does, and every required replica that the save is
        to be brought to.
        """

        def operation(sql: apsw.Connection) -> ShardState:
            shard = statements.require(sql, version)
            kept = stored or Stored.raw(shard.content)
            return _verify(sql, shard, remote, required, kept, now)

        return self._run(operation)

    def record_packed(
        self, packs: Mapping[int, InPack], remote: str, required: Sequence[str], now: float
    ) -> list[Shard]:
        """Record that ``remote`` holds shards in a pack, all in one transaction.

        Those that were replaced, deleted, or found damaged meanwhile are passed over. Returns the
        others.
        """

        def operation(sql: apsw.Connection) -> list[Shard]:
            found = [queries.shard_by_version(sql, version) for version in packs]
            shards = [s for s in found if s is not None and s.state in _IN_PACKS]
            for shard in shards:
                stored = replace(Stored.raw(shard.content), pack=packs[shard.version])
                _verify(sql, shard, remote, required, stored, now)
            return shards

        return self._run(operation)

    def record_location(self, number: int, location: str) -> None:
        """Record where a save's objects go; it never changes afterwards."""
        self._run(
            lambda sql: sql.execute(
                "UPDATE saves SET location = ? WHERE number = ? AND location IS NULL",
                (location, number),
            ).fetchall()
        )

    def record_part_uploaded(self, number: int, rank: int) -> None:
        """Record that a rank's part document is in the bucket."""
        self._run(
            lambda sql: sql.execute(
                "UPDATE parts SET uploaded = 1 WHERE save = ? AND rank = ?", (number, rank)
            ).fetchall()
        )

    def record_followed(self, number: int) -> None:
        """Record that rank 0 of a save has sealed elsewhere: what follows it here is final."""
        self._run(lambda sql: rank_parts.release(sql, number))

    def record_lost(self, version: int, remote: str) -> ShardState:
        """Record that ``remote`` lost a shard; it is dirty again if its bytes are here."""

        def operation(sql: apsw.Connection) -> ShardState:
            shard = statements.require(sql, version)
            if shard.state not in (ShardState.CLEAN, ShardState.DIRTY):
                return shard.state
            sql.execute("DELETE FROM drains WHERE version = ? AND remote = ?", (version, remote))
            if shard.state is ShardState.DIRTY:  # it waits for another remote
                return shard.state
            state = lifecycle.after(shard.state, ShardEvent.LOST_REMOTELY)
            sql.execute("UPDATE shards SET state = ? WHERE version = ?", (state, version))
            return state

        return self._run(operation)

    def record_outcome(
        self, number: int, state: SaveState, incident: IncidentRecord | None, now: float
    ) -> list[Shard]:
        """Record how a save ended: published, superseded, refused or deleted.

        What was decided here in the meantime stays: a deleted save is never published, a published
        one never superseded by a late report. A published save may make older ones local-only, by
        policy. Returns the shards removed, for their files to go.
        """

        def operation(sql: apsw.Connection) -> list[Shard]:
            if not _may_end(sql, statements.require_save(sql, number), state):
                return []
            if incident is not None:
                statements.insert_incident(sql, incident, now)
            if state is SaveState.PUBLISHED:
                statements.publish(sql, number, now, None)
                statements.skip_older(sql, self._policy, number, now)
                return []
            statements.set_state(sql, number, state)
            if state is not SaveState.DELETED:
                return []
            shards = queries.shards_of(sql, number)
            sql.execute("DELETE FROM shards WHERE save = ?", (number,))
            sql.execute("DELETE FROM parts WHERE save = ?", (number,))
            statements.delete_replications(sql, number)
            return shards

        return self._run(operation)

    def record_swept(self, number: int) -> None:
        """Record that a save has no unfinished uploads of ours left at the remote."""

        def operation(sql: apsw.Connection) -> None:
            sql.execute("UPDATE saves SET swept = 1 WHERE number = ?", (number,))
            statements.forget_leftovers(sql, number)

        self._run(operation)

    def forget_save(self, number: int) -> None:
        """Forget a deleted save once its objects are gone; its tombstone stays in the bucket."""

        def operation(sql: apsw.Connection) -> None:
            sql.execute(
                "UPDATE saves SET location = NULL WHERE number = ? AND state = 'deleted'", (number,)
            )
            statements.forget_leftovers(sql, number)

        self._run(operation)

    def add_incident(self, incident: IncidentRecord, now: float) -> None:
        self._run(lambda sql: statements.insert_incident(sql, incident, now))


def _verify(
    sql: apsw.Connection,
    shard: Shard,
    remote: str,
    required: Sequence[str],
    stored: Stored,
    now: float,
) -> ShardState:
    version = shard.version
    statements.insert_stored(sql, version, remote, stored, now)
    awaited = {*required, *replica_queries.required_replicas(sql, version)}
    if not awaited <= queries.verified_remotes(sql, version):
        return shard.state
    state = lifecycle.after(shard.state, ShardEvent.VERIFIED_REMOTELY)
    sql.execute("UPDATE shards SET state = ? WHERE version = ?", (state, version))
    return state


def _may_end(sql: apsw.Connection, save: Save, state: SaveState) -> bool:
    """Return whether a report that ``save`` ended as ``state`` still tells something new."""
    if save.state in OPEN_STATES:
        return True
    if save.state is not SaveState.SUPERSEDED or state is not SaveState.PUBLISHED:
        return False
    # It was published before the save that superseded it here, unless that one is published too.
    return not any(
        later.number > save.number and later.state is SaveState.PUBLISHED
        for later in queries.saves_of(sql, save.run, save.step)
    )
