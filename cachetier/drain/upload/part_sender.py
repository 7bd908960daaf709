"""Send the upload parts of one upload: read or packed and sent, or copied inside the bucket.

Several go at once. Of raw bytes each part stands alone; frames are packed in turn, as where one
begins depends on those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import PART_BYTES, UploadedPart, UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, joined

from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.buffers import PIECE_BYTES, Buffers
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.encoding import Encoding
from cachetier.drain.upload.frame_packer import Copied, Packed, Packer
from cachetier.drain.upload.part_room import GivenBackError, PartRoom
from cachetier.drain.upload.progress import (
    UploadProgress,
    contiguous,
    frames_of,
    is_whole,
    stored_of,
)
from cachetier.drain.upload.server_copies import Copies, Donor
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget
from cachetier.errors import (
    RemoteDigestError,
    SourceChangedError,
    StoppingError,
    TransientError,
)
from cachetier.model import composing
from cachetier.model.composing import SourcePiece
from cachetier.remote.base import Body, CopyRange, ObjectStore
from cachetier.remote.fair_slots import FairSlots

ROUNDS = 3
MADE_AT_MOST = 6
PARTS_AT_ONCE = 8
PACKED_AT_ONCE = 2
PIECES_BUDGET_BYTES = PARTS_AT_ONCE * PIECE_BYTES

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UploadContext:
    """What all uploads to one store share.

    Args:
        store: Where to.
        buffers: Lends memory to read and compress into.
        threads: Runs the parts of all uploads; None where everything goes in one put.
        stopping: Whether no more parts are to be begun.
        chooser: Says how each shard is stored; without one it is stored raw.
        usual_part_bytes: The size of parts that suits the link now.
        copies: Finds bytes that the bucket has already; without it every byte is sent.
        pieces: Lends memory for what is read while it is sent.
        slots: Says how many of ``threads`` each upload may use.
        packing: Lets so many uploads make frames at once; more would only hold memory.
    """

    store: ObjectStore
    buffers: Buffers
    threads: Executor | None = None
    stopping: Callable[[], bool] = lambda: False
    chooser: Chooser | None = None
    usual_part_bytes: Callable[[], int] = lambda: PART_BYTES
    copies: Copies | None = None
    pieces: Buffers = field(default_factory=lambda: Buffers(PIECES_BUDGET_BYTES))
    slots: FairSlots = field(default_factory=lambda: FairSlots(lambda: PARTS_AT_ONCE))
    packing: threading.Semaphore = field(
        default_factory=lambda: threading.Semaphore(PACKED_AT_ONCE)
    )

    @contextmanager
    def body(
        self, source: ShardSource, part: UploadPartRange, size_bytes: int
    ) -> Iterator[tuple[Body, int]]:
        """Yield the body of a part of a shard of ``size_bytes``, and its digest.

        A store that judges no digest gets what was checked before, not on the way.
        """
        if self.store.keeps_digests and part.is_blocks_of(size_bytes):
            yield source.stream(part, self.pieces.lend)
            return
        with self.buffers.lend(part.room_bytes) as buffer:
            yield source.read(part, buffer)

    def each_part(self, bring: Callable[[Item], Result], parts: Iterable[Item]) -> list[Result]:
        """Bring ``parts``, some at once; after the first error the others end, and it is raised."""
        assert self.threads is not None

        def until_stopped() -> Iterator[Item]:
            for part in parts:
                self.go_on()
                yield part

        return self.slots.each(self.threads, bring, until_stopped())

    def go_on(self) -> None:
        """Raise StoppingError if no more parts are to be begun."""
        if self.stopping():
            raise StoppingError("the drain stops")


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload under way, with the parts it has.

    ``encoding`` is None for plain bytes; a ``donor`` is stored in the same way as the upload.
    """

    upload_id: str
    part_bytes: int
    encoding: Encoding | None
    done: list[UploadedPart]
    donor: Donor | None = None

    @property
    def codec(self) -> Codec:
        return self.encoding.codec if self.encoding is not None else Codec.RAW

    @property
    def element_size(self) -> int:
        return self.encoding.element_size if self.encoding is not None else 0


def raw_plan(upload: Upload, size_bytes: int) -> tuple[list[UploadedPart], list[SourcePiece]]:
    """Return which parts of a raw upload stay, and what it lacks.

    What is there without a gap stays; of what comes behind, the parts that the plan has as well.
    """
    kept = contiguous(upload.done)
    start = kept[-1].raw_start + kept[-1].raw_bytes if kept else 0
    unchanged = upload.donor.unchanged if upload.donor is not None else ()
    number, part_bytes = len(kept) + 1, upload.part_bytes
    there = {(sent.number, sent.raw_start, sent.raw_bytes): sent for sent in upload.done}
    lacking = []
    for piece in composing.pieces(size_bytes, part_bytes, unchanged, number=number, start=start):
        sent = there.get((piece.number, piece.start, piece.size_bytes))
        if sent is None:
            lacking.append(piece)
        else:
            kept.append(sent)
    return kept, lacking


