"""The objects that this node keeps for others, until their saves are in the bucket.

An ``ObjectStore`` in a directory: an object is a record that names files, each a part of it. A call
is answered once its bytes, their names and the record are synced, so an object that was answered
outlives a power cut, and one that was not leaves files that the next start removes. Uploads in
parts end with the process: their owner begins again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cachetier_client.bucket_format import documents
from cachetier_client.bucket_format.uploads import MINIMUM_PART_BYTES, ObjectInfo, UploadedPart
from cachetier_client.clock import Clock
from cachetier_client.io.digests import digest_of, joined, to_hex
from cachetier_client.units import shown_size

from cachetier.errors import (
    BackpressureError,
    CopiesRefusedError,
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteRefusedError,
    SourceChangedError,
    TransientError,
    UploadGoneError,
)
from cachetier.local.files.data_files import sync_directory, write_all, write_synced
from cachetier.remote.base import (
    Body,
    Condition,
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
    size_of,
)

FOLDER = "kept"
READ_BYTES = 1 << 20
RECORD_BYTES = 4096  # that a record takes on the disk, about
IDLE_UPLOAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class _KeptFile:
    file: str
    size_bytes: int
    digest: int

    @property
    def etag(self) -> str:
        return f'"{to_hex(self.digest)}"'


@dataclass(frozen=True, slots=True)
class _KeptObject:
    info: ObjectInfo
    parts: tuple[_KeptFile, ...]

    @property
    def on_disk_bytes(self) -> int:
        return self.info.size_bytes + RECORD_BYTES


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: Metadata
    headers: Headers
    touched_at: float
    parts: dict[int, _KeptFile] = field(default_factory=dict)


class KeptObjects:
    """Keeps objects of other nodes in ``room_bytes``; an ``ObjectStore``. Thread-safe."""

    keeps_digests = True

    def __init__(self, cache_dir: Path, room_bytes: int, clock: Clock) -> None:
        """Take up what an earlier process kept there."""
        self.room_bytes = room_bytes
        self._clock = clock
        self._records = cache_dir / FOLDER / "records"
        self._files = cache_dir / FOLDER / "files"
        self._lock = threading.RLock()
        self._kept: dict[str, _KeptObject] = {}
        self._uploads: dict[str, _Upload] = {}
        self._used_bytes = 0
        for each in (self._records, self._files):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._load()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def _load(self) -> None:
        sizes = {each.name: each.stat().st_size for each in os.scandir(self._files)}
        for path in self._records.iterdir():
            kept = None
            with suppress(OSError, msgspec.DecodeError):  # or half a record, that nobody heard of
                kept = (
                    None
                    if path.suffix != ".json"
                    else msgspec.json.decode(path.read_bytes(), type=_KeptObject)
                )
            if kept is None or any(sizes.get(each.file) != each.size_bytes for each in kept.parts):
                path.unlink()  # its owner sends it again, or has ended
                continue
            self._kept[kept.info.key] = kept
            self._used_bytes += kept.on_disk_bytes
        named = {part.file for each in self._kept.values() for part in each.parts}
        for name in sizes.keys() - named:
            (self._files / name).unlink()

    # --- objects ---------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo | None:
        kept = self._kept.get(key)
        return kept.info if kept is not None else None

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        info = self._found(key).info
        if length is None:
            documents.check_size(key, info.size_bytes - start)
            length = info.size_bytes - start
        body = b"".join(bytes(each) for each in self.pieces(key, start, length, info.etag))
        if len(body) == info.size_bytes and digest_of(body) != info.digest:
            raise RemoteDigestError(f"{key}: the bytes read are not those that were put")
        return body

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        deliver(self.pieces(key, start, room_of(into), etag), into)

    def pieces(
        self, key: str, start: int, size_bytes: int, etag: str | None = None
    ) -> Iterator[memoryview]:
        """Yield a range piece by piece; raises as ``read_into``, before the first one or later."""
        kept = self._found(key)
        if etag is not None and kept.info.etag != etag:
            raise SourceChangedError(f"{key} is not {etag}", key=key)
        if start < 0 or size_bytes < 0 or start + size_bytes > kept.info.size_bytes:
            has = f"{key} has {kept.info.size_bytes} bytes"
            raise RemoteDigestError(f"{has}, not {start} to {start + size_bytes}")
        return self._read(kept, start, size_bytes)

    def _read(self, kept: _KeptObject, start: int, size_bytes: int) -> Iterator[memoryview]:
        for part in kept.parts:
            end = min(part.size_bytes, start + size_bytes)
            if start < end:
                try:
                    with open(self._files / part.file, "rb") as file:
                        while start < end:
                            file.seek(start)
                            piece = file.read(min(READ_BYTES, end - start))
                            if not piece:
                                raise OSError(errno.EIO, "it is too short")
                            yield memoryview(piece)
                            start, size_bytes = start + len(piece), size_bytes - len(piece)
                except OSError as error:
                    raise TransientError(f"{kept.info.key} cannot be read: {error}") from error
            start -= part.size_bytes

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
        part = self._written(key, body, digest)
        with self._lock:
            try:
                if condition is not None:
                    self._judge(key, condition)
            except PreconditionFailedError:
                self._remove([part])
                raise
            return self._keep(key, digest, [part], metadata or {}, headers or {})

    def delete(self, key: str, etag: str | None = None) -> None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is None:
                return
            if etag is not None:
                self._judge(key, if_match(etag))
            with _disk_errors(key):
                self._record_of(key).unlink(missing_ok=True)
                sync_directory(self._records)
            del self._kept[key]
            self._used_bytes -= RECORD_BYTES
            self._remove(kept.parts)

    def check(self) -> None:
        """Return: the directory is there."""

    # --- uploads in parts ------------------------------------------------------------------------

    def create_upload(
        self,
        key: str,
        metadata: Metadata | None = None,
        headers: Headers | None = None,
        upload_id: str | None = None,
    ) -> str:
        self._refuse_if_full(0)
        upload_id = upload_id or secrets.token_hex(8)
        now = self._clock.monotonic()
        self._uploads[upload_id] = _Upload(key, metadata or {}, headers or {}, now)
        return upload_id

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        self._upload(key, upload_id)
        part = self._written(key, body, digest)
        with self._lock:
            try:
                parts = self._upload(key, upload_id).parts
            except UploadGoneError:
                self._remove([part])
                raise
            if number in parts:
                self._remove([parts[number]])
            parts[number] = part
        return UploadedPart(number, part.etag, part.size_bytes, digest)

    def copy_part(self, *_arguments: object, **_others: object) -> UploadedPart:
        raise CopiesRefusedError("nothing is copied here: send the bytes")

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        with self._lock:
            parts = self._upload(key, upload_id).parts
            return {number: (part.etag, part.size_bytes) for number, part in parts.items()}

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        with self._lock:
            upload = self._upload(key, upload_id)
            listed = []
            for each in sorted(parts, key=lambda each: each.number):
                part = upload.parts.get(each.number)
                if part is None or part.etag != each.etag:
                    raise UploadGoneError(f"{key}: part {each.number} is not {each.etag}")
                listed.append(part)
            if not listed or any(each.size_bytes < MINIMUM_PART_BYTES for each in listed[:-1]):
                raise RemoteRefusedError(f"{key}: too small a part, or none", key=key)
            if joined((each.digest, each.size_bytes) for each in listed) != digest:
                raise RemoteDigestError(f"{key}: the parts are not {to_hex(digest)}", key=key)
            info = self._keep(key, digest, listed, upload.metadata, upload.headers)
            upload.parts = {n: each for n, each in upload.parts.items() if each not in listed}
            self._drop_upload(upload_id)
        return info

    def abort_upload(self, key: str, upload_id: str) -> None:
        with self._lock, suppress(UploadGoneError):
            self._upload(key, upload_id)
            self._drop_upload(upload_id)

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        with self._lock:
            found = [(upload.key, name) for name, upload in self._uploads.items()]
        return iter(sorted(each for each in found if each[0].startswith(prefix)))

    def drop_idle_uploads(self) -> None:
        """Forget the uploads that nobody went on with for an hour."""
        old = self._clock.monotonic() - IDLE_UPLOAD_SECONDS
        with self._lock:
            idle = [name for name, each in self._uploads.items() if each.touched_at < old]
            for upload_id in idle:
                self._drop_upload(upload_id)

    # --- listings --------------------------------------------------------------------------------

    def listed(self, prefix: str) -> list[ListedObject]:
        """Return all objects under ``prefix``."""
        with self._lock:
            found = [each.info for each in self._kept.values()]
        return [
            ListedObject(each.key, each.size_bytes, each.etag, each.modified_at or 0.0)
            for each in found
            if each.key.startswith(prefix)
        ]

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        return listing_of((each.key for each in self.listed(prefix)), prefix, delimiter)

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        return page_of(self.listed(prefix), prefix, delimiter, after, limit)

    # --- the directory ---------------------------------------------------------------------------

    def _found(self, key: str) -> _KeptObject:
        kept = self._kept.get(key)
        if kept is None:
            raise ObjectMissingError(f"no object {key}", key=key)
        return kept

    def _upload(self, key: str, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.key != key:
            raise UploadGoneError(f"no upload {upload_id} of {key}", key=key)
        upload.touched_at = self._clock.monotonic()
        return upload

    def _drop_upload(self, upload_id: str) -> None:
        self._remove(self._uploads.pop(upload_id).parts.values())

    def _judge(self, key: str, condition: Condition) -> None:
        kept = self._kept.get(key)
        etag = kept.info.etag if kept is not None else None
        if (condition.absent and kept is not None) or condition.etag not in (None, etag):
            raise PreconditionFailedError(f"{key} is {etag or 'not there'}", key=key)

    def _refuse_if_full(self, size_bytes: int) -> None:
        if self._used_bytes + size_bytes > self.room_bytes:
            room = f"{shown_size(self._used_bytes)} of {shown_size(self.room_bytes)} are taken"
            raise BackpressureError(f"it has no room for copies: {room}")

    def _written(self, key: str, body: Body, digest: int) -> _KeptFile:
        """Write and sync a file, and return it; a failure leaves nothing."""
        size_bytes, name = size_of(body), secrets.token_hex(16)
        with self._lock:
            self._refuse_if_full(size_bytes)
            self._used_bytes += size_bytes
        part = _KeptFile(name, size_bytes, digest)
        try:
            with _disk_errors(key), open(self._files / name, "xb", buffering=0) as file:
                at = found = 0
                for piece in pieces_of(body):
                    write_all(file.fileno(), piece, at)
                    at, found = at + len(piece), digest_of(piece, found)
                if (at, found) != (size_bytes, digest):
                    raise RemoteDigestError(f"{key}: the body is not {to_hex(digest)}", key=key)
                os.fsync(file.fileno())
        except BaseException:
            self._remove([part])
            raise
        return part

    def _keep(
        self,
        key: str,
        digest: int,
        parts: Sequence[_KeptFile],
        metadata: Metadata,
        headers: Headers,
    ) -> ObjectInfo:
        """Make written files an object, in the place of the one before."""
        size_bytes = sum(each.size_bytes for each in parts)
        labels = digest_of(msgspec.json.encode([sorted(metadata.items()), sorted(headers.items())]))
        etag = f'"{to_hex(digest)}-{to_hex(labels)}"'
        now = self._clock.now()
        info = ObjectInfo(key, size_bytes, etag, digest, dict(metadata), dict(headers), now)
        kept = _KeptObject(info, tuple(parts))
        with _disk_errors(key):  # which may have taken effect: the files stay
            sync_directory(self._files)
            write_synced(self._record_of(key), msgspec.json.encode(kept).decode())
        before = self._kept.get(key)
        self._kept[key] = kept
        self._used_bytes += RECORD_BYTES
        if before is not None:
            self._used_bytes -= RECORD_BYTES
            self._remove(before.parts)
        return info

    def _record_of(self, key: str) -> Path:
        return self._records / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

    def _remove(self, parts: Iterable[_KeptFile]) -> None:
        with self._lock:
            for each in parts:
                self._used_bytes -= each.size_bytes
                with suppress(OSError):
                    (self._files / each.file).unlink()


@contextmanager
def _disk_errors(key: str) -> Iterator[None]:
    """Raise what goes wrong with the disk as an error of a store.

    Raises:
        BackpressureError: It is full.
        TransientError: Anything else: the call may have taken effect.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BackpressureError("its disk is full") from error
        raise TransientError(f"{key} cannot be kept: {error}") from error
