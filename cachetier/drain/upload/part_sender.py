"""Send the upload parts of one upload: read or packed and sent, or copied inside the bucket.

Several go at once. Of raw bytes each part stands alone; frames are packed in turn, as where one
begins depends on those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, joined

from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.encoding import Encoding
from cachetier.drain.upload.frame_packer import Copied, Packed, Packer
from cachetier.drain.upload.progress import (
    SentUploadPart,
    UploadProgress,
    contiguous,
    frames_of,
    is_whole,
    stored_of,
)
from cachetier.drain.upload.server_copies import Donor
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget
from cachetier.errors import RemoteDigestError, SourceChangedError, StoppingError
from cachetier.model import composing
from cachetier.model.composing import SourcePiece
from cachetier.remote.base import ObjectStore, UploadedPart

ROUNDS = 3
PARTS_AT_ONCE = 8

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload under way, with the parts it has.

    ``encoding`` is None for plain bytes; a ``donor`` is stored in the same way as the upload.
    """

    upload_id: str
    part_bytes: int
    encoding: Encoding | None
    done: list[SentUploadPart]
    donor: Donor | None = None

    @property
    def codec(self) -> Codec:
        return self.encoding.codec if self.encoding is not None else Codec.RAW

    @property
    def element_size(self) -> int:
        return self.encoding.element_size if self.encoding is not None else 0


def raw_plan(upload: Upload, size_bytes: int) -> tuple[list[SentUploadPart], list[SourcePiece]]:
    """Return which parts of a raw upload stay, and what it lacks.

    What is there without a gap stays; of what comes behind, the parts that the plan has as well.
    """
    kept = contiguous(upload.done)
    start = kept[-1].raw_start + kept[-1].raw_bytes if kept else 0
    unchanged = upload.donor.unchanged if upload.donor is not None else ()
    number, part_bytes = len(kept) + 1, upload.part_bytes
    there = {(sent.part.number, sent.raw_start, sent.raw_bytes): sent for sent in upload.done}
    lacking = []
    for piece in composing.pieces(size_bytes, part_bytes, unchanged, number=number, start=start):
        sent = there.get((piece.number, piece.start, piece.size_bytes))
        if sent is None:
            lacking.append(piece)
        else:
            kept.append(sent)
    return kept, lacking


