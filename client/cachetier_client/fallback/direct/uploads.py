"""Bring one shard's bytes to its key, and trust only what the store then says of them.

As the service's drain does: a key is written once, or over an older put of the same client; small
shards by one conditional put, large ones in parts, a few at once.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Content, Stored
from cachetier_client.bucket_format.uploads import (
    SAVE_KEY,
    SINGLE_PUT_BYTES,
    STORE_KEY,
    VERSION_KEY,
    ObjectInfo,
    is_object_of,
    object_metadata,
    own_version,
    upload_part_bytes_for,
)
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    CachetierClientError,
    IntegrityError,
    PreconditionFailedError,
    RemoteRefusedError,
    RemoteUnavailableError,
    UploadGoneError,
)
from cachetier_client.fallback.direct.remote import DirectBucket, Piece
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.digests import BLOCK_BYTES, combine, joined
from cachetier_client.io.workers import Workers

ATTEMPTS = 3
_ABORT_SECONDS = 5.0

_Send = Callable[[str | None], None]

_STORE = f"client-{secrets.token_hex(8)}"
_versions = itertools.count(1)


@dataclass(frozen=True, slots=True)
class DirectTarget:
    """The key that a shard goes to, and how it is stored there."""

    key: str
    metadata: Mapping[str, str]
    content: Content

    @classmethod
    def of(cls, key: str, part: SaveIds, content: Content) -> DirectTarget:
        """Return a target newer than any before."""
        store = _store_of(part.rank)
        return cls(key, object_metadata(part.save_id, store, next(_versions), content), content)


def _store_of(rank: int) -> str:
    """Return how objects name who wrote them: a rank in this process, not in one forked from it."""
    return f"{_STORE}-{os.getpid()}-{rank}"


def content_of(data: Gathered, workers: Workers) -> Content:
    """Return what ``data`` is as a shard: its digests, from the caller's memory."""
    digests = [0] * data.block_count

    def take(number: int) -> None:
        digests[number] = data.block(number).digest()

    workers.for_each(len(digests), take)
    return Content(len(data), combine(digests, len(data)), tuple(digests))


