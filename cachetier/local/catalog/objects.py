"""Objects of the S3 door: versions of keys and their pieces, and the order across nodes.

Each function that writes runs inside a transaction (``Store.write``), and returns the shards that
it made superfluous: their files go once it is synced. A version of a key that the bucket has shown
goes as soon as a newer one is committed. One that it has not stays, whatever came after it: other
objects may speak of it. Keys are compared byte by byte, as S3 lists them: the order of code points
is that of UTF-8.

``order_notes`` are the notes that this node owes, or has, in the buckets of mounts with ``order =
cluster``. A row is there before its note, and goes after it, so no note is ever forgotten. Which
epoch is open is known in memory alone: after a start every epoch of before is closed.

Source: docs/design/0030-objects.md, "Order across nodes".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import apsw
from cachetier_client.bucket_format.stored import Content, Stored

from cachetier.errors import ConditionError, NoSuchKeyError, NotFoundError
from cachetier.local.catalog import copies, notes, rows, saves, shards
from cachetier.local.catalog.rows import IS_DISPUTED, IS_UNSHOWN, IncidentRecord, NewShard, Row
from cachetier.local.catalog.states import move, move_all
from cachetier.model.checkpoint import Save
from cachetier.model.cluster_order import UNLISTED
from cachetier.model.lifecycle import MOUNT_SAVES, ObjectEvent, ObjectState, SaveState, ShardEvent
from cachetier.model.names import DURABLE
from cachetier.model.objects import (
    LAST_CODE_POINT,
    NOTHING_THERE,
    SAVE_ID,
    Head,
    ObjectVersion,
    piece_name,
    placed_piece,
)
from cachetier.model.shard import Shard

# A conflict holds back what came after it under its key, and nothing else. (The first condition is
# for the index.)
TO_SHOW = (
    f"{IS_UNSHOWN} AND {ObjectState.DIRTY.sql('objects.state')} AND objects.key NOT IN "
    "(SELECT key FROM objects AS held WHERE held.save = objects.save "
    f"AND {ObjectState.CONFLICT.sql('held.state')})"
)
_NEWEST = (
    "objects.version = (SELECT max(version) FROM objects AS other "
    "WHERE other.save = objects.save AND other.key = objects.key)"
)
_BEFORE_SURROGATES, _BEHIND_SURROGATES = 0xD7FF, 0xE000


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """A piece of ``version``, ``start`` bytes from its begin."""

    version: ObjectVersion
    start: int


_RANK, _STEP = 0, 0
ANY_ETAG = "*"
NEVER_THERE = "superseded"  # no object has this ETag
SUPERSEDED_KEPT = 20  # of each mount


@dataclass(frozen=True, slots=True)
class InBucket:
    """The object that was found in the bucket under a key.

    ``etag`` is the door's, empty for nothing.
    """

    etag: str = NOTHING_THERE
    remote_etag: str = NOTHING_THERE
    size_bytes: int = 0
    modified_at: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyCondition:
    """The condition on a key for a put or a deletion.

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


UNCONDITIONAL = KeyCondition()


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
    """The outcome of a commit; ``repeated`` as of ``parts.Committed``."""

    version: int
    etag: str
    replaced: tuple[Shard, ...] = ()
    repeated: bool = False
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeletedKeys:
    """The outcome of deletions: a version for each key, and shards of ``conflicts`` that went."""

    versions: tuple[CommittedObject, ...]
    conflicts: tuple[Shard, ...] = ()
    repeated: bool = False

    @property
    def replaced(self) -> tuple[Shard, ...]:
        of_keys = (shard for each in self.versions for shard in each.replaced)
        return (*of_keys, *self.conflicts)


@dataclass(frozen=True, slots=True)
class OrderNote:
    """A note of this node; ``written``: it surely is in the bucket."""

    epoch: str
    opened_at: float
    written: bool


def mount_save(sql: apsw.Connection, run: str) -> int | None:
    """Return the number of a mount's save; None where nothing was ever put."""
    query = f"SELECT number FROM saves WHERE run = ? AND {MOUNT_SAVES.sql()}"
    return next(iter(rows.column(sql, query, run)), None)


def mount_saves(sql: apsw.Connection) -> dict[str, int]:
    """Return the save of each mount that ever had an object, by the name of its run."""
    query = f"SELECT run, number FROM saves WHERE {MOUNT_SAVES.sql()} ORDER BY run"
    return {str(run): int(number) for run, number in sql.execute(query)}


