"""The interface that the S3 door calls.

Objects of the mounts, as this node and the bucket have them.

All calls block and are thread-safe. A key that this node knows is answered from its catalog; any
other from the bucket, under the service's credentials, and only within the mounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from cachetier_client.bucket_format.stored import Content

from cachetier.local.catalog.objects import UNCONDITIONAL, KeyCondition
from cachetier.local.store import Staged
from cachetier.model.levels import Level
from cachetier.model.objects import NO_HEAD, Head, Mount
from cachetier.model.shard import Shard

OrderKept = Literal["node", "cluster"]


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object as the door describes it.

    ``etag`` is without quotes, ``level`` how safe it is. ``part_sizes`` are empty unless it was put
    in parts, or this node does not know; ``digest`` is None where nobody keeps its CRC-64/NVME.
    """

    key: str
    size_bytes: int
    etag: str
    modified_at: float
    level: Level
    head: Head = NO_HEAD
    digest: int | None = None
    part_sizes: tuple[int, ...] = ()
    source: Literal["local", "remote"] = "local"


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A part of an object's bytes, ``start`` bytes from its begin; ``shard`` has them."""

    start: int
    shard: Shard

    @property
    def size_bytes(self) -> int:
        return self.shard.content.size_bytes


class ForeignBytes(Protocol):
    """The bytes of an object that only the bucket knows."""

    def read(self, start: int, size_bytes: int) -> Iterator[bytes | memoryview]:
        """Yield a range in order, fetched over several connections in bounded memory.

        The range of a whole object is held against the store's digest before its last piece.

        Raises:
            RemoteError, IntegrityError: As the store's ``read_into``.
        """


@dataclass(frozen=True, slots=True)
class OpenedObject:
    """An object to be read.

    It has pieces of this node's, each to be opened by ``Objects.open_piece``, or is only in the
    bucket.
    """

    found: FoundObject
    pieces: tuple[ObjectPart, ...] = ()
    foreign: ForeignBytes | None = None


@dataclass(frozen=True, slots=True)
class PutObject:
    """The description of a put, besides its bytes.

    Args:
        key: Where.
        head: What is kept of the request's headers.
        follows: From ``Objects.watermark``, asked once the last byte had come.
        md5: Of the bytes, in hexadecimal, where the client declared it or they are few.
        if_absent: Put nothing where the key is there.
        if_match: Put only over the object with this ETag.
    """

    key: str
    head: Head
    follows: int
    md5: str | None = None
    if_absent: bool = False
    if_match: str | None = None

    @property
    def condition(self) -> KeyCondition:
        return KeyCondition(self.if_absent, self.if_match)


@dataclass(frozen=True, slots=True)
class PutAnswer:
    """The result of a put or a deletion; ``checksums`` are those of a completed upload."""

    version: int
    etag: str
    level: Level
    order: OrderKept = "node"
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of an upload that is not complete; its ``checksums`` always have the CRC-64/NVME."""

    number: int
    size_bytes: int
    etag: str
    put_at: float
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """An upload that is not complete."""

    key: str
    upload_id: str
    begun_at: float
    owner: str
    head: Head = NO_HEAD


@dataclass(frozen=True, slots=True)
class DeclaredPart:
    """A part as the client names it to complete an upload; ``etag`` without quotes."""

    number: int
    etag: str
    checksums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing: objects and common prefixes in the order of their bytes.

    ``next_after`` is what the next page begins behind: a key, or a common prefix; None at the end.
    """

    objects: tuple[FoundObject, ...]
    prefixes: tuple[str, ...]
    next_after: str | None


