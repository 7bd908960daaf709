"""The uploader: brings one shard to its key and verifies it, whatever lies there already.

Small shards go in one conditional put, larger ones in parts; compressed where that pays, which is
decided before an upload begins and holds for all of it. Nothing is sent that fails its digest here,
nothing is overwritten but an older version from this very store, and nothing counts as sent before
a read-side call has confirmed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from cachetier_client.bucket_format.stored import Stored, is_worthwhile, limit_bytes
from cachetier_client.bucket_format.uploads import (
    SINGLE_PUT_BYTES,
    UploadedPart,
    UploadPartRange,
    compressed_metadata,
    packed_upload_part_bytes_for,
)

from cachetier.codec.codecs import content_headers
from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.frame_packer import Packer
from cachetier.drain.upload.multipart import MultipartUpload
from cachetier.drain.upload.part_room import PartRoom
from cachetier.drain.upload.part_sender import ROUNDS, UploadContext
from cachetier.drain.upload.progress import UploadProgress
from cachetier.drain.upload.server_copies import Ask, nobody
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import (
    RefusedKeyError,
    UploadTarget,
    abort_replaced,
    is_verified,
    look,
)
from cachetier.errors import PreconditionFailedError, RemoteDigestError, UploadGoneError
from cachetier.remote.base import IF_ABSENT, Body, Metadata


class Uploader:
    """Uploads shards to one store. Thread-safe."""

    def __init__(self, context: UploadContext) -> None:
        self._context = context
        self._store = context.store

    def upload(
        self, target: UploadTarget, source: ShardSource, progress: UploadProgress, ask: Ask = nobody
    ) -> Stored:
        """Return how the remote stores the shard, verified; ``ask`` names a donor.

        Raises:
            DamagedError: The local bytes are not what was committed; none of the damage was sent.
            ConflictError: Something else lies there; it was left alone.
            NotFoundError: The shard was replaced or deleted: ``clear_away`` is next.
            StoppingError: The drain stops; a multipart upload can go on later.
            RemoteError: Try again later.
        """
        abort_replaced(self._store, target.key, target.replaced.uploads)
        if target.size_bytes <= SINGLE_PUT_BYTES:
            return self.put(target, source)
        return MultipartUpload(self._context, target, source, progress, ask).send()

    def complete_streamed(
        self, target: UploadTarget, upload_id: str, parts: Sequence[UploadedPart]
    ) -> None:
        """Finish an upload whose digest nobody knew when it began; return once it is verified.

        Raises:
            ConflictError: Something else lies there; it was left alone.
            RemoteDigestError: The object is not what it should be.
        """
        digest = target.content.digest
        lend, size_bytes = self._context.buffers.lend, target.size_bytes
        look(self._store, target, lend)
        try:
            self._store.complete_upload(target.key, upload_id, parts, digest=digest)
        except UploadGoneError:
            pass  # perhaps completed by a call whose reply was lost
        info = self._store.head(target.key)
        there = info is not None and target.wrote(info)
        if info is None or not (there and is_verified(self._store, info, size_bytes, digest, lend)):
            raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def clear_away(self, target: UploadTarget, upload_id: str | None) -> None:
        """Remove what was sent of a shard that is not wanted any more."""
        if upload_id is not None:
            self._store.abort_upload(target.key, upload_id)
        info = self._store.head(target.key)
        if info is not None and target.wrote(info) and not target.is_fixed():
            self._store.delete(target.key)

    # --- in one put ------------------------------------------------------------------------------

    def put(self, target: UploadTarget, source: ShardSource) -> Stored:
        """Return how a shard of at most one part is stored, verified; raises as ``upload`` does."""
        condition, refused = IF_ABSENT, False
        for _ in range(ROUNDS):
            refused = False
            # Perhaps our own success whose reply was lost; else the next round mends it.
            with self._body(target, source) as (body, sent, metadata), suppress(RemoteDigestError):
                try:
                    self._store.put(
                        target.key,
                        body,
                        digest=sent.digest,
                        metadata=metadata,
                        condition=condition,
                        headers=content_headers(sent.codec),
                    )
                except PreconditionFailedError:
                    refused = condition == IF_ABSENT
            found = look(self._store, target, self._context.buffers.lend, sent)
            if isinstance(found, Stored):
                return found
            condition = found
        if refused and condition == IF_ABSENT:
            raise RefusedKeyError(target.key)
        raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    @contextmanager
    def _body(
        self, target: UploadTarget, source: ShardSource
    ) -> Iterator[tuple[Body, Stored, Metadata]]:
        """Yield what to put: frames where that pays, else the raw bytes."""
        buffers, chooser = self._context.buffers, self._context.chooser
        encoding = chooser.choose(target, source) if chooser is not None else None
        if encoding is not None:
            room = min(
                packed_upload_part_bytes_for(target.size_bytes), limit_bytes(target.size_bytes)
            )
            with closing(PartRoom(buffers, room, lasting=True)) as memory:
                packer = Packer(encoding, source, target.size_bytes)
                with stopwatch.phase(stopwatch.COMPRESS):
                    packed = packer.next_part(memory)
                if packer.ended and is_worthwhile(memory.size_bytes, target.size_bytes):
                    how = encoding.codec, encoding.element_size
                    metadata = compressed_metadata(target.metadata, target.size_bytes, *how)
                    size_bytes, digest = memory.size_bytes, packed.digest
                    sent = Stored(how[0], size_bytes, digest, packed.frames, how[1])
                    yield memory, sent, metadata
                    return
        whole = UploadPartRange(1, 0, target.size_bytes)
        with self._context.body(source, whole, target.size_bytes) as (body, _):
            yield body, Stored.raw(target.content), target.metadata