def current(sql: apsw.Connection, run: str, key: str) -> ObjectVersion | None:
    """Return the newest version of a key, which may be its deletion; None where none is here."""
    condition = (  # a key may have any number of versions that wait to be shown
        "objects.version = (SELECT max(version) FROM objects AS newest WHERE newest.key = ? "
        f"AND newest.save = (SELECT number FROM saves WHERE run = ? AND {MOUNT_SAVES.sql()}))"
    )
    return next(iter(objects_where(sql, condition, key, run)), None)


def by_version(sql: apsw.Connection, version: int) -> ObjectVersion | None:
    return next(iter(objects_where(sql, "objects.version = ?", version)), None)


def unshown_page(
    sql: apsw.Connection, run: str, prefix: str, after: str, limit: int
) -> list[ObjectVersion]:
    """Return the newest versions of up to ``limit`` keys that the bucket does not show yet.

    They are those behind ``after``, in order. Deletions are among them: who merges this with the
    bucket's listing has to know.
    """
    condition = (
        f"objects.save = ?1 AND {IS_UNSHOWN} AND objects.key > ?2 "
        f"AND objects.key >= ?3 AND {_NEWEST} AND (?4 IS NULL OR objects.key < ?4) "
        "ORDER BY objects.key LIMIT ?5"
    )
    save = mount_save(sql, run)
    return objects_where(sql, condition, save, after, prefix, _behind(prefix), limit)


def watermark(sql: apsw.Connection) -> int:
    """Return the highest version of any mount; 0 for none.

    A version that was removed meanwhile was shown before, so nothing has to follow it.
    """
    return int(sql.execute("SELECT coalesce(max(version), 0) FROM objects").get)


def objects_to_show(sql: apsw.Connection, save: int, limit: int = -1) -> list[ObjectVersion]:
    """Return the versions of a mount that its bucket is to show, oldest first.

    Those that a person has to decide about are not among them, nor what they hold back.
    """
    condition = f"objects.save = ? AND {TO_SHOW} ORDER BY objects.version LIMIT ?"
    return objects_where(sql, condition, save, limit)


def unshown_versions(sql: apsw.Connection, save: int) -> list[int]:
    """Return the versions of a mount that its bucket does not show yet, for ``may_show``."""
    return rows.column(
        sql, f"SELECT version FROM objects WHERE save = ? AND {IS_UNSHOWN} ORDER BY version", save
    )


def is_shown(sql: apsw.Connection, version: int) -> bool:
    """Return whether a version is, or was, shown: one that is gone from here was."""
    return not rows.exists(
        sql, f"SELECT 1 FROM objects WHERE version = ? AND {IS_UNSHOWN}", version
    )


def pieces_of(sql: apsw.Connection, version: int) -> list[Shard]:
    """Return the pieces of a version, in order."""
    condition = (
        "shards.save = (SELECT save FROM objects WHERE version = ?1) AND name > ?2 AND name < ?3 "
        "ORDER BY name"
    )
    first, behind_last = f"{version:016x}/", f"{version:016x}0"  # a zero follows the slash
    return shards.shards_where(sql, condition, version, first, behind_last)


def older_shown(sql: apsw.Connection, save: int, key: str, version: int) -> list[int]:
    """Return the versions of a key before ``version`` that the bucket has shown."""
    return rows.column(
        sql,
        "SELECT version FROM objects WHERE save = ? AND key = ? AND version < ? "
        f"AND {ObjectState.CLEAN.sql()}",
        save,
        key,
        version,
    )


def deleted_with(sql: apsw.Connection, request: int) -> dict[str, int]:
    """Return the deletions of a request that its bucket has no record of, by their keys."""
    query = "SELECT key, version FROM objects WHERE request = ? AND deleted"
    return {str(key): int(version) for key, version in sql.execute(query, (request,))}


def next_of_key(sql: apsw.Connection, found: ObjectVersion) -> ObjectVersion | None:
    """Return the version of its key that came next; None for the newest."""
    condition = (
        "objects.save = ? AND objects.key = ? AND objects.version > ? "
        "ORDER BY objects.version LIMIT 1"
    )
    return next(iter(objects_where(sql, condition, found.save, found.key, found.version)), None)


def objects_where(sql: apsw.Connection, condition: str, *values: object) -> list[ObjectVersion]:
    query = (
        f"SELECT {rows.OBJECT_COLUMNS} FROM objects JOIN saves ON saves.number = objects.save "
        f"WHERE {condition}"
    )
    return [rows.object_of(row) for row in sql.execute(query, values)]


