"""What puts and deletions of the S3 door change, and what the drain makes of them.

Each function runs inside a transaction (``Store.write``), and returns the shards that it made
superfluous: their files go once it is synced. A version of a key that the bucket has shown goes as
soon as a newer one is committed. One that it has not stays, whatever came after it: other objects
may speak of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import apsw
from cachetier_client.bucket_format.stored import Content, Stored

from cachetier.errors import ConditionError, NoSuchKeyError
from cachetier.local.catalog import objects, rows, statements
from cachetier.local.catalog.records import IncidentRecord, NewShard
from cachetier.model import lifecycle
from cachetier.model.checkpoint import Save, SaveState
from cachetier.model.lifecycle import ShardEvent
from cachetier.model.objects import SAVE_ID, Head, ObjectState, ObjectVersion, piece_name
from cachetier.model.shard import Shard

_RANK, _STEP = 0, 0
NOTHING_THERE = ""
ANY_ETAG = "*"


@dataclass(frozen=True, slots=True)
class InBucket:
    """What a look found in the bucket under a key: ``etag`` is the door's, empty for nothing."""

    etag: str = NOTHING_THERE
    remote_etag: str = NOTHING_THERE


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold of a key for a put to happen: see ``PutObject`` of ``objects.base``.

    ``looked`` is what the bucket has, where this node does not know the key; None where nobody
    looked, which an unconditional put needs not.
    """

    if_absent: bool = False
    if_match: str | None = None
    looked: InBucket | None = None


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
    """The outcome of deletions: a version for each key."""

    versions: tuple[CommittedObject, ...]
    repeated: bool = False

    @property
    def replaced(self) -> tuple[Shard, ...]:
        return tuple(shard for each in self.versions for shard in each.replaced)


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
    sql: apsw.Connection, run: str, deletions: Sequence[NewObject], now: float
) -> DeletedKeys:
    """Commit deletions, which follow all that is committed by now.

    A key whose deletion waits to be shown already keeps that one. One that is known to nobody here
    is deleted too, as the bucket may have it.
    """
    save = begun_mount(sql, run, now)
    follows = objects.watermark(sql)
    deleted = []
    for new in deletions:
        newest = objects.current(sql, run, new.key)
        if newest is not None and newest.deleted and not newest.shown:
            deleted.append(CommittedObject(newest.version, newest.etag, repeated=True))
        else:
            following = replace(new, follows=follows)
            deleted.append(insert_version(sql, save, following, UNCONDITIONAL, now))
    return DeletedKeys(tuple(deleted))


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
        "committed_at, follows, state, base, epoch, waits, row_digest) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(save.number, new.key, int(new.deleted), new.size_bytes, rows.packed(new.digest)),
            *(new.etag, head, sizes, now, new.follows),
            *(ObjectState.DIRTY, _base(newest, condition), new.epoch, new.waits),
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


def record_base(sql: apsw.Connection, version: int, remote_etag: str) -> None:
    """Record what the first look found in the bucket, which a version may replace."""
    sql.execute(
        "UPDATE objects SET base = ? WHERE version = ? AND base IS NULL", (remote_etag, version)
    )


def record_conflict(
    sql: apsw.Connection, version: int, incident: IncidentRecord, now: float
) -> None:
    """Record that a version cannot go on, and why: a person decides."""
    sql.execute(
        "UPDATE objects SET state = ? WHERE version = ? AND state = ?",
        (ObjectState.CONFLICT, version, ObjectState.DIRTY),
    )
    if sql.changes():
        statements.insert_incident(sql, incident, now)


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
    else:
        etag = condition.looked.etag if condition.looked is not None else NOTHING_THERE
    wanted = condition.if_match
    if condition.if_absent and etag:
        raise ConditionError(f"there is an object under {key} already", name=key)
    if wanted is not None and not etag:
        raise NoSuchKeyError(f"there is no object under {key} to match {wanted}", name=key)
    if wanted not in (None, etag, ANY_ETAG):
        raise ConditionError(f"the object under {key} is not {wanted}", name=key)