class UploadPartSender:
    """Brings parts of uploads to one store. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        buffers: Buffers,
        threads: Executor,
        stopping: Callable[[], bool],
        on_copied: Callable[[int], None],
    ) -> None:
        """Make one; ``on_copied`` is told the size of each part that was copied."""
        self._store = store
        self._buffers = buffers
        self._threads = threads
        self._stopping = stopping
        self._on_copied = on_copied

    def send_missing(
        self, target: UploadTarget, source: ShardSource, progress: UploadProgress, upload: Upload
    ) -> list[SentUploadPart]:
        """Bring what the upload lacks, and return all its parts.

        Raises:
            SourceChangedError: The donor is not what it was: go on without it.
            CopiesRefusedError: The store does not copy: go on without a donor.
        """
        try:
            if upload.codec is not Codec.RAW:
                return self._send_packed(target, source, progress, upload)
            return self._send_raw(target, source, progress, upload)
        finally:
            progress.flush()

    # --- raw bytes -------------------------------------------------------------------------------

    def _send_raw(
        self, target: UploadTarget, source: ShardSource, progress: UploadProgress, upload: Upload
    ) -> list[SentUploadPart]:
        def bring(piece: SourcePiece) -> SentUploadPart:
            bring_one = self._copy_piece if piece.copied else self._send_piece
            sent = SentUploadPart(
                bring_one(target, source, upload, piece), piece.start, piece.size_bytes
            )
            progress.part_done(sent)
            return sent

        kept, lacking = raw_plan(upload, target.size_bytes)
        return [*kept, *self._in_parallel(bring, lacking)]

    def _send_piece(
        self, target: UploadTarget, source: ShardSource, upload: Upload, piece: SourcePiece
    ) -> UploadedPart:
        def send() -> UploadedPart:
            with self._buffers.lend(piece.room_bytes) as buffer:
                view, digest = source.read(piece, buffer)  # each time: it may have gone bad here
                return self._store.upload_part(
                    target.key, upload.upload_id, piece.number, view, digest=digest
                )

        return _in_rounds(send)

    def _copy_piece(
        self, target: UploadTarget, source: ShardSource, upload: Upload, piece: SourcePiece
    ) -> UploadedPart:
        digest = self._digest_of(target, source, piece)
        return self._copy(target, upload, piece.number, (piece.start, piece.size_bytes), digest)

    def _digest_of(self, target: UploadTarget, source: ShardSource, piece: SourcePiece) -> int:
        """Return what the donor's bytes must be: read here is only what is left of a cut block."""
        first, within = divmod(piece.start, BLOCK_BYTES)
        digests = target.content.block_digests[first : first + piece.blocks]
        touched = list(zip(digests, block_lengths(piece.size_bytes + within), strict=True))
        if within:
            edge = UploadPartRange(piece.number, piece.start, BLOCK_BYTES - within)
            with self._buffers.lend(edge.room_bytes) as buffer:
                _, digest = source.read(edge, buffer)
            touched[0] = digest, edge.size_bytes
        return joined(touched)

    # --- frames ----------------------------------------------------------------------------------

    def _send_packed(
        self, target: UploadTarget, source: ShardSource, progress: UploadProgress, upload: Upload
    ) -> list[SentUploadPart]:
        """Bring the frames behind those that are there: in turn, and in parallel to the store."""
        packer = _packer(target, source, upload)
        turn = threading.Semaphore()

        def turns() -> Iterator[None]:
            while turn.acquire() and not packer.ended:
                yield

        def bring(_turn: None) -> SentUploadPart:
            with ExitStack() as lent:
                made: Copied | Packed | None
                with _released(turn):
                    made = packer.next_copied()
                    if made is None:
                        buffer = lent.enter_context(self._buffers.lend(upload.part_bytes))
                        with stopwatch.phase(stopwatch.COMPRESS):
                            made = packer.next_part(buffer)
                part = self._bring_frames(target, upload, made)
            sent = SentUploadPart(part, made.raw_start, made.raw_bytes, made.frames)
            progress.part_done(sent)
            return sent

        return [*upload.done, *self._in_parallel(bring, turns())]

    def _bring_frames(
        self, target: UploadTarget, upload: Upload, made: Copied | Packed
    ) -> UploadedPart:
        if isinstance(made, Copied):
            there = made.start, made.size_bytes
            return self._copy(target, upload, made.number, there, made.digest)
        return _in_rounds(
            lambda: self._store.upload_part(
                target.key, upload.upload_id, made.number, made.view, digest=made.digest
            )
        )

    # --- both ------------------------------------------------------------------------------------

    def _copy(
        self, target: UploadTarget, upload: Upload, number: int, there: tuple[int, int], digest: int
    ) -> UploadedPart:
        """Copy bytes of the donor; ``there`` is where it has them, and how many."""
        assert upload.donor is not None  # else no plan has anything to copy
        source = upload.donor.range(*there)
        try:
            part = self._store.copy_part(
                target.key, upload.upload_id, number, source, digest=digest
            )
        except RemoteDigestError as error:
            raise SourceChangedError(error.message, key=source.key) from error
        self._on_copied(part.size_bytes)
        return part

    def _in_parallel(
        self, bring: Callable[[Item], SentUploadPart], items: Iterable[Item]
    ) -> list[SentUploadPart]:
        """Bring ``items``, some at once; after the first error the others end, and it is raised."""
        running: set[Future[SentUploadPart]] = set()
        ended: list[Future[SentUploadPart]] = []
        try:
            for item in items:
                if self._stopping():
                    raise StoppingError("the drain stops")
                running.add(self._threads.submit(copy_context().run, bring, item))
                if len(running) >= PARTS_AT_ONCE:
                    now, running = wait(running, return_when=FIRST_COMPLETED)
                    ended += now
                    if any(future.exception() is not None for future in now):
                        break
        finally:
            ended += wait(running).done
        return [future.result() for future in ended]


def _packer(target: UploadTarget, source: ShardSource, upload: Upload) -> Packer:
    """Return what goes on behind the frames that are there."""
    assert upload.encoding is not None
    before = stored_of(upload.codec, upload.done, target.content, upload.element_size)
    donor = upload.donor
    return Packer(
        upload.encoding,
        source,
        target.size_bytes,
        frames_of(upload.done),
        len(upload.done),
        ended=is_whole(before, target.content),
        donor=donor.frames_for(target.size_bytes) if donor is not None else None,
    )


@contextmanager
def _released(turn: threading.Semaphore) -> Iterator[None]:
    """Let the next one have its turn afterwards."""
    try:
        yield
    finally:
        turn.release()


def _in_rounds(send: Callable[[], UploadedPart]) -> UploadedPart:
    """Send a part up to ``ROUNDS`` times, as long as the store says that other bytes arrived."""
    for _ in range(ROUNDS - 1):
        with suppress(RemoteDigestError):
            return send()
    return send()
