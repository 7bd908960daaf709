"""The objects of a node's mounts in a dictionary; bodies of puts in files, as the real ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from cachetier_client.bucket_format.stored import Content
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import (
    BackpressureError,
    ConditionError,
    EntityTooSmallError,
    InvalidPartError,
    InvalidPartOrderError,
    NoSuchKeyError,
    NoSuchUploadError,
    NotDurableError,
)
from cachetier.local.catalog.objects import UNCONDITIONAL, KeyCondition
from cachetier.local.open_files import OpenFile
from cachetier.local.store import Staged
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import Head, Mount, etag_of
from cachetier.model.shard import Shard
from cachetier.objects.base import (
    DeclaredPart,
    FoundObject,
    ObjectPart,
    OpenedObject,
    OpenUpload,
    Page,
    PutAnswer,
    PutObject,
    StoredPart,
)

MINIMUM_PART_BYTES = 5 << 20


@dataclass(slots=True)
class _Kept:
    found: FoundObject
    bodies: list[bytes]
    version: int


@dataclass(slots=True)
class _Upload:
    opened: OpenUpload
    parts: dict[int, tuple[StoredPart, bytes]] = field(default_factory=dict)


class _ForeignBytes:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def read(self, start: int, size_bytes: int) -> Iterator[bytes | memoryview]:
        for at in range(start, start + size_bytes, BLOCK_BYTES):
            yield self._body[at : min(at + BLOCK_BYTES, start + size_bytes)]


class _PieceBytes:
    descriptor: int | None = None

    def __init__(self, body: bytes) -> None:
        self._body = body

    def read_block(self, number: int) -> bytes:
        return self._body[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]


class MemoryObjects:
    """An ``Objects`` in memory; ``capacity_bytes`` bounds what may be staged at once."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        directory: Path,
        *,
        capacity_bytes: int = 1 << 30,
        minimum_part_bytes: int = MINIMUM_PART_BYTES,
    ) -> None:
        self.mounts = tuple(mounts)
        self._directory = directory
        self._capacity_bytes = capacity_bytes
        self._minimum_part_bytes = minimum_part_bytes
        self._lock = threading.RLock()
        self._versions = count(1)
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._uploads: dict[str, _Upload] = {}
        self._completed: dict[str, PutAnswer] = {}
        self._last: dict[str, int] = {}
        self._durable: dict[str, int] = {}
        self.staged: list[Staged] = []
        self.puts: list[PutObject] = []

    # --- what tests look at and change -----------------------------------------------------------

    def body(self, mount: str, key: str) -> bytes:
        return b"".join(self._kept[mount, key].bodies)

    def keys(self, mount: str) -> list[str]:
        return sorted(key for name, key in self._kept if name == mount)

    def drained(self, mount: str) -> None:
        """Let everything be durable that was put until now."""
        self._durable[mount] = self._last.get(mount, 0)

    def make_foreign(self, mount: str, key: str) -> None:
        """Let only the bucket know an object."""
        kept = self._kept[mount, key]
        kept.found = replace(kept.found, source="remote", level=Level.DURABLE)

    # --- puts ------------------------------------------------------------------------------------

    def watermark(self, mount: Mount) -> int:
        return self._last.get(mount.name, 0)

    def begin(self, mount: Mount, size_bytes: int | None, timeout_seconds: float) -> Staged:
        reserved = sum(each.reserved_bytes for each in self.staged)
        if reserved + (size_bytes or 0) > self._capacity_bytes:
            raise BackpressureError("no room")
        path = self._directory / f"staged-{next(self._versions)}"
        writer = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        reader = os.open(path, os.O_RDONLY)
        reserved_bytes = (64 << 20) if size_bytes is None else size_bytes
        file = OpenFile(str(path), reader, reserved_bytes, "", "", reserved_bytes)
        staged = Staged(file, writer, lambda error: BackpressureError(str(error)))
        with self._lock:
            self.staged.append(staged)
        return staged

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        staged.file.reserved_bytes = total_bytes
        return total_bytes

    def abort(self, staged: Staged) -> None:
        with self._lock:
            self.staged.remove(staged)
        staged.close_writer()
        os.close(staged.file.descriptor)
        Path(staged.file_id).unlink()

    def commit(
        self,
        mount: Mount,
        put: PutObject,
        *,
        content: Content,
        bytes_of: Staged | bytes,
        timeout_seconds: float = 0.0,
    ) -> PutAnswer:
        body = bytes_of if isinstance(bytes_of, bytes) else self._taken(bytes_of, content)
        return self._put(mount, put, [body], (), content.digest)

    def wait(self, mount: Mount, version: int, level: Level, timeout_seconds: float) -> None:
        if level is not Level.LOCAL and self._durable.get(mount.name, 0) < version:
            raise NotDurableError("it is safe on this node, and not in the bucket yet")

    def delete(
        self, mount: Mount, keys: Sequence[str], condition: KeyCondition = UNCONDITIONAL
    ) -> list[PutAnswer]:
        with self._lock:
            answers = []
            for key in keys:
                self._check(condition, self._kept.get((mount.name, key)))
                there = self._kept.pop((mount.name, key), None)
                version = self._next(mount) if there else 0
                answers.append(PutAnswer(version, "", Level.LOCAL))
            return answers

    def _check(self, condition: KeyCondition, kept: _Kept | None) -> None:
        if kept is None:
            if condition.if_match is not None:
                raise NoSuchKeyError("nothing is there")
            return
        found = kept.found
        holds = (
            condition.if_match in (None, "*", found.etag),
            condition.if_size_bytes in (None, found.size_bytes),
            condition.if_modified_at in (None, int(found.modified_at)),
        )
        if not all(holds):
            raise ConditionError("the condition does not hold")

    def _taken(self, staged: Staged, content: Content) -> bytes:
        body = Path(staged.file_id).read_bytes()
        self.abort(staged)
        assert len(body) == content.size_bytes
        assert digests.digest_of(body) == content.digest
        return body

    def _next(self, mount: Mount) -> int:
        self._last[mount.name] = version = next(self._versions)
        return version

    def _put(
        self,
        mount: Mount,
        put: PutObject,
        bodies: list[bytes],
        part_sizes: tuple[int, ...],
        digest: int,
    ) -> PutAnswer:
        with self._lock:
            there = self._kept.get((mount.name, put.key))
            if (put.if_absent and there) or (
                put.if_match and (there is None or there.found.etag != put.if_match)
            ):
                raise ConditionError("the condition does not hold")
            version = self._next(mount)
            etag = etag_of(digest, f"{version:016x}", len(part_sizes), put.md5)
            found = FoundObject(
                put.key,
                sum(map(len, bodies)),
                etag,
                1_700_000_000.0 + version,
                Level.LOCAL,
                put.head,
                digest,
                part_sizes,
            )
            self._kept[mount.name, put.key] = _Kept(found, bodies, version)
            self.puts.append(put)
            return PutAnswer(version, etag, Level.LOCAL)

    # --- uploads ---------------------------------------------------------------------------------

    def create_upload(self, mount: Mount, key: str, head: Head, owner: str) -> str:
        upload_id = f"{next(self._versions):032x}"
        self._uploads[upload_id] = _Upload(OpenUpload(key, upload_id, 1.7e9, owner, head))
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
        body = bytes_of if isinstance(bytes_of, bytes) else self._taken(bytes_of, content)
        with self._lock:
            upload = self._upload(key, upload_id)
            etag = etag_of(content.digest, f"{content.size_bytes:016x}", 0, md5)
            known = {**checksums, "CRC64NVME": digests.to_base64(content.digest)}
            part = StoredPart(number, len(body), etag, 1.7e9, known)
            upload.parts[number] = part, body
            return part

    def upload(self, mount: Mount, key: str, upload_id: str) -> OpenUpload:
        return self._upload(key, upload_id).opened

    def parts(self, mount: Mount, key: str, upload_id: str) -> tuple[OpenUpload, list[StoredPart]]:
        upload = self._upload(key, upload_id)
        return upload.opened, [upload.parts[number][0] for number in sorted(upload.parts)]

    def uploads(self, mount: Mount, prefix: str) -> list[OpenUpload]:
        found = [each.opened for each in self._uploads.values()]
        ours = [each for each in found if each.key.startswith(prefix)]
        return sorted(ours, key=lambda each: (each.key, each.upload_id))

    def complete_upload(
        self, mount: Mount, put: PutObject, upload_id: str, parts: Sequence[DeclaredPart]
    ) -> PutAnswer:
        with self._lock:
            if upload_id in self._completed:
                return self._completed[upload_id]
            upload = self._upload(put.key, upload_id)
            numbers = [each.number for each in parts]
            if numbers != sorted(set(numbers)):
                raise InvalidPartOrderError("the parts are not in order")
            bodies = []
            for each in parts:
                stored, body = upload.parts.get(each.number, (None, b""))
                if stored is None or stored.etag != each.etag:
                    raise InvalidPartError(f"part {each.number} is not there")
                if not each.checksums.items() <= stored.checksums.items():
                    raise InvalidPartError(f"part {each.number} has another checksum")
                bodies.append(body)
            if any(len(body) < self._minimum_part_bytes for body in bodies[:-1]):
                raise EntityTooSmallError("a part before the last is too small")
            sizes = tuple(map(len, bodies))
            put = replace(put, head=replace(upload.opened.head, checksums=put.head.checksums))
            answer = self._put(mount, put, bodies, sizes, digests.digest_of(b"".join(bodies)))
            answer = replace(answer, checksums=put.head.checksums)
            del self._uploads[upload_id]
            self._completed[upload_id] = answer
            return answer

    def abort_upload(self, mount: Mount, key: str, upload_id: str) -> None:
        self._upload(key, upload_id)
        del self._uploads[upload_id]

    def _upload(self, key: str, upload_id: str) -> _Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.opened.key != key:
            raise NoSuchUploadError("there is no such upload")
        return upload

    # --- reads -----------------------------------------------------------------------------------

    def head(self, mount: Mount, key: str) -> FoundObject:
        return self._there(mount, key).found

    def open(self, mount: Mount, key: str) -> OpenedObject:
        kept = self._there(mount, key)
        if kept.found.source == "remote":
            return OpenedObject(kept.found, foreign=_ForeignBytes(b"".join(kept.bodies)))
        pieces, start = [], 0
        for number, body in enumerate(kept.bodies, 1):
            pieces.append(ObjectPart(start, _shard(mount, key, number, body)))
            start += len(body)
        return OpenedObject(kept.found, tuple(pieces))

    @contextmanager
    def open_piece(self, piece: ObjectPart, timeout_seconds: float) -> Iterator[_PieceBytes]:
        mount = next(each for each in self.mounts if each.run == piece.shard.run)
        key, _, number = piece.shard.name.rpartition("#")
        yield _PieceBytes(self._there(mount, key).bodies[int(number) - 1])

    def list(self, mount: Mount, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        entries: dict[str, FoundObject | None] = {}
        with self._lock:
            for key in self.keys(mount.name):
                if key.startswith(prefix):
                    rest = key[len(prefix) :]
                    folder, mark, _ = rest.partition(delimiter) if delimiter else ("", "", "")
                    name = prefix + folder + mark if mark else key
                    if name > after:
                        entries[name] = None if mark else self._kept[mount.name, key].found
        names = sorted(entries, key=str.encode)
        page = names[:limit]
        objects = tuple(found for name in page if (found := entries[name]) is not None)
        prefixes = tuple(name for name in page if entries[name] is None)
        return Page(objects, prefixes, page[-1] if len(names) > limit else None)

    def _there(self, mount: Mount, key: str) -> _Kept:
        kept = self._kept.get((mount.name, key))
        if kept is None:
            raise NoSuchKeyError("there is no such key")
        return kept


def _shard(mount: Mount, key: str, number: int, body: bytes) -> Shard:
    blocks = tuple(
        digests.digest_of(body[at : at + BLOCK_BYTES]) for at in range(0, len(body), BLOCK_BYTES)
    )
    content = Content(len(body), digests.digest_of(body), blocks)
    return Shard(
        version=number,
        save=1,
        run=mount.run,
        step=0,
        save_id="objects",
        name=f"{key}#{number}",
        rank=0,
        content=content,
        state=ShardState.DIRTY,
        file_id=None,
        inline=True,
        committed_at=0.0,
    )