class PartSender:
    """Brings the parts that one upload lacks."""

    def __init__(
        self,
        context: UploadContext,
        target: UploadTarget,
        source: ShardSource,
        progress: UploadProgress,
        upload: Upload,
    ) -> None:
        self._context = context
        self._store = context.store
        self._target = target
        self._source = source
        self._progress = progress
        self._upload = upload

    def send_missing(self) -> list[UploadedPart]:
        """Bring what the upload lacks, and return all its parts.

        Raises:
            SourceChangedError: The donor is not what it was: go on without it.
            CopiesRefusedError: The store does not copy: go on without a donor.
        """
        try:
            return self._send_raw() if self._upload.encoding is None else self._send_packed()
        finally:
            self._progress.flush()

    # --- raw bytes -------------------------------------------------------------------------------

    def _send_raw(self) -> list[UploadedPart]:
        def bring(piece: SourcePiece) -> UploadedPart:
            self._context.go_on()
            part = self._copy_piece(piece) if piece.copied else self._send_piece(piece)
            sent = replace(part, raw_start=piece.start, raw_bytes=piece.size_bytes)
            self._progress.part_done(sent)
            return sent

        kept, lacking = raw_plan(self._upload, self._target.size_bytes)
        return [*kept, *self._context.each_part(bring, lacking)]

    def _send_piece(self, piece: SourcePiece) -> UploadedPart:
        def send() -> UploadedPart:
            # Each time: it may go bad here.
            with self._context.body(self._source, piece, self._target.size_bytes) as sent:
                return self._send(piece.number, *sent)

        return in_rounds(send)

    def _copy_piece(self, piece: SourcePiece) -> UploadedPart:
        """Copy what the donor has; read here is only what is left of a cut block."""
        first, within = divmod(piece.start, BLOCK_BYTES)
        digests = self._target.content.block_digests[first : first + piece.blocks]
        touched = list(zip(digests, block_lengths(piece.size_bytes + within), strict=True))
        if within:
            edge = UploadPartRange(piece.number, piece.start, BLOCK_BYTES - within)
            with self._context.buffers.lend(edge.room_bytes) as buffer:
                _, digest = self._source.read(edge, buffer)
            touched[0] = digest, edge.size_bytes
        return self._copy(piece.number, piece.start, piece.size_bytes, joined(touched))

    # --- frames ----------------------------------------------------------------------------------

    def _send_packed(self) -> list[UploadedPart]:
        """Bring the frames behind those that are there: in turn, and in parallel to the store."""
        packer = self._packer()
        turn = threading.Semaphore()

        def turns() -> Iterator[None]:
            while turn.acquire() and not packer.ended:
                yield

        def bring(_turn: None) -> UploadedPart:
            made: Copied | Packed
            with _released(turn):
                made = packer.next_copied() or self._made(packer.next_part)
            if isinstance(made, Copied):
                part = self._copy(made.number, made.start, made.size_bytes, made.digest)
            else:
                part = self._send_made(packer, made)
            raw = made.raw_start, made.raw_bytes, made.frames
            sent = replace(part, raw_start=raw[0], raw_bytes=raw[1], frames=raw[2])
            self._progress.part_done(sent)
            return sent

        return [*self._upload.done, *self._context.each_part(bring, turns())]

    def _packer(self) -> Packer:
        """Return what goes on behind the frames that are there."""
        upload, content = self._upload, self._target.content
        assert upload.encoding is not None
        before = stored_of(upload.codec, upload.done, content, upload.element_size)
        donor = upload.donor
        return Packer(
            upload.encoding,
            self._source,
            content.size_bytes,
            frames_of(upload.done),
            len(upload.done),
            ended=is_whole(before, content),
            donor=donor.frames_for(content.size_bytes) if donor is not None else None,
        )

    def _made(self, fill: Callable[[PartRoom], Packed]) -> Packed:
        with self._context.packing:
            room = PartRoom(self._context.buffers, self._upload.part_bytes)
            try:
                with stopwatch.phase(stopwatch.COMPRESS):
                    return fill(room)
            except BaseException:
                room.close()
                raise

    def _send_made(self, packer: Packer, made: Packed) -> UploadedPart:
        """Send a part of frames; one that failed, and was given back meanwhile, is made again."""
        for number in range(MADE_AT_MOST):
            if number:
                self._context.go_on()
                made = self._made(partial(packer.again, made))
            with closing(made.body) as body, suppress(GivenBackError):
                return in_rounds(partial(self._send, made.number, body, made.digest))
        raise TransientError(f"part {made.number} did not get through")

    # --- both ------------------------------------------------------------------------------------

    def _send(self, number: int, body: Body, digest: int) -> UploadedPart:
        key, upload_id = self._target.key, self._upload.upload_id
        return self._store.upload_part(key, upload_id, number, body, digest=digest)

    def _copy(self, number: int, start: int, size_bytes: int, digest: int) -> UploadedPart:
        """Copy bytes of the donor, which has them at ``start``."""
        donor, copies = self._upload.donor, self._context.copies
        assert donor is not None and copies is not None  # else no plan has anything to copy
        source = CopyRange(donor.key, donor.etag, start, size_bytes)
        key, upload_id = self._target.key, self._upload.upload_id
        try:
            part = self._store.copy_part(key, upload_id, number, source, digest=digest)
        except RemoteDigestError as error:
            raise SourceChangedError(error.message, key=source.key) from error
        copies.copied(part.size_bytes)
        return part


@contextmanager
def _released(turn: threading.Semaphore) -> Iterator[None]:
    """Let the next one have its turn afterwards."""
    try:
        yield
    finally:
        turn.release()


def in_rounds(send: Callable[[], UploadedPart]) -> UploadedPart:
    """Send a part up to ``ROUNDS`` times, as long as the store says that other bytes arrived."""
    for _ in range(ROUNDS - 1):
        with suppress(RemoteDigestError):
            return send()
    return send()
