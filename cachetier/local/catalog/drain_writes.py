"""Record the drain's progress in the catalog: uploads, upload parts, verdicts.

Only ``serve`` writes it; the drain process reports over its channel and waits for the answer, so
what it was told is recorded is synced. Each function runs inside a transaction (``Store.write``).
Those that name a shard's version raise NotFoundError when it was replaced or deleted meanwhile: the
drain then drops that work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import apsw
from cachetier_client.bucket_format.stored import Codec, InPack, Stored

from cachetier.local.catalog import deletes, queries, replica_queries, rows, statements
from cachetier.local.catalog.records import FinishedUploadPart, IncidentRecord
from cachetier.model import lifecycle
from cachetier.model.checkpoint import OPEN_STATES, Save, SaveState
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard

_IN_PACKS = (ShardState.DIRTY, ShardState.CLEAN, ShardState.EVICTED)


def begin_upload(
    sql: apsw.Connection,
    version: int,
    remote: str,
    upload_id: str,
    part_bytes: int,
    codec: Codec = Codec.RAW,
    element_size: int = 0,
) -> None:
    """Remember a multipart upload, so that it goes on after a crash."""
    statements.require(sql, version)
    sql.execute("DELETE FROM uploaded_parts WHERE version = ? AND remote = ?", (version, remote))
    sql.execute(
        "INSERT INTO drains (version, remote, upload_id, part_bytes, codec, element_size) "
        "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (version, remote) DO UPDATE SET "
        "upload_id = excluded.upload_id, part_bytes = excluded.part_bytes, "
        "codec = excluded.codec, element_size = excluded.element_size, "
        "stored_bytes = iif((codec, element_size) = (excluded.codec, excluded.element_size), "
        "stored_bytes, NULL)",
        (version, remote, upload_id, part_bytes, codec, element_size),
    )


def forget_upload(sql: apsw.Connection, version: int, remote: str) -> None:
    """Forget an upload that the store no longer knows."""
    sql.execute("DELETE FROM uploaded_parts WHERE version = ? AND remote = ?", (version, remote))
    sql.execute(
        "UPDATE drains SET upload_id = NULL, part_bytes = NULL WHERE version = ? AND remote = ?",
        (version, remote),
    )


def record_parts(
    sql: apsw.Connection, version: int, remote: str, parts: Sequence[FinishedUploadPart]
) -> None:
    """Remember finished parts of an upload."""
    statements.require(sql, version)
    sql.executemany(
        "INSERT OR REPLACE INTO uploaded_parts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(version, remote, *rows.row_of_upload_part(part)) for part in parts],
    )


def count_attempt(sql: apsw.Connection, version: int, remote: str) -> int:
    """Count one more attempt at draining a shard and return which it is."""
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


def record_verified(
    sql: apsw.Connection,
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
    shard = statements.require(sql, version)
    kept = stored or Stored.raw(shard.content)
    return _verify(sql, shard, remote, required, kept, now)


def record_packed(
    sql: apsw.Connection,
    packs: Mapping[int, InPack],
    remote: str,
    required: Sequence[str],
    now: float,
) -> list[Shard]:
    """Record that ``remote`` holds shards in a pack, all in one transaction.

    Those that were replaced, deleted, or found damaged meanwhile are passed over. Returns the
    others.
    """
    found = [queries.shard_by_version(sql, version) for version in packs]
    shards = [s for s in found if s is not None and s.state in _IN_PACKS]
    for shard in shards:
        stored = replace(Stored.raw(shard.content), pack=packs[shard.version])
        _verify(sql, shard, remote, required, stored, now)
    return shards


def record_location(sql: apsw.Connection, number: int, location: str) -> None:
    """Record where a save's objects go; it never changes afterwards."""
    sql.execute(
        "UPDATE saves SET location = ? WHERE number = ? AND location IS NULL",
        (location, number),
    )


def record_part(sql: apsw.Connection, number: int, rank: int, *, uploaded: bool) -> None:
    """Record whether a rank's part document is in the bucket."""
    query = "UPDATE parts SET uploaded = ? WHERE save = ? AND rank = ?"
    sql.execute(query, (uploaded, number, rank))


def record_lost(sql: apsw.Connection, version: int, remote: str) -> ShardState:
    """Record that ``remote`` lost a shard; it is dirty again if its bytes are here.

    As what it was stored stays known: see ``missing_objects.lost_as``.
    """
    shard = statements.require(sql, version)
    if shard.state not in (ShardState.CLEAN, ShardState.DIRTY):
        return shard.state
    forget_upload(sql, version, remote)
    sql.execute(
        "UPDATE drains SET verified_at = NULL, attempts = 0 WHERE version = ? AND remote = ?",
        (version, remote),
    )
    if shard.state is ShardState.DIRTY:  # it waits for another remote
        return shard.state
    state = lifecycle.after(shard.state, ShardEvent.LOST_REMOTELY)
    statements.set_shard_state(sql, version, state)
    return state


def record_outcome(
    sql: apsw.Connection,
    policy: Policy,
    number: int,
    state: SaveState,
    incident: IncidentRecord | None,
    now: float,
) -> list[Shard]:
    """Record how a save ended: published, superseded, refused or deleted.

    What was decided here in the meantime stays: a deleted save is never published, a published
    one never superseded by a late report. A published save may make older ones local-only, by
    policy. Returns the shards removed, for their files to go.
    """
    if not _may_end(sql, statements.require_save(sql, number), state):
        return []
    if incident is not None:
        statements.insert_incident(sql, incident, now)
    if state is SaveState.PUBLISHED:
        statements.publish(sql, number, now, None)
        statements.skip_older(sql, policy, number, now)
        return []
    if state is SaveState.DELETED:
        return deletes.delete_save(sql, number)
    statements.set_save_state(sql, number, state)
    return []


def record_swept(sql: apsw.Connection, number: int) -> None:
    """Record that a save has no unfinished uploads of ours left at the remote."""
    sql.execute("UPDATE saves SET swept = 1 WHERE number = ?", (number,))
    statements.forget_leftovers(sql, number)


def forget_save(sql: apsw.Connection, number: int) -> None:
    """Forget a deleted save once its objects are gone; its tombstone stays in the bucket."""
    sql.execute(
        "UPDATE saves SET location = NULL WHERE number = ? AND state = 'deleted'", (number,)
    )
    statements.forget_leftovers(sql, number)


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
    statements.set_shard_state(sql, version, state)
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
