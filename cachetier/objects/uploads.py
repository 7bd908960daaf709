"""Multipart uploads: each part is safe by itself, and completing one moves no byte."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from cachetier_client.bucket_format.stored import Content

from cachetier.errors import InvalidPartError
from cachetier.local.catalog import object_uploads
from cachetier.local.catalog.object_uploads import (
    Completion,
    ListedPart,
    NewPart,
    PartRow,
    UploadRow,
)
from cachetier.local.catalog.objects import NewObject
from cachetier.local.identity import ObjectIdentity
from cachetier.local.store import Staged
from cachetier.model.objects import (
    OBJECT_PART_LIMIT,
    PART_MINIMUM_BYTES,
    UPLOAD_EXPIRES_SECONDS,
    Head,
    Mount,
    etag_of,
)
from cachetier.model.shard import Shard
from cachetier.objects.base import DeclaredPart, OpenUpload, PutAnswer, PutObject, StoredPart
from cachetier.objects.intake import ObjectIntake, piece_of, refuse_read_only
from cachetier.objects.ordering import Ordering
from cachetier.objects.puts import ObjectPuts, answer_of, check_key, nonce

_ID_BYTES = 16
_EXPIRED_AT_ONCE = 100


class ObjectUploads:
    """The uploading side of ``Objects``. Thread-safe."""

    def __init__(
        self,
        intake: ObjectIntake,
        ordering: Ordering,
        puts: ObjectPuts,
        minimum_part_bytes: int = PART_MINIMUM_BYTES,
    ) -> None:
        self._intake = intake
        self._store = intake.store
        self._ordering = ordering
        self._puts = puts
        self._minimum_part_bytes = minimum_part_bytes

    def create_upload(self, mount: Mount, key: str, head: Head, owner: str) -> str:
        refuse_read_only(mount)
        check_key(mount, key)
        upload_id = secrets.token_hex(_ID_BYTES)
        opened = upload_id, key, head, owner, self._intake.clock.now()
        self._intake.recorded(
            mount,
            1,
            lambda: self._store.write(object_uploads.create_upload, mount.run, *opened),
            len(head.as_text()),
        )
        return upload_id

    def commit_part(
        self,
        mount: Mount,
        key: str,
        upload_id: str,
        number: int,
        *,
        content: Content,
        bytes_of: Staged | bytes,
        md5: str | None = None,
        checksums: Mapping[str, str] = {},
    ) -> StoredPart:
        self._intake.checked(bytes_of, lambda: _check_number(number))
        # The same part put again has the same ETag.
        etag = etag_of(content.digest, f"{content.size_bytes:016x}", md5=md5)
        new = NewPart(number, etag, checksums, piece_of(content, bytes_of))
        committed = self._intake.commit(
            *(mount, bytes_of, content, 0.0),
            lambda: self._identity_of_part(mount, key, content, upload_id, number).mark,
            lambda sql, now: object_uploads.commit_part(sql, mount.run, key, upload_id, new, now),
        )
        return _stored(committed.part)

    def upload(self, mount: Mount, key: str, upload_id: str) -> OpenUpload:
        return _opened(self._store.read(object_uploads.open_upload, mount.run, key, upload_id))

    def parts(self, mount: Mount, key: str, upload_id: str) -> tuple[OpenUpload, list[StoredPart]]:
        upload = self.upload(mount, key, upload_id)
        parts = self._store.read(object_uploads.parts_of, upload_id)
        return upload, [_stored(part) for part in parts]

    def uploads(self, mount: Mount, prefix: str) -> list[OpenUpload]:
        found = self._store.read(object_uploads.open_uploads, mount.run)
        return [_opened(upload) for upload in found if upload.key.startswith(prefix)]

    def complete_upload(
        self, mount: Mount, put: PutObject, upload_id: str, parts: Sequence[DeclaredPart]
    ) -> PutAnswer:
        condition = self._puts.condition(mount, put)
        listed = [ListedPart(part.number, part.etag, part.checksums) for part in parts]
        with self._ordering.before_commit(mount, [put.key]) as place:
            epoch, waits = place.of(mount, put.key)
            completion = Completion(
                put.key,
                put.follows,
                listed,
                nonce(),
                self._minimum_part_bytes,
                epoch,
                waits,
                put.head.checksums,
                self._intake.store_clock.now(),
            )
            planned = self._store.read(object_uploads.planned, mount.run, upload_id, completion)
            first = None
            if planned is not None:
                new, first = planned
                self._mark_first(mount, new, first, upload_id, listed[0].number)
            committed = self._intake.write(
                mount,
                lambda sql, now: object_uploads.complete_upload(
                    sql, mount.run, upload_id, completion, condition, first, now
                ),
            )
        if not committed.repeated:
            self._intake.store_clock.acknowledged(committed.version, completion.acknowledged_at)
        return answer_of(committed, place)

    def abort_upload(self, mount: Mount, key: str, upload_id: str) -> None:
        self._intake.write(
            mount,
            lambda sql, _now: object_uploads.abort_upload(sql, mount.run, key, upload_id),
        )

    def expire(self) -> int:
        """Forget uploads that had no part for a week, and who was completed then; return how many.

        So many at once as keep no put waiting for long: whoever keeps house comes again.
        """
        if self._store.fenced is not None:
            return 0
        before = self._intake.clock.now() - UPLOAD_EXPIRES_SECONDS
        expired = self._store.read(object_uploads.expired_uploads, before, _EXPIRED_AT_ONCE)
        for upload_id in expired:
            self._store.drop(self._store.write(object_uploads.forget_upload, upload_id))
        return len(expired)

    def _mark_first(
        self, mount: Mount, new: NewObject, first: Shard, upload_id: str, number: int
    ) -> None:
        """Have the first piece say what object it begins, before anybody relies on it."""
        if first.file_id is None:
            return
        identity = self._identity_of_part(
            mount, new.key, first.content, upload_id, number, whole=new
        )
        self._store.mark(first.file_id, identity.mark)

    def _identity_of_part(
        self,
        mount: Mount,
        key: str,
        content: Content,
        upload_id: str,
        number: int,
        whole: NewObject | None = None,
    ) -> ObjectIdentity:
        return ObjectIdentity(
            self._store.store_id,
            mount.run,
            key,
            content.size_bytes,
            content.digest,
            self._intake.clock.now(),
            upload_id,
            number,
            pieces=0 if whole is None else len(whole.part_sizes),
            etag=None if whole is None else whole.etag,
            head=None if whole is None else whole.head,
            follows=0 if whole is None else whole.follows,
            acknowledged_at=None if whole is None else whole.acknowledged_at,
        )


def _check_number(number: int) -> None:
    if not 1 <= number <= OBJECT_PART_LIMIT:
        raise InvalidPartError(f"parts have numbers from 1 to {OBJECT_PART_LIMIT}, not {number}")


def _stored(part: PartRow) -> StoredPart:
    size_bytes = part.shard.content.size_bytes
    return StoredPart(part.number, size_bytes, part.etag, part.put_at, part.known_checksums)


def _opened(upload: UploadRow) -> OpenUpload:
    return OpenUpload(upload.key, upload.upload_id, upload.begun_at, upload.owner, upload.head)
