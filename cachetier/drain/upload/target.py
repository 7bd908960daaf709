"""The target of an upload, what lies under its key already, and whether that is the shard.

An object is verified by the digest that the store keeps, or by reading its bytes back: what a write
answered is never enough, and metadata only says what its writer believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from typing import ClassVar

from cachetier_client.bucket_format.stored import (
    FRAME_LIMIT_BYTES,
    NO_FACTS,
    Codec,
    Content,
    ShardFacts,
    Stored,
    StoredFrame,
    table_bytes,
)
from cachetier_client.bucket_format.uploads import (
    CODEC_KEY,
    DIGEST_KEY,
    SAVE_KEY,
    STORE_KEY,
    VERSION_KEY,
    Existing,
    ObjectInfo,
    codec_found,
    judge_existing,
)
from cachetier_client.io.digests import block_lengths, blocks_of, digest_of, joined, to_hex

from cachetier.codec.codecs import CODECS
from cachetier.codec.seek_table import decode_table
from cachetier.drain.upload.source import Lend
from cachetier.errors import IntegrityError, TransientError
from cachetier.local.catalog.rows import NOTHING_REPLACED, Replaced
from cachetier.model.compression import OFF, Mode
from cachetier.remote.base import IF_ABSENT, Condition, Metadata, ObjectStore, if_match

RANGE_BYTES = 16 << 20


class ConflictError(Exception):
    """An object lies under our key that we may not overwrite."""


class RefusedKeyError(ConflictError):
    """The store takes nothing under a key, and has nothing there."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key}: the store has nothing there, and takes nothing (412, or 500 for parts); some "
            "do so where other keys begin with this one and a slash"
        )


@contextmanager
def noticing_blocked(store: ObjectStore, key: str) -> Iterator[None]:
    """Complete an upload, and tell a key that a store cannot give it from a store that is away.

    Raises:
        RefusedKeyError: The store fails (500), and has keys below this one alone.
    """
    try:
        yield
    except TransientError as error:
        failed = error.context.get("remote_status") == HTTPStatus.INTERNAL_SERVER_ERROR
        if failed and store.head(key) is None and store.list_page(f"{key}/", "", "", 1).objects:
            raise RefusedKeyError(key) from error
        raise


@dataclass(frozen=True, slots=True)
class VerifiedObject:
    """The object that was written under a key, verified."""

    etag: str
    stored: Stored


class StrayObjectError(ConflictError):
    """It is of this very store, which knows nothing of it: its disk went back, or was copied."""


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """The object to write, and its key.

    ``metadata`` is that of raw bytes, ``mode`` how it may be compressed.

    Attributes:
        run: For those who look at what was decided.
        replaced: What it replaces here, and may at the remote.
        is_fixed: Asks whether a part or the published manifest says that other bytes lie there.
        facts: What its rank said of the shard: hints for its compression.
        headers: Those of the object, beside the ones of its codec.
        is_contended: Whether programs write under its key as they like. Then a store that fails
            is asked again before a person is, and an upload is aborted even once it is completed.
    """

    key: str
    metadata: Metadata
    content: Content
    run: str = ""
    mode: Mode = OFF
    replaced: Replaced = NOTHING_REPLACED
    is_fixed: Callable[[], bool] = lambda: False
    facts: ShardFacts = NO_FACTS
    headers: Mapping[str, str] = field(default_factory=dict)
    is_contended: ClassVar[bool] = False

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes

    def wrote(self, info: ObjectInfo) -> bool:
        """Return whether ``info`` is an object that this very shard's upload wrote."""
        names = (SAVE_KEY, STORE_KEY, VERSION_KEY)
        return all(info.metadata.get(name) == self.metadata[name] for name in names)

    def replaces(self, info: ObjectInfo) -> bool:
        """Return whether the shard of ``info`` was replaced here, by this one in the end.

        What was streamed to the remote bears no digest.
        """
        version, digest = info.metadata.get(VERSION_KEY), info.metadata.get(DIGEST_KEY)
        return any(
            str(number) == version and digest in (None, to_hex(known))
            for number, known in self.replaced.shards
        )

    @property
    def first_condition(self) -> Condition | None:
        """The condition of a first write, before a look at the key: most keys are new."""
        return IF_ABSENT

    def look(
        self,
        store: ObjectStore,
        lend: Lend,
        sent: Stored | None = None,
        _answered: str | None = None,
    ) -> VerifiedObject | Condition:
        """Return how this lies there, verified; or the condition to write it under.

        Only what this store itself replaced is replaced there, and nothing that a document speaks
        of: what is published stays as it is, whatever became of the disk of its node. A compressed
        object of the same bytes is never replaced once it is sound, whoever wrote it: its frames
        may be recorded elsewhere.

        Args:
            store: Where to look.
            lend: Lends buffers to read back into.
            sent: What was sent; without it a compressed object is read back, and decoded.

        Raises:
            StrayObjectError: It may be written under another key.
            ConflictError: It may not be written.
        """
        key, info = self.key, store.head(self.key)
        if info is None:
            return IF_ABSENT
        verdict = judge_existing(info.metadata, info.size_bytes, self.metadata, self.size_bytes)
        # What was streamed bears no digest: nobody knew it yet.
        streamed = DIGEST_KEY not in info.metadata and self.wrote(info)
        if verdict is Existing.OURS or streamed:
            found = _verified(store, info, self, lend, sent)
            if found is not None:
                return VerifiedObject(info.etag, found)
        if verdict is Existing.UNKNOWN_CODEC:
            codec = info.metadata.get(CODEC_KEY)
            raise ConflictError(f"{key} is stored by {codec}, which this version cannot decode")
        if verdict is Existing.FOREIGN:
            raise ConflictError(f"{key} holds an object that is not of this save")
        if verdict is Existing.STRAY or (verdict is Existing.OLDER and not self.replaces(info)):
            raise StrayObjectError(f"{key} holds other bytes, which this node did not put there")
        if verdict is Existing.OLDER and self.is_fixed():
            raise ConflictError(
                f"{key} has the attributes that the bucket's documents list, but other bytes"
            )
        return if_match(info.etag)