def _behind(prefix: str) -> str | None:
    """Return the first key behind all that begin with ``prefix``; None where there is none."""
    shortened = prefix.rstrip(LAST_CODE_POINT)
    if not shortened:
        return None
    last = ord(shortened[-1])
    following = _BEHIND_SURROGATES if last == _BEFORE_SURROGATES else last + 1
    return shortened[:-1] + chr(following)


def newest_with_pieces(
    sql: apsw.Connection, run: str, key: str
) -> tuple[ObjectVersion, list[Shard]] | None:
    """Return the newest version of a key with its pieces; None where none is here.

    The two are read one after the other: of a version that went between them pieces are missing.
    """
    version = current(sql, run, key)
    return None if version is None else (version, pieces_of(sql, version.version))


def newest_of(sql: apsw.Connection, run: str, keys: Iterable[str]) -> dict[str, ObjectVersion]:
    """Return the newest versions of those ``keys`` that have one here."""
    found = ((key, current(sql, run, key)) for key in keys)
    return {key: version for key, version in found if version is not None}


def piece_named(sql: apsw.Connection, run: str, name: str) -> Shard | None:
    save = mount_save(sql, run)
    return None if save is None else shards.shard_named(sql, save, name)


def place_of(sql: apsw.Connection, piece: Shard) -> PlacedPiece | None:
    """Return which version a piece is of, and where in it; None of an upload that is not complete.

    None, too, where the version is gone.
    """
    placed = placed_piece(piece.name)
    version = by_version(sql, placed[0]) if placed is not None else None
    if placed is None or version is None:
        return None
    return PlacedPiece(version, sum(version.part_sizes[: placed[1] - 1]))


def forget_shown(sql: apsw.Connection, version: int) -> list[Shard] | None:
    """Forget a version that the bucket showed, and does not show any more; return its pieces.

    None where it is gone already.
    """
    found = by_version(sql, version)
    return forget_version(sql, version) if found and found.shown else None


def begun_mount(sql: apsw.Connection, run: str, now: float) -> Save:
    """Return the save of a mount, beginning it if nothing was put there before."""
    number = mount_save(sql, run)
    if number is not None:
        return saves.require_save(sql, number)
    begun = Save(0, run, _STEP, SAVE_ID, SaveState.OBJECTS, 1, False, now)
    return saves.insert_save(sql, begun)


def commit_object(
    sql: apsw.Connection,
    run: str,
    new: NewObject,
    piece: NewPiece,
    condition: KeyCondition,
    now: float,
) -> CommittedObject:
    """Commit an object that was put whole.

    Raises:
        NoSuchKeyError, ConditionError: The condition does not hold of the newest version
        of its key.
    """
    save = begun_mount(sql, run, now)
    committed = insert_version(sql, save, new, condition, now)
    shards.insert_shard(sql, save, piece.named(piece_name(committed.version, 1)), now)
    return committed


def delete_keys(
    sql: apsw.Connection,
    run: str,
    deletions: Sequence[NewObject],
    now: float,
    condition: KeyCondition = UNCONDITIONAL,
) -> DeletedKeys:
    """Commit deletions, which follow all that is committed by now.

    A key that is known to nobody here is deleted too, as the bucket may have it; so is one whose
    deletion waits, as somebody may have put it since. A version in conflict was never shown, and
    nobody has to decide about it any more.

    Raises:
        NoSuchKeyError, ConditionError: The condition does not hold of a key; nothing was deleted.
    """
    save = begun_mount(sql, run, now)
    follows = watermark(sql)
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
    query = f"SELECT version FROM objects WHERE save = ? AND key = ? AND {IS_DISPUTED}"
    found: list[Row] = sql.execute(query, (save, key)).fetchall()
    return [piece for (version,) in found for piece in forget_version(sql, version)]