class ReadableObjects(Protocol):
    """Reading objects of a node's mounts."""

    def head(self, mount: Mount, key: str) -> FoundObject:
        """Describe an object.

        Raises:
            NoSuchKeyError: It is neither here nor in the bucket, or was deleted here.
            RemoteError: Only the bucket could say, and does not.
        """

    def open(self, mount: Mount, key: str) -> OpenedObject:
        """Return an object to read; raises as ``head``."""

    def open_piece(
        self, piece: ObjectPart, timeout_seconds: float
    ) -> AbstractContextManager[PieceBytes]:
        """Open a piece: local bytes at once, others by the restore path, perhaps still arriving.

        Raises:
            IntegrityError: The only copy is damaged.
            RemoteError, BackpressureError, DeadlineError: As ``Restore.follow``.
        """

    def list(self, mount: Mount, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        """Return what keys begin with ``prefix``, behind ``after``.

        Those of this node are merged with the bucket's; what was deleted here is left out, and so
        are our own notes. A page may have fewer than ``limit`` before the end, or nothing, where
        much is left out.

        Raises:
            CallerGoneError: Whoever asked has hung up.
            RemoteError: The bucket cannot be asked.
        """


class Objects(ReadableObjects, Protocol):
    """The objects of a node's mounts. Errors are those of objects in ``cachetier.errors``."""

    @property
    def mounts(self) -> Sequence[Mount]:
        """All mounts of the node."""

    def watermark(self, mount: Mount) -> int:
        """Return the highest version of a mount that was acknowledged by now; 0 for none."""

    # --- puts ------------------------------------------------------------------------------------

    def begin(self, mount: Mount, size_bytes: int | None, timeout_seconds: float) -> Staged:
        """Reserve room and create a file; raises as ``NodeIngest.begin``."""

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        """Reserve more for bytes of unknown length, as ``NodeIngest.extend``."""

    def abort(self, staged: Staged) -> None:
        """Leave nothing behind."""

    def commit(
        self,
        mount: Mount,
        put: PutObject,
        *,
        content: Content,
        bytes_of: Staged | bytes,
        timeout_seconds: float = 0.0,
    ) -> PutAnswer:
        """Make an object safe here, and promise so; on error nothing is kept.

        Args:
            mount: Where its key lies.
            put: What it is.
            content: Describes its bytes.
            bytes_of: Up to 64 KiB for the catalog itself, or a file that ``begin`` made.
            timeout_seconds: How long to wait for room in the catalog; a file has its room.

        Raises:
            ConditionError: The key is, or is not, there.
        """

    def wait(self, mount: Mount, version: int, level: Level, timeout_seconds: float) -> None:
        """Return once a version, or a deletion, has reached ``level``.

        Raises:
            NotDurableError: Not in time; it stays safe here, and goes on.
        """

    def delete(
        self, mount: Mount, keys: Sequence[str], condition: KeyCondition = UNCONDITIONAL
    ) -> list[PutAnswer]:
        """Delete keys, all in one transaction; what is not there is deleted as well.

        Args:
            mount: Where the keys lie.
            keys: One alone, where there is a condition.
            condition: What must hold of it.

        Raises:
            NoSuchKeyError, ConditionError: The condition does not hold; nothing was deleted.
            RemoteError: Only the bucket could say whether it does.
        """

    # --- uploads ---------------------------------------------------------------------------------

    def create_upload(self, mount: Mount, key: str, head: Head, owner: str) -> str:
        """Begin a multipart upload and return its id."""

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
        """Make a part safe here; it replaces an earlier one of its number.

        Raises:
            NoSuchUploadError: The upload was completed, aborted, or never was.
        """

    def upload(self, mount: Mount, key: str, upload_id: str) -> OpenUpload:
        """Return an upload that is not complete; raises NoSuchUploadError."""

    def parts(self, mount: Mount, key: str, upload_id: str) -> tuple[OpenUpload, list[StoredPart]]:
        """Return an upload and its parts, by number; raises NoSuchUploadError."""

    def uploads(self, mount: Mount, prefix: str) -> list[OpenUpload]:
        """Return the uploads that are not complete, by key and id."""

    def complete_upload(
        self, mount: Mount, put: PutObject, upload_id: str, parts: Sequence[DeclaredPart]
    ) -> PutAnswer:
        """Make an object of parts, in one transaction, without touching their bytes.

        Its head is the upload's, with the checksums of the one of ``put``.

        Raises:
            NoSuchUploadError: As above; but one that was completed so before is answered as then.
            InvalidPartError, InvalidPartOrderError, EntityTooSmallError: As S3.
            ConditionError: As ``commit``.
        """

    def abort_upload(self, mount: Mount, key: str, upload_id: str) -> None:
        """Forget an upload and its parts; raises NoSuchUploadError."""


class PieceBytes(Protocol):
    """The verified bytes of an opened piece."""

    @property
    def descriptor(self) -> int | None:
        """The local file whose bytes may be sent as they are (by sendfile), once verified.

        Each block is held against its digest first. None for bytes in memory, or that still arrive.
        """

    def read_block(self, number: int) -> bytes | memoryview:
        """Return block ``number`` of 4 MiB, verified; waits for one that still arrives."""