def abort_replaced(store: ObjectStore, key: str, upload_ids: Iterable[str]) -> None:
    """Abort the uploads of versions that were replaced, before anything of the new one is sent.

    The completion of one may be under way still, whoever asked for it, and would overwrite.
    """
    for upload_id in upload_ids:
        store.abort_upload(key, upload_id)


def _verified(
    store: ObjectStore, info: ObjectInfo, target: UploadTarget, lend: Lend, sent: Stored | None
) -> Stored | None:
    found = codec_found(info.metadata)
    compressed = found != (Codec.RAW, 0)
    expected = sent if compressed else Stored.raw(target.content)
    if (
        expected is not None
        and (expected.codec, expected.element_size) == found
        and is_verified(store, info, expected.size_bytes, expected.digest, lend)
    ):
        return expected
    return frames_read_back(store, info, target.content, lend) if compressed else None


def is_verified(
    store: ObjectStore, info: ObjectInfo, size_bytes: int, digest: int, lend: Lend
) -> bool:
    """Return whether the object that HEAD found, ``info``, has exactly these bytes.

    Args:
        store: Where the object is.
        info: What ``head`` said of it.
        size_bytes: What it must have.
        digest: What it must have.
        lend: Lends a buffer to read back into, where the store keeps no digests.
    """
    if info.size_bytes != size_bytes:
        return False
    if store.keeps_digests:
        return info.digest == digest
    return _digest_read_back(store, info.key, size_bytes, lend) == digest


def frames_read_back(
    store: ObjectStore, info: ObjectInfo, content: Content, lend: Lend
) -> Stored | None:
    """Read a compressed object that we have no record of, and return what it is.

    None if it is not frames of exactly the blocks of ``content``.
    """
    count = blocks_of(content.size_bytes)
    table_at = info.size_bytes - table_bytes(count)
    how = codec_found(info.metadata)
    if how is None or table_at < 0 or count != len(content.block_digests):
        return None
    table = bytearray(table_bytes(count))
    store.read_into(info.key, table_at, memoryview(table))
    try:
        sizes = decode_table(table, content.size_bytes)
        if sum(sizes) != table_at or max(sizes, default=0) > FRAME_LIMIT_BYTES:
            return None
        frames = _frames_of(store, info.key, sizes, content, how, lend)
    except IntegrityError:
        return None
    digest = digest_of(table, joined((frame.digest, frame.size_bytes) for frame in frames))
    codec, element_size = how
    return Stored(codec, info.size_bytes, digest, frames, element_size)


def _frames_of(
    store: ObjectStore,
    key: str,
    sizes: Sequence[int],
    content: Content,
    how: tuple[Codec, int],
    lend: Lend,
) -> tuple[StoredFrame, ...]:
    """Decode every frame.

    Raises:
        IntegrityError: One is not its block.
    """
    codec, element_size = how
    decode, start, found = CODECS[codec].decoder(), 0, []
    blocks = zip(block_lengths(content.size_bytes), content.block_digests, strict=True)
    frames = zip(sizes, blocks, strict=True)
    with lend(RANGE_BYTES) as buffer:
        while group := list(islice(frames, RANGE_BYTES // FRAME_LIMIT_BYTES)):
            rest = buffer[: sum(size for size, _ in group)]
            store.read_into(key, start, rest)
            start += len(rest)
            for size, (raw_bytes, expected) in group:
                if digest_of(decode(rest[:size], raw_bytes, element_size)) != expected:
                    raise IntegrityError(f"{key} holds another block")
                found.append(StoredFrame(size, digest_of(rest[:size])))
                rest = rest[size:]
    return tuple(found)


def _digest_read_back(store: ObjectStore, key: str, size_bytes: int, lend: Lend) -> int:
    digest = 0
    with lend(min(RANGE_BYTES, size_bytes)) as buffer:
        for start in range(0, size_bytes, RANGE_BYTES):
            view = buffer[: min(RANGE_BYTES, size_bytes - start)]
            store.read_into(key, start, view)
            digest = digest_of(view, digest)
    return digest