def insert_version(
    sql: apsw.Connection, save: Save, new: NewObject, condition: KeyCondition, now: float
) -> CommittedObject:
    """Insert a version of a key whose condition holds; older ones that were shown go.

    Raises:
        NoSuchKeyError, ConditionError: It does not.
    """
    newest = current(sql, save.run, new.key)
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
            rows.object_row_digest(save.run, new.key, *of_bytes, head, sizes, new.follows),
        ),
    )
    version = sql.last_insert_rowid()
    replaced = [
        piece
        for older in older_shown(sql, save.number, new.key, version)
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
    found = by_version(sql, version)
    if found is None or found.shown:
        return []
    move(sql, version, ObjectEvent.SHOW, also="remote_etag = ?", values=(remote_etag,))
    for piece in pieces_of(sql, version):
        move(sql, piece.version, ShardEvent.VERIFIED_REMOTELY)
        shards.insert_stored(sql, piece.version, remote, Stored.raw(piece.content), now)
    newer = next_of_key(sql, found)
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
    found = by_version(sql, version)
    if found is None or found.state is not ObjectState.DIRTY:
        return []
    query = "SELECT 1 FROM objects WHERE save = ? AND key = ? AND version > ? AND deleted"
    if sql.execute(query, (found.save, found.key, version)).fetchone():
        return forget_version(sql, version)
    move(sql, version, ObjectEvent.DISPUTE)
    notes.insert_incident(sql, incident, now)
    return []


def record_superseded(sql: apsw.Connection, version: int, reason: str, now: float) -> list[Shard]:
    """Record that somebody else's put or deletion is newer: the version goes, with its pieces.

    A conditional put that came after it was put over what nobody ever saw.
    """
    found = by_version(sql, version)
    if found is None or found.state is not ObjectState.DIRTY:
        return []
    newer = next_of_key(sql, found)
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
    """Record that the bucket has a record of the deletions of a request."""
    sql.execute("UPDATE objects SET request = NULL WHERE request = ?", (request,))


def raise_versions(sql: apsw.Connection, seen: int) -> None:
    """Have the next version be higher than one of this directory that was ``seen`` in a bucket."""
    sql.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'objects'", (seen,))
    if not sql.changes():
        sql.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('objects', ?)", (seen,))


def forget_version(sql: apsw.Connection, version: int) -> list[Shard]:
    """Remove a version and its pieces; return those."""
    pieces = pieces_of(sql, version)
    for piece in pieces:
        shards.delete_shard(sql, piece.version)
    sql.execute("DELETE FROM objects WHERE version = ?", (version,))
    return pieces


def _base(newest: ObjectVersion | None, condition: KeyCondition) -> str | None:
    """Return the ETag that a new version may replace in the bucket; None if it is not known."""
    if newest is None:
        return condition.looked.remote_etag if condition.looked is not None else None
    return newest.remote_etag if newest.shown else None


def _check(key: str, newest: ObjectVersion | None, condition: KeyCondition) -> None:
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


def sent_ahead(
    sql: apsw.Connection, versions: Iterable[ObjectVersion], remote: str
) -> frozenset[int]:
    """Return those of ``versions`` whose upload at ``remote`` lacks no byte."""
    query = (
        "SELECT coalesce(sum(uploaded_parts.raw_bytes), 0) FROM uploaded_parts JOIN shards "
        "ON shards.version = uploaded_parts.version WHERE shards.save = ? AND shards.name = ? "
        "AND uploaded_parts.remote = ?"
    )
    return frozenset(
        each.version
        for each in versions
        if sql.execute(query, (each.save, piece_name(each.version, 1), remote)).get
        == each.size_bytes
    )


def unshown_by_mount(sql: apsw.Connection) -> list[tuple[str, int, int]]:
    """Return of each mount how many versions its bucket does not show yet, and their bytes."""
    query = (
        "SELECT saves.run, count(*), sum(objects.size_bytes) FROM objects JOIN saves "
        f"ON saves.number = objects.save WHERE {IS_UNSHOWN} GROUP BY saves.number"
    )
    return [(str(run), int(count), int(size)) for run, count, size in sql.execute(query)]


def conflict_of(sql: apsw.Connection, run: str, key: str) -> ObjectVersion | None:
    """Return the version of a key that a person must decide about; None where none is."""
    condition = "saves.run = ? AND objects.key = ? AND objects.state = ?"
    return next(iter(objects_where(sql, condition, run, key, ObjectState.CONFLICT)), None)


def keep_ours(sql: apsw.Connection, version: int, there: str) -> None:
    """Let a version in conflict replace ``there``, the ETag of what the bucket has by now.

    Raises:
        NotFoundError: It is gone, or not in conflict any more.
    """
    _in_conflict(sql, version)
    move(sql, version, ObjectEvent.KEEP_OURS, also="base = ?", values=(there,))


def keep_theirs(sql: apsw.Connection, version: int, there: str) -> list[Shard]:
    """Drop a version in conflict; the next of its key may replace ``there``. Returns its pieces.

    Raises:
        NotFoundError: It is gone, or not in conflict any more.
    """
    newer = next_of_key(sql, _in_conflict(sql, version))
    if newer is not None:
        sql.execute("UPDATE objects SET base = ? WHERE version = ?", (there, newer.version))
    return forget_version(sql, version)


def _in_conflict(sql: apsw.Connection, version: int) -> ObjectVersion:
    found = by_version(sql, version)
    if found is None or found.state is not ObjectState.CONFLICT:
        raise NotFoundError(f"version {version} is not in conflict any more")
    return found


def send_again(sql: apsw.Connection, version: int, base: str) -> None:
    """Have a version that its bucket lost brought there again, over ``base``."""
    for piece in pieces_of(sql, version):
        copies.record_lost(sql, piece.version, DURABLE)
    also = "remote_etag = NULL, base = ?"
    move_all(sql, "version = ?", ObjectEvent.LOST_REMOTELY, also=also, values=(base, version))


def forget_row(sql: apsw.Connection, version: int) -> None:
    """Remove the row of an object whose pieces are gone; it need not be sound."""
    sql.execute("DELETE FROM objects WHERE version = ?", (version,))


def take_back(
    sql: apsw.Connection, run: str, new: NewObject, pieces: Sequence[NewPiece], now: float
) -> CommittedObject:
    """Commit an object of files that a lost catalog named; it follows all that was taken back.

    The catalog may have given more versions than it knows: the next one is higher than all of them.
    """
    save = begun_mount(sql, run, now)
    committed = insert_version(sql, save, new, UNCONDITIONAL, now)
    raise_versions(sql, new.stamped or 0)
    for number, piece in enumerate(pieces, 1):
        shards.insert_shard(sql, save, piece.named(piece_name(committed.version, number)), now)
    return committed


def is_held(sql: apsw.Connection, save: int) -> bool:
    """Return whether nothing of a mount may become visible: it owes a note, or a look for some."""
    return rows.exists(
        sql,
        "SELECT 1 FROM order_notes WHERE save = ?1 AND NOT written "
        f"UNION ALL SELECT 1 FROM objects WHERE save = ?1 AND {IS_UNSHOWN} AND waits = ?2",
        *(save, UNLISTED),
    )


def notes_of(sql: apsw.Connection, run: str) -> list[OrderNote]:
    """Return the notes of a mount, the oldest first."""
    query = (
        "SELECT epoch, opened_at, written FROM order_notes JOIN saves ON number = save "
        "WHERE run = ? ORDER BY opened_at, epoch"
    )
    return [
        OrderNote(epoch, at, bool(written)) for epoch, at, written in sql.execute(query, (run,))
    ]


def open_epoch(sql: apsw.Connection, run: str, epoch: str, now: float) -> None:
    """Remember that a note is owed."""
    save = begun_mount(sql, run, now)
    sql.execute(
        "INSERT INTO order_notes (save, epoch, opened_at) VALUES (?, ?, ?)",
        (save.number, epoch, now),
    )


def record_written(sql: apsw.Connection, run: str, epoch: str) -> None:
    query = "UPDATE order_notes SET written = 1 WHERE epoch = ? AND save = ?"
    sql.execute(query, (epoch, mount_save(sql, run)))


def forget_epoch(sql: apsw.Connection, run: str, epoch: str) -> None:
    """Forget an epoch whose note is gone."""
    query = "DELETE FROM order_notes WHERE epoch = ? AND save = ?"
    sql.execute(query, (epoch, mount_save(sql, run)))


def is_drained(sql: apsw.Connection, run: str, epoch: str) -> bool:
    """Return whether the bucket shows all objects of an epoch, but those that a person holds up."""
    query = f"SELECT 1 FROM objects WHERE save = ? AND epoch = ? AND {TO_SHOW}"
    return not rows.exists(sql, query, mount_save(sql, run), epoch)


def waiting_markers(sql: apsw.Connection, run: str) -> list[ObjectVersion]:
    """Return the markers of a mount that wait for other nodes, or have yet to look for them."""
    condition = f"saves.run = ? AND {IS_UNSHOWN} AND waits IS NOT NULL ORDER BY objects.version"
    return objects_where(sql, condition, run)


def record_waits(sql: apsw.Connection, version: int, waits: str | None) -> None:
    """Record for which other nodes a marker waits by now."""
    sql.execute("UPDATE objects SET waits = ? WHERE version = ?", (waits, version))


def release(
    sql: apsw.Connection, version: int, incident: IncidentRecord | None, now: float
) -> None:
    """Let a marker wait no more, whatever other nodes have; ``incident`` tells of it."""
    record_waits(sql, version, None)
    if incident is not None:
        notes.insert_incident(sql, incident, now)
