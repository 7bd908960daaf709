"""An object store in a dictionary that judges as strictly as S3 does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format import documents
from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart
from cachetier_client.clock import Clock, SystemClock

from cachetier.errors import (
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteRefusedError,
    SourceChangedError,
    UploadGoneError,
)
from cachetier.remote.base import (
    Body,
    Condition,
    CopyRange,
    Headers,
    Into,
    ListedObject,
    ListedPage,
    Listing,
    Metadata,
    deliver,
    if_match,
    listing_of,
    page_of,
    pieces_of,
    room_of,
)

S3_MINIMUM_PART_BYTES = 5 << 20


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: dict[str, str]
    headers: dict[str, str]
    parts: dict[int, tuple[UploadedPart, bytes]] = field(default_factory=dict)


def bytes_of(body: Body) -> bytes:
    return b"".join(bytes(piece) for piece in pieces_of(body))  # a piece lasts until the next


class MemoryObjectStore:
    """A thread-safe ``ObjectStore`` in memory: digests, conditions and parts are judged like S3's.

    Args:
        keeps_digests: False makes it a ``readback`` store: it believes every digest and reports
            none.
        minimum_part_bytes: The least size of every part but the last; S3's unless a test needs
            less.
    """

    def __init__(
        self,
        *,
        keeps_digests: bool = True,
        minimum_part_bytes: int = S3_MINIMUM_PART_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._keeps_digests = keeps_digests
        self._minimum_part_bytes = minimum_part_bytes
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        self._uploads: dict[str, _Upload] = {}

    @property
    def keeps_digests(self) -> bool:
        return self._keeps_digests

    def head(self, key: str) -> ObjectInfo | None:
        with self._lock:
            found = self._objects.get(key)
        return found[0] if found else None

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        info, body = self._find(key)
        if length is None:
            documents.check_size(key, info.size_bytes - start)
        end = info.size_bytes if length is None else start + length
        there = start < info.size_bytes or (start == info.size_bytes and end == start)
        if not there or end > info.size_bytes:
            raise RemoteDigestError(f"{key} has {info.size_bytes} bytes, not {start} to {end}")
        whole = (start, end) == (0, info.size_bytes)
        if whole and info.digest is not None and crc64nvme(body) != info.digest:
            raise RemoteDigestError(f"{key}: the bytes read are not those that were put")
        return body[start:end]

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        if etag is not None and self._find(key)[0].etag != etag:
            raise SourceChangedError(f"{key} is not {etag}", key=key)
        deliver([self.get(key, start, room_of(into))], into)

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        kept = bytes_of(body)
        self._judge_digest(key, kept, digest)
        with self._lock:
            if condition is not None:
                self._judge_condition(key, condition)
            return self._keep(key, kept, digest, dict(metadata or {}), dict(headers or {}))

    def create_upload(
        self, key: str, metadata: Metadata | None = None, headers: Headers | None = None
    ) -> str:
        with self._lock:
            upload_id = f"upload-{next(self._numbers)}"
            self._uploads[upload_id] = _Upload(key, dict(metadata or {}), dict(headers or {}))
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        kept = bytes_of(body)
        self._judge_digest(key, kept, digest)
        with self._lock:
            upload = self._upload(key, upload_id)
            part = UploadedPart(number, f'"{next(self._numbers):032x}"', len(kept), digest)
            upload.parts[number] = (part, kept)
        return part

    def copy_part(
        self, key: str, upload_id: str, number: int, source: CopyRange, *, digest: int
    ) -> UploadedPart:
        with self._lock:
            upload = self._upload(key, upload_id)
            info, body = self._objects.get(source.key, (None, b""))
            end = source.start + source.size_bytes
            if info is None or info.etag != source.etag or end > len(body):
                raise SourceChangedError(f"{source.key} has no such range as {source.etag}")
            copied = body[source.start : end]
            self._judge_digest(key, copied, digest)
            part = UploadedPart(number, f'"{next(self._numbers):032x}"', len(copied), digest)
            upload.parts[number] = (part, copied)
        return part

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        with self._lock:
            parts = self._upload(key, upload_id).parts
            return {number: (part.etag, part.size_bytes) for number, (part, _) in parts.items()}

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        with self._lock:
            upload = self._upload(key, upload_id)
            body = self._joined(key, upload, parts)
            self._judge_digest(key, body, digest)
            del self._uploads[upload_id]
            return self._keep(key, body, digest, upload.metadata, upload.headers)

    def abort_upload(self, key: str, upload_id: str) -> None:
        with self._lock, suppress(UploadGoneError):
            self._upload(key, upload_id)
            del self._uploads[upload_id]

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        with self._lock:
            found = [(upload.key, name) for name, upload in self._uploads.items()]
        return iter(sorted(entry for entry in found if entry[0].startswith(prefix)))

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        with self._lock:
            return listing_of(self._objects, prefix, delimiter)

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        with self._lock:
            found = [info for info, _ in self._objects.values()]
        listed = (
            ListedObject(each.key, each.size_bytes, each.etag, each.modified_at or 0.0)
            for each in found
        )
        return page_of(listed, prefix, delimiter, after, limit)

    def delete(self, key: str, etag: str | None = None) -> None:
        with self._lock:
            if etag is not None and key in self._objects:
                self._judge_condition(key, if_match(etag))
            self._objects.pop(key, None)

    def check(self) -> None:
        """Return: memory is always there."""

    def damage(self, key: str, at: int = 0, bit: int = 0) -> None:
        """Flip one bit of the stored byte ``at``, as a failing disk would."""
        with self._lock:
            info, body = self._objects[key]
            flipped = body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]
            self._objects[key] = (info, flipped)

    def _find(self, key: str) -> tuple[ObjectInfo, bytes]:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectMissingError(f"no object {key}", key=key)
        return found

    def _upload(self, key: str, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise UploadGoneError(f"no upload {upload_id} of {key}", key=key)
        return upload

    def _joined(self, key: str, upload: _Upload, parts: Sequence[UploadedPart]) -> bytes:
        bodies = []
        for part in sorted(parts, key=lambda part: part.number):
            known, body = upload.parts.get(part.number, (None, b""))
            if known is None or known.etag != part.etag:
                raise UploadGoneError(f"{key}: part {part.number} is not {part.etag}", key=key)
            bodies.append(body)
        if not bodies or any(len(body) < self._minimum_part_bytes for body in bodies[:-1]):
            raise RemoteRefusedError(f"{key}: too small a part, or none", key=key)
        return b"".join(bodies)

    def _judge_digest(self, key: str, body: bytes, digest: int) -> None:
        if self._keeps_digests and crc64nvme(body) != digest:
            raise RemoteDigestError(f"{key}: the body is not {digest:016x}", key=key)

    def _judge_condition(self, key: str, condition: Condition) -> None:
        found = self._objects.get(key)
        etag = None if found is None else found[0].etag
        holds = found is None if condition.absent else etag == condition.etag
        if not holds:
            raise PreconditionFailedError(f"{key} has version {etag}", key=key)

    def _keep(
        self,
        key: str,
        body: bytes,
        digest: int,
        metadata: dict[str, str],
        headers: dict[str, str],
    ) -> ObjectInfo:
        etag = f'"{next(self._numbers):032x}"'
        kept = digest if self._keeps_digests else None
        info = ObjectInfo(key, len(body), etag, kept, metadata, headers)
        described = replace(info, modified_at=self._clock.now())
        self._objects[key] = (described, body)
        return info
