"""Bring one shard to the remote and make sure that it is there, whatever lies there already.

Small shards go in one conditional put, larger ones in parts; compressed where that pays, which is
decided before an upload begins and holds for all of it. Nothing is sent that fails its digest here,
nothing is overwritten but an older version from this very store, and nothing counts as sent before
a read-side call has confirmed it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from cachetier.drain.buffers import Buffers
from cachetier.drain.packing import Compressor, Packed, Packer
from cachetier.drain.sent import (
    Progress,
    SentPart,
    contiguous,
    frames_of,
    is_whole,
    sent_before,
    stored_of,
)
from cachetier.drain.source import Source
from cachetier.drain.target import Target, look
from cachetier.drain.verified import is_verified
from cachetier.errors import (
    PreconditionFailedError,
    RemoteDigestError,
    StoppingError,
    UploadGoneError,
)
from cachetier.model.stored import (
    COMPRESSED_FROM_BYTES,
    Codec,
    Stored,
    is_worthwhile,
    limit_bytes,
)
from cachetier.model.uploads import (
    PART_BYTES,
    SINGLE_PUT_BYTES,
    PartRange,
    compressed_metadata,
    packed_part_bytes_for,
    part_bytes_for,
    part_ranges,
)
from cachetier.remote.base import (
    IF_ABSENT,
    Condition,
    Metadata,
    ObjectStore,
    UploadedPart,
)

ROUNDS = 3
PARTS_AT_ONCE = 8

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Upload:
    """A multipart upload under way, with the parts it has."""

    upload_id: str
    part_bytes: int
    codec: Codec
    done: list[SentPart]


class Uploader:
    """Uploads shards to one store. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        buffers: Buffers,
        parts: Executor,
        *,
        stopping: Callable[[], bool] = lambda: False,
        compressor: Compressor | None = None,
        usual_part_bytes: Callable[[], int] = lambda: PART_BYTES,
    ) -> None:
        """Make one; ``parts`` runs the parts of all its uploads, ``compressor`` makes frames.

        ``usual_part_bytes`` is asked for each upload that begins.
        """
        self._usual_part_bytes = usual_part_bytes
        self._store = store
        self._compressor = compressor
        self._buffers = buffers
        self._parts = parts
        self._stopping = stopping

    def upload(self, target: Target, source: Source, progress: Progress) -> Stored:
        """Return as what the shard is verified at the remote.

        Raises:
            DamagedError: The local bytes are not what was committed; none of the damage was sent.
            ConflictError: Something else lies there; it was left alone.
            NotFoundError: The shard was replaced or deleted: ``clear_away`` is next.
            StoppingError: The drain stops; a multipart upload can go on later.
            RemoteError: Try again later.
        """
        if target.size_bytes <= SINGLE_PUT_BYTES:
            return self.put(target, source)
        return self._send(target, source, progress)

    def complete_streamed(
        self, target: Target, upload_id: str, parts: Sequence[UploadedPart]
    ) -> None:
        """Finish an upload whose digest nobody knew when it began; return once it is verified.

        Raises:
            ConflictError: Something else lies there; it was left alone.
            RemoteDigestError: The object is not what it should be.
        """
        digest = target.content.digest
        self._look(target)
        try:
            self._store.complete_upload(target.key, upload_id, parts, digest=digest)
        except UploadGoneError:
            pass  # perhaps completed by a call whose reply was lost
        info = self._store.head(target.key)
        lend, size_bytes = self._buffers.lend, target.size_bytes
        there = info is not None and target.wrote(info)
        if info is None or not (there and is_verified(self._store, info, size_bytes, digest, lend)):
            raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def clear_away(self, target: Target, upload_id: str | None) -> None:
        """Remove what was sent of a shard that is not wanted any more."""
        if upload_id is not None:
            self._store.abort_upload(target.key, upload_id)
        info = self._store.head(target.key)
        if info is not None and target.wrote(info):
            self._store.delete(target.key)

    def _look(self, target: Target, sent: Stored | None = None) -> Stored | Condition:
        return look(self._store, target, self._buffers.lend, sent)

    # --- in one put ------------------------------------------------------------------------------

    def put(self, target: Target, source: Source) -> Stored:
        """Return as what a shard of at most one part is verified; raises as ``upload`` does."""
        found: Stored | Condition = IF_ABSENT
        for _ in range(ROUNDS):
            if isinstance(found, Stored):
                return found
            found = self._put_once(target, source, found)
        if isinstance(found, Stored):
            return found
        raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def _put_once(self, target: Target, source: Source, condition: Condition) -> Stored | Condition:
        with self._body(target, source) as (view, sent, metadata):
            # Perhaps our own success whose reply was lost; else the next round mends it.
            with suppress(PreconditionFailedError, RemoteDigestError):
                self._store.put(
                    target.key, view, digest=sent.digest, metadata=metadata, condition=condition
                )
        return self._look(target, sent)

    @contextmanager
    def _body(
        self, target: Target, source: Source
    ) -> Iterator[tuple[memoryview, Stored, Metadata]]:
        """Yield what to put: frames where that pays, else the raw bytes."""
        compressor = self._compressor_for(target)
        if compressor is not None:
            room = min(packed_part_bytes_for(target.size_bytes), limit_bytes(target.size_bytes))
            with self._buffers.lend(room) as buffer:
                packer = Packer(compressor, source, target.size_bytes)
                packed = packer.next_part(buffer)
                if packer.ended and is_worthwhile(len(packed.view), target.size_bytes):
                    sent = Stored(Codec.ZSTD, len(packed.view), packed.digest, packed.frames)
                    metadata = compressed_metadata(target.metadata, target.size_bytes)
                    yield packed.view, sent, metadata
                    return
        whole = PartRange(1, 0, target.size_bytes)
        with self._buffers.lend(target.size_bytes) as buffer:
            view, _ = source.read(whole, buffer)
            yield view, Stored.raw(target.content), target.metadata

    def _compressor_for(self, target: Target) -> Compressor | None:
        return self._compressor if target.size_bytes >= COMPRESSED_FROM_BYTES else None

    # --- in parts --------------------------------------------------------------------------------

    def _send(self, target: Target, source: Source, progress: Progress) -> Stored:
        # Look before any byte is sent: no condition protects a multipart upload.
        found = self._look(target, sent_before(progress, target.content))
        if isinstance(found, Stored):
            if progress.upload_id is not None:
                self._store.abort_upload(target.key, progress.upload_id)
            return found
        for _ in range(ROUNDS):
            upload = self._resume(target, progress) or self._begin(target, source, progress)
            try:
                parts = self._send_missing(target, source, progress, upload)
            except UploadGoneError:
                progress.gone()
                continue
            stored = self._complete(target, upload, parts)
            if stored is not None:
                return stored
            progress.gone()
        raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    def _resume(self, target: Target, progress: Progress) -> _Upload | None:
        """Return the upload begun before with the parts the store really has, if it is there."""
        upload_id, part_bytes = progress.upload_id, progress.part_bytes
        if upload_id is None or part_bytes is None:
            return None
        if progress.codec is Codec.ZSTD and self._compressor is None:  # switched off meanwhile
            self._store.abort_upload(target.key, upload_id)
            progress.gone()
            return None
        try:
            listed = self._store.list_parts(target.key, upload_id)
        except UploadGoneError:
            progress.gone()
            return None
        done = [sent for sent in progress.parts() if _is_listed(sent.part, listed)]
        if progress.codec is Codec.ZSTD:
            done = contiguous(done)
        return _Upload(upload_id, part_bytes, progress.codec, done)

    def _begin(self, target: Target, source: Source, progress: Progress) -> _Upload:
        size_bytes = target.size_bytes
        usual_bytes = self._usual_part_bytes()
        part_bytes = part_bytes_for(size_bytes, usual_bytes)
        codec, metadata = Codec.RAW, target.metadata
        compressor = self._compressor_for(target)
        if compressor is not None and compressor.pays(source, size_bytes):
            codec, part_bytes = Codec.ZSTD, packed_part_bytes_for(size_bytes, usual_bytes)
            metadata = compressed_metadata(target.metadata, size_bytes)
        upload_id = self._store.create_upload(target.key, metadata)
        try:
            progress.begun(upload_id, part_bytes, codec)
        except BaseException:
            self._store.abort_upload(target.key, upload_id)
            raise
        return _Upload(upload_id, part_bytes, codec, [])

    def _send_missing(
        self, target: Target, source: Source, progress: Progress, upload: _Upload
    ) -> list[SentPart]:
        """Send what the upload lacks and return all its parts."""

        def send(part: PartRange) -> SentPart:
            uploaded = self._send_part(target, upload.upload_id, source, part)
            sent = SentPart(uploaded, part.start, part.size_bytes)
            progress.part_done(sent)
            return sent

        try:
            if upload.codec is Codec.ZSTD:
                return self._send_packed(target, source, progress, upload)
            finished = {sent.part.number for sent in upload.done}
            ranges = part_ranges(target.size_bytes, upload.part_bytes)
            missing = (part for part in ranges if part.number not in finished)
            return [*upload.done, *self._in_parallel(send, missing)]
        finally:
            progress.flush()

    def _send_packed(
        self, target: Target, source: Source, progress: Progress, upload: _Upload
    ) -> list[SentPart]:
        """Send the frames behind those that are there: packed in turn, sent in parallel."""
        assert self._compressor is not None
        packer = Packer(
            self._compressor,
            source,
            target.size_bytes,
            frames_of(upload.done),
            len(upload.done),
            ended=is_whole(stored_of(upload.codec, upload.done, target.content), target.content),
        )
        turn = threading.Semaphore()

        def turns() -> Iterator[None]:
            while turn.acquire() and not packer.ended:
                yield

        def send(_turn: None) -> SentPart:
            with self._buffers.lend(upload.part_bytes) as buffer:
                try:
                    packed = packer.next_part(buffer)
                finally:
                    turn.release()
                uploaded = self._send_frames(target, upload.upload_id, packed)
            sent = SentPart(uploaded, packed.raw_start, packed.raw_bytes, packed.frames)
            progress.part_done(sent)
            return sent

        return [*upload.done, *self._in_parallel(send, turns())]

    def _in_parallel(
        self, send: Callable[[Item], SentPart], items: Iterable[Item]
    ) -> list[SentPart]:
        """Send ``items``, some at once; after the first error the others end, and it is raised."""
        running: set[Future[SentPart]] = set()
        ended: list[Future[SentPart]] = []
        try:
            for item in items:
                if self._stopping():
                    raise StoppingError("the drain stops")
                running.add(self._parts.submit(send, item))
                if len(running) >= PARTS_AT_ONCE:
                    now, running = wait(running, return_when=FIRST_COMPLETED)
                    ended += now
                    if any(future.exception() is not None for future in now):
                        break
        finally:
            ended += wait(running).done
        return [future.result() for future in ended]

    def _send_part(
        self, target: Target, upload_id: str, source: Source, part: PartRange
    ) -> UploadedPart:
        def send() -> UploadedPart:
            with self._buffers.lend(part.size_bytes) as buffer:
                view, digest = source.read(part, buffer)  # each time: it may have gone bad here
                return self._store.upload_part(
                    target.key, upload_id, part.number, view, digest=digest
                )

        return _in_rounds(send)

    def _send_frames(self, target: Target, upload_id: str, packed: Packed) -> UploadedPart:
        return _in_rounds(
            lambda: self._store.upload_part(
                target.key, upload_id, packed.number, packed.view, digest=packed.digest
            )
        )

    def _complete(
        self, target: Target, upload: _Upload, parts: Sequence[SentPart]
    ) -> Stored | None:
        """Make the parts an object; return as what it is verified, if it is there."""
        sent = stored_of(upload.codec, parts, target.content)
        found = self._look(target, sent)
        if isinstance(found, Stored):
            self._store.abort_upload(target.key, upload.upload_id)
            return found
        uploaded = [part.part for part in parts]
        try:
            self._store.complete_upload(target.key, upload.upload_id, uploaded, digest=sent.digest)
        except UploadGoneError:
            pass  # perhaps completed by a call whose reply was lost
        except RemoteDigestError:
            self._store.abort_upload(target.key, upload.upload_id)
        found = self._look(target, sent)
        return found if isinstance(found, Stored) else None


def _in_rounds(send: Callable[[], UploadedPart]) -> UploadedPart:
    """Send a part up to ``ROUNDS`` times, as long as the store says that other bytes arrived."""
    for _ in range(ROUNDS - 1):
        with suppress(RemoteDigestError):
            return send()
    return send()


def _is_listed(part: UploadedPart, listed: dict[int, tuple[str, int]]) -> bool:
    etag, size_bytes = listed.get(part.number, ("", -1))
    return etag.strip('"') == part.etag.strip('"') and size_bytes == part.size_bytes