class Uploads:
    """Writes shards to one bucket. Thread-safe."""

    def __init__(self, objects: DirectBucket, workers: Workers, clock: Clock) -> None:
        self._objects = objects
        self._workers = workers
        self._clock = clock

    def put(
        self,
        target: DirectTarget,
        data: Gathered,
        deadline: Deadline,
        turns_back: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write a shard whose bytes are all here, and return once the store has verified them.

        Args:
            target: Where it goes.
            data: What it is.
            deadline: Until when.
            turns_back: Asked between parts: whether to leave nothing behind after all.

        Raises:
            RemoteRefusedError: Something else lies under its key.
            RemoteUnavailableError: Not in time, or turned back.
        """

        def send(over: str | None) -> None:
            if len(data) <= SINGLE_PUT_BYTES:
                pieces = [block.joined() for block in data.blocks()]
                self._put_single(target, pieces, over, deadline)
            else:
                self._put_parts(target, data, deadline, turns_back)

        self._bring(target, send, deadline)

    def put_collected(
        self, target: DirectTarget, pieces: Sequence[Piece], deadline: Deadline
    ) -> None:
        """Write a small shard that a stream has collected."""

        def send(over: str | None) -> None:
            self._put_single(target, pieces, over, deadline)

        self._bring(target, send, deadline)

    def check(self, target: DirectTarget, deadline: Deadline) -> None:
        """Make sure that what was sent in parts is what lies there.

        Raises:
            IntegrityError: It is not.
        """
        if not self._is_verified(target, self._objects.head(target.key, deadline), deadline):
            raise IntegrityError(
                f"{target.key} is in the bucket with other bytes than were sent, or missing",
                hint="Put the shard again.",
            )

    def abort(self, key: str, upload_id: str) -> None:
        """End an upload that failed, if the store lets us; else the bucket's lifecycle does."""
        with suppress(CachetierClientError):
            deadline = Deadline(_ABORT_SECONDS, self._clock)
            self._objects.abort_upload(key, upload_id, deadline)

    # --- sending ---------------------------------------------------------------------------------

    def _bring(self, target: DirectTarget, send: _Send, deadline: Deadline) -> None:
        for _ in range(ATTEMPTS):
            found = self._objects.head(target.key, deadline)
            if self._is_verified(target, found, deadline):
                return
            with suppress(PreconditionFailedError, UploadGoneError):
                send(version_to_replace(target, found))
            found = self._objects.head(target.key, deadline)
            if self._is_verified(target, found, deadline):
                return
        raise IntegrityError(
            f"the store returns other bytes for {target.key} than were sent",
            hint="Check the store: it acknowledged bytes and then returned other ones.",
        )

    def _put_single(
        self, target: DirectTarget, pieces: Sequence[Piece], over: str | None, deadline: Deadline
    ) -> None:
        self._objects.put(
            target.key,
            pieces,
            deadline,
            digest=target.content.digest,
            metadata=target.metadata,
            over=over,
        )

    def _put_parts(
        self,
        target: DirectTarget,
        data: Gathered,
        deadline: Deadline,
        turns_back: Callable[[], bool],
    ) -> None:
        each = upload_part_bytes_for(len(data)) // BLOCK_BYTES
        starts = range(0, data.block_count, each)
        sent: list[tuple[str, int]] = [("", 0)] * len(starts)
        upload_id = self._objects.create_upload(target.key, target.metadata, deadline)

        def send(at: int) -> None:
            if turns_back():
                raise RemoteUnavailableError(f"{target.key} is handled by the service again")
            numbers = range(starts[at], min(starts[at] + each, data.block_count))
            blocks = [data.block(number) for number in numbers]
            sizes = (block.size_bytes for block in blocks)
            known = (target.content.block_digests[number] for number in numbers)
            digest = joined(zip(known, sizes, strict=True))
            pieces = [block.joined() for block in blocks]
            etag = self._objects.upload_part(
                target.key, upload_id, at + 1, pieces, deadline, digest=digest
            )
            sent[at] = etag, digest

        try:
            self._workers.for_each(len(starts), send)
            self.complete(target, upload_id, sent, deadline)
        except BaseException:
            self.abort(target.key, upload_id)
            raise

    def complete(
        self,
        target: DirectTarget,
        upload_id: str,
        parts: Sequence[tuple[str, int]],
        deadline: Deadline,
    ) -> None:
        """Make the object of the parts; what came of it, HEAD tells."""
        with suppress(UploadGoneError):  # completed, perhaps, and the answer lost
            self._objects.complete_upload(
                target.key,
                upload_id,
                parts,
                deadline,
                digest=target.content.digest,
                size_bytes=target.content.size_bytes,
            )

    # --- judging ---------------------------------------------------------------------------------

    def _is_verified(
        self, target: DirectTarget, found: ObjectInfo | None, deadline: Deadline
    ) -> bool:
        if found is None or not is_there(found, target.metadata[SAVE_KEY], target.content):
            return False
        if self._objects.keeps_digests:
            return found.digest == target.content.digest
        return self._objects.digest_read_back(target.key, deadline) == target.content.digest


def is_there(found: ObjectInfo | None, save_id: str, content: Content) -> bool:
    """Return whether ``found`` is, as far as HEAD can say, a shard that was put here before."""
    return found is not None and is_object_of(found, save_id, content.digest, Stored.raw(content))


def version_to_replace(target: DirectTarget, found: ObjectInfo | None) -> str | None:
    """Return the ETag of an older put of ours, which may go; None where there is nothing.

    Raises:
        RemoteRefusedError: What is there is not ours to replace.
    """
    if found is None:
        return None
    version = own_version(found.metadata, target.metadata)
    if version is not None and version <= int(target.metadata[VERSION_KEY]):
        return found.etag
    rank = target.metadata[STORE_KEY].rpartition("-")[2]
    raise RemoteRefusedError(
        f"{target.key} holds other bytes, which rank {rank} of this process did not put there",
        hint="Save the step again under a save_id of its own, or move that object away.",
    )
