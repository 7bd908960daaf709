"""Put an object back into a remote, exactly as the published documents describe it.

What a part document names may not change any more, so another way of storing the same shard would
not do. The local bytes are read and checked first; an object that is somebody else's is left alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cachetier_client.bucket_format.stored import Codec, Content, InPack, Stored
from cachetier_client.bucket_format.uploads import (
    SAVE_KEY,
    SINGLE_PUT_BYTES,
    object_metadata,
    upload_part_bytes_for,
)
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of

from cachetier.errors import CachetierError, IntegrityError
from cachetier.fsck.findings import LeftError
from cachetier.local.store import LocalCopy, Store
from cachetier.model.shard import Shard
from cachetier.remote.base import IF_ABSENT, Condition, UploadedPart, if_match
from cachetier.remote.bucket import Remote


class CannotResendError(LeftError):
    """The bytes here do not make the object that is described."""


class Resender:
    """Sends objects of one store to one remote again."""

    def __init__(self, store: Store, remote: Remote) -> None:
        self._store = store
        self._remote = remote

    def resend(self, shards: Sequence[Shard], stored: Stored, key: str) -> None:
        """Put the object of a shard (or the pack of several) back, and see that it is there.

        Args:
            shards: Whose bytes are here; of a pack all that it held, in the order of its bytes.
            stored: As what the remote held one of them.
            key: The object's.

        Raises:
            CannotResendError: It was compressed, its bytes are not all here, or not sound.
            RemoteError: The remote does not take it.
        """
        condition = self._condition(shards[0], key)
        if stored.pack is not None:
            self._put_pack(shards, stored.pack, key, condition)
        elif stored.codec is not Codec.RAW:
            raise CannotResendError("it was stored compressed: save the step again to replace it")
        else:
            self._put_raw(shards[0], key, condition)
        expected = stored.pack or stored
        info = self._remote.bucket.objects.head(key)
        if info is None or info.size_bytes != expected.size_bytes:
            raise CannotResendError("it was sent, and is not there")
        if info.digest not in (None, expected.digest):
            raise CannotResendError("it was sent, and arrived as something else")

    def _condition(self, shard: Shard, key: str) -> Condition:
        found = self._remote.bucket.objects.head(key)
        if found is None:
            return IF_ABSENT
        if found.metadata.get(SAVE_KEY) != shard.save_id:
            raise CannotResendError(f"{key} is somebody else's object")
        return if_match(found.etag)

    def _put_raw(self, shard: Shard, key: str, condition: Condition) -> None:
        content = shard.content
        metadata = object_metadata(shard.save_id, self._store.store_id, shard.version, content)
        objects = self._remote.bucket.objects
        with self._opened(shard) as copy:
            if content.size_bytes <= SINGLE_PUT_BYTES:
                body = _read(copy, 0, content.size_bytes)
                objects.put(
                    key, body, digest=content.digest, metadata=metadata, condition=condition
                )
                return
            upload_id = objects.create_upload(key, metadata)
            try:
                parts = [
                    self._send_part(copy, key, upload_id, at) for at in _starts(content.size_bytes)
                ]
                objects.complete_upload(key, upload_id, parts, digest=content.digest)
            except CachetierError:
                objects.abort_upload(key, upload_id)
                raise

    def _send_part(self, copy: LocalCopy, key: str, upload_id: str, start: int) -> UploadedPart:
        size_bytes = copy.shard.content.size_bytes
        part_bytes = upload_part_bytes_for(size_bytes)
        body = _read(copy, start, min(part_bytes, size_bytes - start))
        return self._remote.bucket.objects.upload_part(
            key, upload_id, start // part_bytes + 1, body, digest=digest_of(body)
        )

    def _put_pack(
        self, shards: Sequence[Shard], pack: InPack, key: str, condition: Condition
    ) -> None:
        body = bytearray()
        for shard in shards:
            with self._opened(shard) as copy:
                body += _read(copy, 0, shard.content.size_bytes)
        digest = digest_of(body)
        if (len(body), digest) != (pack.size_bytes, pack.digest):
            raise CannotResendError("other shards of its pack are not here")
        content = Content(len(body), digest, ())
        metadata = object_metadata(shards[0].save_id, self._store.store_id, 0, content)
        self._remote.bucket.objects.put(
            key, bytes(body), digest=digest, metadata=metadata, condition=condition
        )

    @contextmanager
    def _opened(self, shard: Shard) -> Iterator[LocalCopy]:
        """Lend the local bytes of a shard, read and checked to the end."""
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            copy = None
        if copy is None:
            raise CannotResendError(f"the bytes of {shard.name} are not here")
        try:
            if not copy.reads_right():
                raise CannotResendError(f"the bytes of {shard.name} here are damaged")
            yield copy
        finally:
            copy.close()


def _starts(size_bytes: int) -> range:
    return range(0, size_bytes, upload_part_bytes_for(size_bytes))


def _read(copy: LocalCopy, start: int, length: int) -> bytes:
    if copy.descriptor is None:
        assert copy.body is not None
        return copy.body[start : start + length]
    pieces = []
    while length and (piece := os.pread(copy.descriptor, length, start)):
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return b"".join(pieces)


def content_of(descriptor: int, size_bytes: int) -> Content:
    """Describe a file's bytes: a digest for each block, and of the whole.

    Raises:
        IntegrityError: It has another size.
    """
    if os.fstat(descriptor).st_size != size_bytes:
        raise IntegrityError("the file has another size than it says")
    return _described(size_bytes, lambda at: os.pread(descriptor, BLOCK_BYTES, at))


def content_of_body(body: bytes) -> Content:
    """Describe bytes that lie inside the catalog likewise."""
    return _described(len(body), lambda at: body[at : at + BLOCK_BYTES])


def _described(size_bytes: int, block: Callable[[int], bytes]) -> Content:
    blocks = tuple(digest_of(block(at)) for at in range(0, size_bytes, BLOCK_BYTES))
    return Content(size_bytes, combine(blocks, size_bytes), blocks)
