"""Multipart uploads of the S3 door: parts as they come, and the object that they become.

Each function that writes runs inside a transaction (``Store.write``). A part is a shard like any
other; completing an upload gives those that were listed the names of pieces, and touches no byte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import apsw
from cachetier_client.io import digests

from cachetier.errors import (
    EntityTooSmallError,
    InvalidPartError,
    InvalidPartOrderError,
    NoSuchUploadError,
)
from cachetier.local.catalog import objects, rows, shards
from cachetier.local.catalog.objects import CommittedObject, KeyCondition, NewObject, NewPiece
from cachetier.local.catalog.rows import Row
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import Head, etag_of, piece_name, upload_piece_name
from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class UploadRow:
    """An upload: open, or with the version that it became, whose ``head`` it has then."""

    upload_id: str
    run: str
    key: str
    head: Head
    owner: str
    begun_at: float
    version: int | None
    etag: str | None
    listed: bytes | None


@dataclass(frozen=True, slots=True)
class PartRow:
    """A part of an open upload; ``shard`` has its bytes."""

    number: int
    etag: str
    checksums: Mapping[str, str]
    put_at: float
    shard: Shard

    @property
    def known_checksums(self) -> dict[str, str]:
        """The checksums that were declared, and that of the digest."""
        digest = digests.to_base64(self.shard.content.digest)
        return {**self.checksums, "CRC64NVME": digest}


@dataclass(frozen=True, slots=True)
class ListedPart:
    """A part as a completion lists it."""

    number: int
    etag: str
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewPart:
    """A part about to get its row."""

    number: int
    etag: str
    checksums: Mapping[str, str]
    piece: NewPiece


@dataclass(frozen=True, slots=True)
class Completion:
    """The request to complete an upload, and the inputs of the ETag of its object."""

    key: str
    follows: int
    parts: Sequence[ListedPart]
    nonce: str
    minimum_part_bytes: int
    epoch: str | None = None
    waits: str | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    acknowledged_at: float | None = None

    @property
    def digest(self) -> bytes:
        """The fingerprint that tells whether another completion lists the same parts."""
        listed = json.dumps([(part.number, part.etag) for part in self.parts])
        return rows.packed(digests.digest_of(listed.encode()))


@dataclass(frozen=True, slots=True)
class CommittedPart:
    """The outcome of a commit of a part; ``repeated`` as of ``parts.Committed``."""

    part: PartRow
    replaced: tuple[Shard, ...] = ()
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class AbortedUpload:
    """The outcome of an abort: the parts that there were."""

    replaced: tuple[Shard, ...]
    repeated: bool = False


_UPLOADS = (
    "SELECT id, run, key, head, owner, begun_at, version, etag, listed FROM object_uploads "
    "JOIN saves ON saves.number = object_uploads.save WHERE "
)


def open_uploads(sql: apsw.Connection, run: str) -> list[UploadRow]:
    """Return the uploads of a mount that are not complete, by key and id."""
    query = f"{_UPLOADS} run = ? AND version IS NULL ORDER BY key, id"
    return [_upload_of(row) for row in sql.execute(query, (run,))]


def open_upload(sql: apsw.Connection, run: str, key: str, upload_id: str) -> UploadRow:
    """Return an upload that is not complete.

    Raises:
        NoSuchUploadError: It is, or was aborted, or never was.
    """
    upload = _upload(sql, run, key, upload_id)
    if upload.version is not None:
        raise _no_such_upload(key, upload_id)
    return upload


def parts_of(sql: apsw.Connection, upload_id: str, number: int | None = None) -> list[PartRow]:
    """Return the parts of an open upload, by number; or only the one with ``number``."""
    query = (
        "SELECT number, etag, checksums, put_at, version FROM object_upload_parts "
        f"WHERE upload = ?1 {'' if number is None else 'AND number = ?2'} ORDER BY number"
    )
    values = (upload_id,) if number is None else (upload_id, number)
    found: list[Row] = sql.execute(query, values).fetchall()
    return [
        PartRow(number, etag, json.loads(checksums), put_at, shards.require(sql, version))
        for number, etag, checksums, put_at, version in found
    ]


def expired_uploads(sql: apsw.Connection, before: float, limit: int) -> list[str]:
    """Return the ids of up to ``limit`` uploads, open or complete, that had no part since."""
    return rows.column(
        sql,
        "SELECT id FROM object_uploads WHERE begun_at < ?1 AND NOT EXISTS "
        "(SELECT 1 FROM object_upload_parts WHERE upload = id AND put_at >= ?1) LIMIT ?2",
        before,
        limit,
    )


def create_upload(
    sql: apsw.Connection, run: str, upload_id: str, key: str, head: Head, owner: str, now: float
) -> None:
    """Begin an upload."""
    save = objects.begun_mount(sql, run, now)
    sql.execute(
        "INSERT INTO object_uploads (id, save, key, head, owner, begun_at) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (upload_id, save.number, key, head.as_text(), owner, now),
    )


def commit_part(
    sql: apsw.Connection, run: str, key: str, upload_id: str, new: NewPart, now: float
) -> CommittedPart:
    """Commit a part in place of an earlier one of its number.

    Raises:
        NoSuchUploadError: See ``open_upload``.
    """
    open_upload(sql, run, key, upload_id)
    before = _remove_parts(sql, upload_id, new.number)
    save = objects.begun_mount(sql, run, now)
    name = upload_piece_name(upload_id, new.number)
    shard = shards.insert_shard(sql, save, new.piece.named(name), now)
    sql.execute(
        "INSERT INTO object_upload_parts (upload, number, version, etag, checksums, put_at) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (upload_id, new.number, shard.version, new.etag, json.dumps(dict(new.checksums)), now),
    )
    part = PartRow(new.number, new.etag, new.checksums, now, shard)
    return CommittedPart(part, tuple(before))


def planned(
    sql: apsw.Connection, run: str, upload_id: str, completion: Completion
) -> tuple[NewObject, Shard] | None:
    """Return the object that a completion makes, and its first piece; None if it did so before.

    Raises:
        NoSuchUploadError, InvalidPartError, ...: As ``complete_upload``.
    """
    upload = _upload(sql, run, completion.key, upload_id)
    if upload.version is not None:
        _check_repeats(upload, completion)
        return None
    parts = listed_parts(sql, upload_id, completion)
    return object_of(upload, parts, completion), parts[0].shard


def listed_parts(sql: apsw.Connection, upload_id: str, completion: Completion) -> list[PartRow]:
    """Return the parts that a completion lists, as they are here.

    Raises:
        InvalidPartOrderError: They are not in the order of their numbers.
        InvalidPartError: There is no such part, or other bytes were put under its number.
        EntityTooSmallError: One of them but the last is too small.
    """
    here = {part.number: part for part in parts_of(sql, upload_id)}
    numbers = [part.number for part in completion.parts]
    if numbers != sorted(set(numbers)):
        raise InvalidPartOrderError("the parts are not listed in the order of their numbers")
    if not numbers:
        raise InvalidPartError("an upload is completed with one part or more")
    found = [_matched(here.get(part.number), part) for part in completion.parts]
    for part in found[:-1]:
        if part.shard.content.size_bytes < completion.minimum_part_bytes:
            raise EntityTooSmallError(
                f"part {part.number} has {part.shard.content.size_bytes} bytes; every part but the "
                f"last needs {completion.minimum_part_bytes}"
            )
    return found


def complete_upload(
    sql: apsw.Connection,
    run: str,
    upload_id: str,
    completion: Completion,
    condition: KeyCondition,
    first: Shard | None,
    now: float,
) -> CommittedObject:
    """Make an object of the listed parts; the others go. ``first`` was planned to be the first.

    Raises:
        NoSuchUploadError: It was completed otherwise, or aborted, or never was.
        InvalidPartError, InvalidPartOrderError, EntityTooSmallError: See ``listed_parts``.
        NoSuchKeyError, ConditionError: See ``objects.commit_object``.
    """
    upload = _upload(sql, run, completion.key, upload_id)
    if upload.version is not None and upload.etag is not None:
        _check_repeats(upload, completion)
        before = upload.head.checksums
        return CommittedObject(upload.version, upload.etag, repeated=True, checksums=before)
    parts = listed_parts(sql, upload_id, completion)
    if first is None or parts[0].shard.version != first.version:
        raise InvalidPartError("a part was put again while the upload was completed")
    new = object_of(upload, parts, completion)
    save = objects.begun_mount(sql, run, now)
    committed = objects.insert_version(sql, save, new, condition, now)
    sql.execute(
        "UPDATE object_uploads SET version = ?, etag = ?, listed = ?, head = ? WHERE id = ?",
        (committed.version, new.etag, completion.digest, new.head.as_text(), upload_id),
    )
    unlisted = _keep_only(sql, upload_id, parts, committed.version)
    return replace(committed, replaced=(*committed.replaced, *unlisted))


def abort_upload(sql: apsw.Connection, run: str, key: str, upload_id: str) -> AbortedUpload:
    """Forget an open upload, and its parts.

    Raises:
        NoSuchUploadError: See ``open_upload``.
    """
    open_upload(sql, run, key, upload_id)
    return AbortedUpload(tuple(forget_upload(sql, upload_id)))


def forget_upload(sql: apsw.Connection, upload_id: str) -> list[Shard]:
    """Forget an upload, if it is there; return its parts."""
    parts = _remove_parts(sql, upload_id)
    sql.execute("DELETE FROM object_uploads WHERE id = ?", (upload_id,))
    return parts


def object_of(upload: UploadRow, parts: Sequence[PartRow], completion: Completion) -> NewObject:
    """Return the object that an upload becomes."""
    sizes = tuple(part.shard.content.size_bytes for part in parts)
    contents = [part.shard.content for part in parts]
    digest = digests.joined((content.digest, content.size_bytes) for content in contents)
    etag = etag_of(digest, completion.nonce, len(parts))
    head = replace(upload.head, checksums=completion.checksums)
    new = NewObject(upload.key, head, completion.follows, etag, sum(sizes), digest, sizes)
    place = completion.epoch, completion.waits
    return replace(new, epoch=place[0], waits=place[1], acknowledged_at=completion.acknowledged_at)


def _upload(sql: apsw.Connection, run: str, key: str, upload_id: str) -> UploadRow:
    query = f"{_UPLOADS} run = ? AND key = ? AND id = ?"
    row = sql.execute(query, (run, key, upload_id)).fetchone()
    if row is None:
        raise _no_such_upload(key, upload_id)
    return _upload_of(row)


def _upload_of(row: Row) -> UploadRow:
    upload_id, run, key, head, *rest = row
    return UploadRow(upload_id, run, key, Head.of_text(head), *rest)


def _no_such_upload(key: str, upload_id: str) -> NoSuchUploadError:
    return NoSuchUploadError(f"{key} has no upload {upload_id}", name=key)


def _check_repeats(upload: UploadRow, completion: Completion) -> None:
    if upload.listed != completion.digest:
        raise _no_such_upload(completion.key, upload.upload_id)


def _keep_only(
    sql: apsw.Connection, upload_id: str, parts: Sequence[PartRow], version: int
) -> list[Shard]:
    """Make ``parts`` the pieces of a version, and remove the other parts of their upload."""
    for number, part in enumerate(parts, 1):
        _rename(sql, part.shard, piece_name(version, number))
        sql.execute(
            "DELETE FROM object_upload_parts WHERE upload = ? AND number = ?",
            (upload_id, part.number),
        )
    return _remove_parts(sql, upload_id)


def _matched(part: PartRow | None, listed: ListedPart) -> PartRow:
    if part is None or part.etag != listed.etag:
        raise InvalidPartError(f"part {listed.number} is not here with the ETag {listed.etag}")
    if part.shard.state is ShardState.QUARANTINED:
        raise InvalidPartError(f"part {listed.number} was damaged here; put it again")
    for algorithm, declared in listed.checksums.items():
        if part.known_checksums.get(algorithm) != declared:
            raise InvalidPartError(f"part {listed.number} was not put with this {algorithm}")
    return part


def _remove_parts(sql: apsw.Connection, upload_id: str, number: int | None = None) -> list[Shard]:
    """Remove one part of an upload, or all that there are; return their shards."""
    parts = [part.shard for part in parts_of(sql, upload_id, number)]
    for shard in parts:
        shards.delete_shard(sql, shard.version)
    return parts


def _rename(sql: apsw.Connection, shard: Shard, name: str) -> None:
    digest = rows.row_digest(shard.save_id, name, shard.rank, shard.content, shard.facts)
    sql.execute(
        "UPDATE shards SET name = ?, row_digest = ? WHERE version = ?",
        (name, digest, shard.version),
    )
