"""What puts and deletions of the S3 door change, and what the drain makes of them.

Each function runs inside a transaction (``Store.write``), and returns the shards that it made
superfluous: their files go once it is synced. A version of a key that the bucket has shown goes as
soon as a newer one is committed. One that it has not stays, whatever came after it: other objects
may speak of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import apsw
from cachetier_client.bucket_format.stored import Content, Stored

from cachetier.errors import ConditionError, NoSuchKeyError
from cachetier.local.catalog import objects, rows, statements
from cachetier.local.catalog.records import IncidentRecord, NewShard
from cachetier.local.catalog.rows import Row
from cachetier.model import lifecycle
from cachetier.model.checkpoint import Save, SaveState
from cachetier.model.lifecycle import ShardEvent
from cachetier.model.objects import (
    NOTHING_THERE,
    SAVE_ID,
    Head,
    ObjectState,
    ObjectVersion,
    piece_name,
)
from cachetier.model.shard import Shard

_RANK, _STEP = 0, 0
ANY_ETAG = "*"
NEVER_THERE = "superseded"  # no object has this ETag
SUPERSEDED_KEPT = 20  # of each mount


@dataclass(frozen=True, slots=True)
class InBucket:
    """What a look found in the bucket under a key: ``etag`` is the door's, empty for nothing."""

    etag: str = NOTHING_THERE
    remote_etag: str = NOTHING_THERE
    size_bytes: int = 0
    modified_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of a key for a put or a deletion to happen.

    Attributes:
        if_absent: The key is not there.
        if_match: It is there, with this ETag.
        if_size_bytes: What is there, if anything is, has this size.
        if_modified_at: It was put in this second.
        looked: What the bucket has, where this node does not know the key; None where nobody
            looked, which is needless without a condition.
    """

    if_absent: bool = False
    if_match: str | None = None
    if_size_bytes: int | None = None
    if_modified_at: float | None = None
    looked: InBucket | None = None

    @property
    def asks(self) -> bool:
        """Whether there is a condition at all."""
        wanted = self.if_match, self.if_size_bytes, self.if_modified_at
        return self.if_absent or any(each is not None for each in wanted)


UNCONDITIONAL = Condition()


@dataclass(frozen=True, slots=True)
class NewObject:
    """A version about to get its row."""

    key: str
    head: Head
    follows: int
    etag: str
    size_bytes: int
    digest: int
    part_sizes: tuple[int, ...] = ()
    deleted: bool = False
    epoch: str | None = None
    waits: str | None = None
    acknowledged_at: float | None = None
    stamped: int | None = None


@dataclass(frozen=True, slots=True)
class NewPiece:
    """The bytes of an object that was put whole, or of a part: in a file, or in ``body``."""

    content: Content
    file_id: str | None = None
    body: bytes | None = None

    def named(self, name: str) -> NewShard:
        return NewShard(name, _RANK, self.content, file_id=self.file_id, body=self.body)


@dataclass(frozen=True, slots=True)
class CommittedObject:
    """The outcome of a commit; ``repeated`` as of ``puts.Committed``."""

    version: int
    etag: str
    replaced: tuple[Shard, ...] = ()
    repeated: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeletedKeys:
    """The outcome of deletions: a version for each key, and what of ``conflicts`` went."""

    versions: tuple[CommittedObject, ...]
    conflicts: tuple[Shard, ...] = ()
    repeated: bool = False

    @property
    def replaced(self) -> tuple[Shard, ...]:
        of_keys = (shard for each in self.versions for shard in each.replaced)
        return (*of_keys, *self.conflicts)


def begun_mount(sql: apsw.Connection, run: str, now: float) -> Save:
    """Return the save of a mount, beginning it if nothing was put there before."""
    number = objects.mount_save(sql, run)
    if number is not None:
        return statements.require_save(sql, number)
    begun = Save(0, run, _STEP, SAVE_ID, SaveState.OBJECTS, 1, False, now)
    return statements.insert_save(sql, begun)


def commit_object(
    sql: apsw.Connection,
    run: str,
    new: NewObject,
    piece: NewPiece,
    condition: Condition,
    now: float,
) -> CommittedObject:
    """Commit an object that was put whole.

    Raises:
        NoSuchKeyError, ConditionError: The condition does not hold of the newest version
        of its key.
    """
    save = begun_mount(sql, run, now)
    committed = insert_version(sql, save, new, condition, now)
    statements.insert_shard(sql, save, piece.named(piece_name(committed.version, 1)), now)
    return committed


def delete_keys(
    sql: apsw.Connection,
    run: str,
    deletions: Sequence[NewObject],
    now: float,
    condition: Condition = UNCONDITIONAL,
) -> DeletedKeys:
    """Commit deletions, which follow all that is committed by now.

    A key that is known to nobody here is deleted too, as the bucket may have it; so is one whose
    deletion waits, as somebody may have put it since. A version in conflict was never shown, and
    nobody has to decide about it any more.

    Raises:
        NoSuchKeyError, ConditionError: The condition does not hold of a key; nothing was deleted.
    """
    save = begun_mount(sql, run, now)
    follows = objects.watermark(sql)
    deleted: list[CommittedObject] = []
    conflicts: list[Shard] = []
    for new in deletions:
        following = replace(new, follows=follows)
        deleted.append(insert_version(sql, save, following, condition, now))
        conflicts += _forget_conflicts(sql, save.number, new.key)
    if deleted:  # nothing else is committed in between
        query = "UPDATE objects SET request = ? WHERE version BETWEEN ? AND ?"
        sql.execute(query, (deleted[0].version, deleted[0].version, deleted[-1].version))
    return DeletedKeys(tuple(deleted), tuple(conflicts))


def _forget_conflicts(sql: apsw.Connection, save: int, key: str) -> list[Shard]:
    query = "SELECT version FROM objects WHERE save = ? AND key = ? AND state = 'conflict'"
    found: list[Row] = sql.execute(query, (save, key)).fetchall()
    return [piece for (version,) in found for piece in forget_version(sql, version)]


def insert_version(
    sql: apsw.Connection, save: Save, new: NewObject, condition: Condition, now: float
) -> CommittedObject:
    """Insert a version of a key whose condition holds; older ones that were shown go.

    Raises:
        NoSuchKeyError, ConditionError: It does not.
    """
    newest = objects.current(sql, save.run, new.key)
    _check(new.key, newest, condition)
    head, sizes = new.head.as_text(), ",".join(map(str, new.part_sizes))
    of_bytes = new.deleted, new.size_bytes, new.digest, new.etag
    sql.execute(
        "INSERT INTO objects (save, key, deleted, size_bytes, digest, etag, head, part_sizes, "
        "committed_at, follows, state, base, epoch, waits, acknowledged_at, conditional, stamped, "
        "row_digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(save.number, new.key, int(new.deleted), new.size_bytes, rows.packed(new.digest)),
            *(new.etag, head, sizes, now, new.follows),
            *(ObjectState.DIRTY, _base(newest, condition), new.epoch, new.waits),
            *(new.acknowledged_at, int(condition.asks), new.stamped),
            objects.object_row_digest(save.run, new.key, *of_bytes, head, sizes, new.follows),
        ),
    )
    version = sql.last_insert_rowid()
    replaced = [
        piece
        for older in objects.older_shown(sql, save.number, new.key, version)
        for piece in forget_version(sql, older)
    ]
    return CommittedObject(version, new.etag, tuple(replaced), checksums=new.head.checksums)


def record_shown(
    sql: apsw.Connection, version: int, remote_etag: str, remote: str, now: float
) -> list[Shard]:
    """Record that the bucket shows a version, verified, under ``remote_etag``.

    Its pieces are clean. It hands on what the next version of its key may replace, and goes if
    there is one; so does a deletion, as nothing is left of it.
    """
    found = objects.by_version(sql, version)
    if found is None or found.shown:
        return []
    sql.execute(
        "UPDATE objects SET state = ?, remote_etag = ? WHERE version = ?",
        (ObjectState.CLEAN, remote_etag, version),
    )
    for piece in objects.pieces_of(sql, version):
        state = lifecycle.after(piece.state, ShardEvent.VERIFIED_REMOTELY)
        statements.set_shard_state(sql, piece.version, state)
        statements.insert_stored(sql, piece.version, remote, Stored.raw(piece.content), now)
    newer = objects.next_of_key(sql, found)
    if newer is None:
        return forget_version(sql, version) if found.deleted else []
    sql.execute("UPDATE objects SET base = ? WHERE version = ?", (remote_etag, newer.version))
    return forget_version(sql, version)


def record_conflict(
    sql: apsw.Connection, version: int, incident: IncidentRecord, now: float
) -> list[Shard]:
    """Record that a version cannot go on, and why: a person decides.

    Unless its key was deleted since: then it goes, and its pieces are returned.
    """
    found = objects.by_version(sql, version)
    if found is None or found.state is not ObjectState.DIRTY:
        return []
    query = "SELECT 1 FROM objects WHERE save = ? AND key = ? AND version > ? AND deleted"
    if sql.execute(query, (found.save, found.key, version)).fetchone():
        return forget_version(sql, version)
    query = "UPDATE objects SET state = ? WHERE version = ?"
    sql.execute(query, (ObjectState.CONFLICT, version))
    statements.insert_incident(sql, incident, now)
    return []


def record_superseded(sql: apsw.Connection, version: int, reason: str, now: float) -> list[Shard]:
    """Record that somebody else's put or deletion is newer: the version goes, with its pieces.

    A conditional put that came after it was put over what nobody ever saw.
    """
    found = objects.by_version(sql, version)
    if found is None or found.state is not ObjectState.DIRTY:
        return []
    newer = objects.next_of_key(sql, found)
    if newer is not None and newer.conditional:
        query = "UPDATE objects SET base = ? WHERE version = ?"
        sql.execute(query, (NEVER_THERE, newer.version))
    sql.execute(
        "INSERT OR REPLACE INTO superseded_objects (version, save, key, reason, superseded_at) "
        "VALUES (?, ?, ?, ?, ?)",
        (version, found.save, found.key, reason, now),
    )
    sql.execute(
        "DELETE FROM superseded_objects WHERE save = ?1 AND version NOT IN (SELECT version "
        "FROM superseded_objects WHERE save = ?1 ORDER BY superseded_at DESC, version DESC "
        "LIMIT ?2)",
        (found.save, SUPERSEDED_KEPT),
    )
    return forget_version(sql, version)


def record_deletions_recorded(sql: apsw.Connection, request: int) -> None:
    """Record that the bucket has a record of what a request deleted."""
    sql.execute("UPDATE objects SET request = NULL WHERE request = ?", (request,))


def raise_versions(sql: apsw.Connection, seen: int) -> None:
    """Have the next version be higher than one of this directory that was ``seen`` in a bucket."""
    sql.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'objects'", (seen,))
    if not sql.changes():
        sql.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('objects', ?)", (seen,))


def forget_version(sql: apsw.Connection, version: int) -> list[Shard]:
    """Remove a version and its pieces; return those."""
    pieces = objects.pieces_of(sql, version)
    for piece in pieces:
        statements.delete_shard(sql, piece.version)
    sql.execute("DELETE FROM objects WHERE version = ?", (version,))
    return pieces


def _base(newest: ObjectVersion | None, condition: Condition) -> str | None:
    """Return what a new version may replace in the bucket, as far as that is known."""
    if newest is None:
        return condition.looked.remote_etag if condition.looked is not None else None
    return newest.remote_etag if newest.shown else None


def _check(key: str, newest: ObjectVersion | None, condition: Condition) -> None:
    if newest is not None:
        etag = NOTHING_THERE if newest.deleted else newest.etag
        there = InBucket(etag, "", newest.size_bytes, newest.committed_at)
    else:
        there = condition.looked or InBucket()
    wanted, size_bytes, at = condition.if_match, condition.if_size_bytes, condition.if_modified_at
    if condition.if_absent and there.etag:
        raise ConditionError(f"there is an object under {key} already", name=key)
    if wanted is not None and not there.etag:
        raise NoSuchKeyError(f"there is no object under {key} to match {wanted}", name=key)
    if wanted not in (None, there.etag, ANY_ETAG):
        raise ConditionError(f"the object under {key} is not {wanted}", name=key)
    if there.etag and size_bytes not in (None, there.size_bytes):
        raise ConditionError(f"the object under {key} does not have {size_bytes} bytes", name=key)
    if there.etag and at is not None and math.floor(at) != math.floor(there.modified_at):
        raise ConditionError(f"the object under {key} was put at another time", name=key)
