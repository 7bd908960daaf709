"""The one engine that brings an object to its key, whatever its bytes are of.

An object is a row of *spans*: a shard, the pieces of an object of the S3 door, the members of a
pack, or what is sent again by a repair. Its *target* says whether its key may be written, and
recognises it there; its *journal* remembers an upload in parts from one try to the next.

Small objects go in one conditional put, larger ones in parts; compressed where that pays, which is
decided before an upload begins and holds for all of it. Nothing is sent that fails its digest here,
and nothing counts as sent before a read-side call has confirmed it. No condition protects a
multipart upload, so the target looks at the key before the first byte and again before the parts
become an object. Parts that were finished before a crash are not sent again.

Several parts go at once. Of raw bytes each part stands alone; frames are packed in turn, as where
one begins depends on those before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import TypeVar

from cachetier_client.bucket_format.stored import (
    Codec,
    Stored,
    is_worthwhile,
    limit_bytes,
)
from cachetier_client.bucket_format.uploads import (
    LARGE_PART_BYTES,
    PART_BYTES,
    SINGLE_PUT_BYTES,
    UploadedPart,
    UploadPartRange,
    compressed_metadata,
    packed_upload_part_bytes_for,
    upload_part_bytes_for,
)
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, joined

from cachetier.codec.codecs import content_headers
from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.buffers import PIECE_BYTES, Buffers
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.encoding import Encoding, PlainPaysError
from cachetier.drain.upload.frame_packer import Copied, Packed, Packer
from cachetier.drain.upload.journal import (
    Journal,
    contiguous,
    frames_of,
    is_whole,
    sent_before,
    stored_of,
    whole_frames,
)
from cachetier.drain.upload.part_room import GivenBackError, PartRoom
from cachetier.drain.upload.server_copies import Ask, Copies, Donor, nobody
from cachetier.drain.upload.source import InlineSource, ShardSource
from cachetier.drain.upload.target import (
    RefusedKeyError,
    UploadTarget,
    VerifiedObject,
    abort_replaced,
    noticing_blocked,
)
from cachetier.errors import (
    CopiesRefusedError,
    PreconditionFailedError,
    RemoteDigestError,
    SourceChangedError,
    StoppingError,
    TransientError,
    UploadGoneError,
)
from cachetier.local.catalog.rows import UploadRecord
from cachetier.model import composing
from cachetier.model.composing import SourcePiece
from cachetier.model.compression import Method
from cachetier.remote.base import IF_ABSENT, Body, Condition, CopyRange, Metadata, ObjectStore
from cachetier.remote.fair_slots import FairSlots

ROUNDS = 3
MADE_AT_MOST = 6
PARTS_AT_ONCE = 8
PACKED_AT_ONCE = 2
PIECES_BUDGET_BYTES = PARTS_AT_ONCE * PIECE_BYTES
# What would be compressed is stored raw only if so much of it need not be sent at all.
RAW_DONOR_SHARE = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UploadContext:
    """The state that all uploads to one store share.

    Args:
        store: Where to.
        buffers: Lends memory to read and compress into.
        threads: Runs the parts of all uploads; without them the caller sends one after the other.
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
        streams = self.store.keeps_digests and part.is_blocks_of(size_bytes)
        if streams or isinstance(source, InlineSource):
            yield source.stream(part, self.pieces.lend)
            return
        with self.buffers.lend(part.room_bytes) as buffer:
            yield source.read(part, buffer)

    def each_part(self, bring: Callable[[Item], Result], parts: Iterable[Item]) -> list[Result]:
        """Bring ``parts``, some at once; after the first error the others end, and it is raised."""

        def until_stopped() -> Iterator[Item]:
            for part in parts:
                self.go_on()
                yield part

        if self.threads is None:
            return [bring(part) for part in until_stopped()]
        return self.slots.each(self.threads, bring, until_stopped())

    def go_on(self) -> None:
        """Raise StoppingError if no more parts are to be begun."""
        if self.stopping():
            raise StoppingError("the drain stops")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that follow each other in an object; ``open`` lends them, each time that they are read.

    Raises DamagedError if they are not what was committed, NotFoundError if they are gone.
    """

    size_bytes: int
    open: Callable[[], AbstractContextManager[ShardSource]]

    @classmethod
    def of(cls, size_bytes: int, source: ShardSource) -> Span:
        """Return the span of bytes that are open already."""
        return cls(size_bytes, lambda: nullcontext(source))


class Upload:
    """One object on its way to its key."""

    def __init__(
        self,
        context: UploadContext,
        target: UploadTarget,
        spans: Sequence[Span],
        journal: Journal | None = None,
        ask: Ask = nobody,
    ) -> None:
        """An upload of ``spans`` in a row; ``ask`` names a donor of one that is a shard."""
        self._context = context
        self._store = context.store
        self._target = target
        self._spans = spans
        self._journal = journal or Journal()
        self._ask = ask
        self._again = self._journal.record.upload_id is not None  # it was sent, or tried, before
        self._answered: str | None = None  # the ETag of the last write, as its answer said
        # Of an upload in parts: its frames, what it copies from, and the parts that are there.
        self._encoding: Encoding | None = None
        self._donor: Donor | None = None
        self._done: list[UploadedPart] = []

    def send(self) -> VerifiedObject:
        """Bring the object to its key, and return what lies there, verified.

        Raises:
            ConflictError: Something else lies there; it was left alone. So does what ``target``
                raises besides.
            DamagedError: The local bytes are not what was committed; none of the damage was sent.
            NotFoundError: They are gone, or not wanted any more.
            StoppingError: The drain stops; a multipart upload can go on later.
            RemoteError: Try again later.
        """
        in_parts = len(self._spans) > 1 or self._target.size_bytes > SINGLE_PUT_BYTES
        return self._send_in_parts() if in_parts else self.put()

    def send_ahead(self) -> None:
        """Bring all parts, without making them an object; raises as ``send``."""
        self._in_rounds(lambda parts: parts)

    def _look(self, sent: Stored | None = None) -> VerifiedObject | Condition:
        return self._target.look(self._store, self._context.buffers.lend, sent, self._answered)

    # --- in one put ------------------------------------------------------------------------------

    def put(self) -> VerifiedObject:
        """Bring an object of one span to its key in one request; raises as ``send``."""
        target = self._target
        condition, refused = target.first_condition, False
        for _ in range(ROUNDS):
            refused = False
            # Perhaps our own success whose reply was lost; else the next round mends it.
            with self._body() as (body, sent, metadata), suppress(RemoteDigestError):
                try:
                    self._answered = self._store.put(
                        target.key,
                        body,
                        digest=sent.digest,
                        metadata=metadata,
                        condition=condition,
                        headers={**target.headers, **content_headers(sent.codec)},
                    ).etag
                except PreconditionFailedError:
                    refused = condition == IF_ABSENT
            found = self._look(sent)
            if isinstance(found, VerifiedObject):
                return found
            condition = found
        if refused and condition == IF_ABSENT:
            raise RefusedKeyError(target.key)
        raise RemoteDigestError(
            f"the store returns other bytes for {target.key} than were sent", key=target.key
        )

    @contextmanager
    def _body(self) -> Iterator[tuple[Body, Stored, Metadata]]:
        """Yield what to put: frames where that pays, else the raw bytes."""
        target, (span,) = self._target, self._spans
        size_bytes = span.size_bytes
        with span.open() as source:
            encoding = self._chosen(source)
            if encoding is not None:
                room = min(packed_upload_part_bytes_for(size_bytes), limit_bytes(size_bytes))
                with closing(PartRoom(self._context.buffers, room, lasting=True)) as memory:
                    packer = Packer(encoding, source, size_bytes)
                    with stopwatch.phase(stopwatch.COMPRESS):
                        packed = packer.next_part(memory)
                    if packer.ended and is_worthwhile(memory.size_bytes, size_bytes):
                        how = encoding.codec, encoding.element_size
                        part = packed.part
                        sent = Stored(how[0], part.size_bytes, part.digest, part.frames, how[1])
                        yield memory, sent, self._metadata(*how)
                        return
            whole = UploadPartRange(1, 0, size_bytes)
            with self._context.body(source, whole, size_bytes) as (body, _):
                yield body, Stored.raw(target.content), target.metadata

    def _chosen(self, source: ShardSource) -> Encoding | None:
        chooser = self._context.chooser
        return chooser.choose(self._target, source) if chooser is not None else None

    def _metadata(self, codec: Codec, element_size: int) -> Metadata:
        target = self._target
        if codec is Codec.RAW:
            return target.metadata
        return compressed_metadata(target.metadata, target.size_bytes, codec, element_size)

    # --- in parts --------------------------------------------------------------------------------

    def _send_in_parts(self) -> VerifiedObject:
        target, copies = self._target, self._context.copies
        found = self._look(sent_before(self._journal, target.content))
        if isinstance(found, VerifiedObject):
            if self._journal.record.upload_id is not None:
                self._abort()
            return found
        self._donor = copies.find(target, self._ask) if copies is not None else None
        return self._in_rounds(self.complete)

    def _in_rounds(self, finish: Callable[[list[UploadedPart]], Result | None]) -> Result:
        """Send all parts until ``finish`` makes something of them; an upload that fails goes."""
        plain, copies = False, self._context.copies
        for _ in range(ROUNDS):
            if not self._resume():
                self.begin(plain=plain)
            try:
                made = finish(self._send_missing())
            except (SourceChangedError, CopiesRefusedError) as error:
                if copies is not None and isinstance(error, CopiesRefusedError):
                    copies.refused(error)
                self._donor = None  # what is there stays, and the rest is sent
                continue
            except UploadGoneError:
                self._give_up()
                continue
            except PlainPaysError:
                made, plain = None, True
            if made is not None:
                return made
            self._give_up()
            self._donor = None  # it has frames, or may have been other bytes than were recorded
        key = self._target.key
        raise RemoteDigestError(f"the store returns other bytes for {key} than were sent", key=key)

    def complete(self, parts: Sequence[UploadedPart]) -> VerifiedObject | None:
        """Make the parts an object; return what lies there, verified, if that is it."""
        target, record = self._target, self._journal.record
        sent = stored_of(record.codec, parts, target.content, record.element_size)
        found, completed = self._look(sent), False
        if isinstance(found, Condition):
            # Gone: perhaps completed by a call whose reply was lost; or one of its parts is.
            blocked = noticing_blocked(self._store, target.key)
            with (
                suppress(UploadGoneError, RemoteDigestError),
                blocked if self._again or not target.is_contended else nullcontext(),
            ):
                self._answered = self._store.complete_upload(
                    target.key, self._upload_id, parts, digest=sent.digest
                ).etag
                completed = True
            found = self._look(sent)
        if isinstance(found, Condition):
            return None
        if not completed or target.is_contended:
            self._abort()  # the store does not know it by now, unless it was another's
        return found

    @property
    def _upload_id(self) -> str:
        upload_id = self._journal.record.upload_id
        assert upload_id is not None
        return upload_id

    @property
    def _part_bytes(self) -> int:
        part_bytes = self._journal.record.part_bytes
        assert part_bytes is not None
        return part_bytes

    def _abort(self) -> None:
        self._store.abort_upload(self._target.key, self._upload_id)

    def _give_up(self) -> None:
        """Leave nothing of an upload that cannot be completed, whatever is left of it."""
        self._abort()
        self._journal.gone()

    # --- which upload ----------------------------------------------------------------------------

    def _resume(self) -> bool:
        """Go on with the upload begun before and the parts that the store really has, if any."""
        target, journal, chooser = self._target, self._journal, self._context.chooser
        record = journal.record
        if record.upload_id is None or record.part_bytes is None:
            return False
        if record.codec is not Codec.RAW and chooser is None:  # one that cannot make frames
            self._give_up()
            return False
        try:
            listed = self._store.list_parts(target.key, record.upload_id)
        except UploadGoneError:
            journal.gone()
            return False
        how, self._encoding = (record.codec, record.element_size), None
        if record.codec is not Codec.RAW and chooser is not None:
            self._encoding = chooser.follow(target, *how)
        if self._donor and not _is_useful(target, self._donor, how, record.part_bytes):
            self._donor = None
        recorded = journal.parts()
        self._done = [part for part in recorded if is_listed(part, listed)]
        self._done = whole_frames(self._done) if self._encoding is not None else self._plan()[0]
        if len(self._done) < len(recorded):
            # A part that is sent again must not be taken for an old one.
            journal.begun(record)
            for part in self._done:
                journal.part_done(part)
            journal.flush()
        return True

    def begin(self, *, plain: bool = False) -> None:
        """Begin an upload in parts; a ``plain`` one has no frames and copies nothing."""
        target, usual_bytes = self._target, self._context.usual_part_bytes()
        if not self._store.keeps_digests:  # each part is checked in memory before it is sent
            usual_bytes = min(usual_bytes, LARGE_PART_BYTES)
        how = (None, None) if plain else self._way(self._donor, usual_bytes)
        self._encoding, self._donor, self._done = *how, []
        codec, element_size = Codec.RAW, 0
        if self._encoding is not None:
            codec, element_size = self._encoding.codec, self._encoding.element_size
        part_bytes = _part_bytes_for(target.size_bytes, usual_bytes, codec, self._donor)
        headers = {**target.headers, **content_headers(codec)}
        metadata = self._metadata(codec, element_size)
        upload_id = self._store.create_upload(target.key, metadata, headers)
        try:
            self._journal.begun(UploadRecord(upload_id, part_bytes, codec, element_size))
        except BaseException:
            self._store.abort_upload(target.key, upload_id)
            raise

    def _way(self, donor: Donor | None, usual_bytes: int) -> tuple[Encoding | None, Donor | None]:
        """Return how a shard is stored whose upload begins, and from what it is put together."""
        target, chooser = self._target, self._context.chooser
        if donor is not None:
            how = donor.stored.codec, donor.stored.element_size
            part_bytes = _part_bytes_for(target.size_bytes, usual_bytes, how[0], donor)
            if how == (Codec.RAW, 0):
                if _is_useful(target, donor, how, part_bytes):
                    return None, donor
            elif chooser is not None and _is_useful(target, donor, how, part_bytes):
                encoding = chooser.may_follow(target, *how)
                if encoding is not None:
                    return encoding, donor
        if target.mode.method is Method.OFF:
            return None, None
        with self._spans[0].open() as source:
            return self._chosen(source), None

    # --- raw bytes -------------------------------------------------------------------------------

    def _send_missing(self) -> list[UploadedPart]:
        """Bring what the upload lacks, and return all its parts.

        Raises:
            SourceChangedError: The donor is not what it was: go on without it.
            CopiesRefusedError: The store does not copy: go on without a donor.
        """
        try:
            return self._send_raw() if self._encoding is None else self._send_packed()
        finally:
            self._journal.flush()

    def _plan(self) -> tuple[list[UploadedPart], list[SourcePiece]]:
        """Return which parts of a raw upload stay, and what it lacks.

        What is there without a gap stays; of what comes behind, the parts that the plan has too.
        """
        kept, lacking = contiguous(self._done), []
        there = {(part.number, part.raw_start, part.raw_bytes): part for part in self._done}
        for piece in self._pieces_behind(kept):
            part = there.get((piece.number, piece.start, piece.size_bytes))
            if part is None:
                lacking.append(piece)
            else:
                kept.append(part)
        return kept, lacking

    def _pieces_behind(self, kept: Sequence[UploadedPart]) -> Iterable[SourcePiece]:
        """Return the parts that come behind those: a span each, or one that is alone, cut."""
        number = len(kept) + 1
        if len(self._spans) > 1:
            sizes = [span.size_bytes for span in self._spans]
            starts = enumerate(accumulate(sizes, initial=0), 1)
            planned = [SourcePiece(*at, size) for at, size in zip(starts, sizes, strict=False)]
            return planned[number - 1 :]
        start = kept[-1].raw_start + kept[-1].raw_bytes if kept else 0
        unchanged = self._donor.unchanged if self._donor is not None else ()
        size_bytes = self._target.size_bytes
        return composing.pieces(size_bytes, self._part_bytes, unchanged, number=number, start=start)

    def _send_raw(self) -> list[UploadedPart]:
        def bring(piece: SourcePiece) -> UploadedPart:
            self._context.go_on()
            part = self._copy_piece(piece) if piece.copied else self._send_piece(piece)
            return self._finished(replace(part, raw_start=piece.start, raw_bytes=piece.size_bytes))

        kept, lacking = self._plan()
        return [*kept, *self._context.each_part(bring, lacking)]

    def _send_piece(self, piece: UploadPartRange) -> UploadedPart:
        span = self._spans[0]
        if len(self._spans) > 1:
            span, piece = self._spans[piece.number - 1], replace(piece, start=0)

        def send() -> UploadedPart:
            with (
                span.open() as source,  # each time: it may go bad here
                self._context.body(source, piece, span.size_bytes) as sent,
            ):
                return self.send_part(piece.number, *sent)

        return in_rounds(send)

    def _copy_piece(self, piece: SourcePiece) -> UploadedPart:
        """Copy what the donor has; read here is only what is left of a cut block."""
        first, within = divmod(piece.start, BLOCK_BYTES)
        digests = self._target.content.block_digests[first : first + piece.blocks]
        touched = list(zip(digests, block_lengths(piece.size_bytes + within), strict=True))
        if within:
            edge = UploadPartRange(piece.number, piece.start, BLOCK_BYTES - within)
            lent = self._context.buffers.lend(edge.room_bytes)
            with self._spans[0].open() as source, lent as buffer:
                _, digest = source.read(edge, buffer)
            touched[0] = digest, edge.size_bytes
        part = UploadedPart(piece.number, "", piece.size_bytes, joined(touched))
        return self._copy(part, piece.start)

    # --- frames ----------------------------------------------------------------------------------

    def _send_packed(self) -> list[UploadedPart]:
        """Bring the frames behind those that are there: in turn, and in parallel to the store."""
        with self._spans[0].open() as source:
            packer, turn = self._packer(source), threading.Semaphore()

            def turns() -> Iterator[None]:
                while turn.acquire() and not packer.ended:
                    yield

            def bring(_turn: None) -> UploadedPart:
                made: Copied | Packed
                try:
                    made = packer.next_copied() or self._made(packer.next_part)
                finally:
                    turn.release()
                if isinstance(made, Copied):
                    sent = self._copy(made.part, made.start)
                else:
                    sent = self._send_made(packer, made)
                return self._finished(replace(made.part, etag=sent.etag))

            return [*self._done, *self._context.each_part(bring, turns())]

    def _packer(self, source: ShardSource) -> Packer:
        """Return what goes on behind the frames that are there."""
        encoding, done, content = self._encoding, self._done, self._target.content
        assert encoding is not None
        before = stored_of(encoding.codec, done, content, encoding.element_size)
        donor = self._donor
        return Packer(
            encoding,
            source,
            content.size_bytes,
            frames_of(done),
            len(done),
            ended=is_whole(before, content),
            donor=donor.frames_for(content.size_bytes) if donor is not None else None,
        )

    def _made(self, fill: Callable[[PartRoom], Packed]) -> Packed:
        with self._context.packing:
            room = PartRoom(self._context.buffers, self._part_bytes)
            try:
                with stopwatch.phase(stopwatch.COMPRESS):
                    return fill(room)
            except BaseException:
                room.close()
                raise

    def _send_made(self, packer: Packer, made: Packed) -> UploadedPart:
        """Send a part of frames; one that failed, and was given back meanwhile, is made again."""
        number, digest = made.part.number, made.part.digest
        for again in range(MADE_AT_MOST):
            if again:
                self._context.go_on()
                made = self._made(partial(packer.again, made))
            with closing(made.body) as body, suppress(GivenBackError):
                return in_rounds(partial(self.send_part, number, body, digest))
        raise TransientError(f"part {number} could not be sent")

    # --- both ------------------------------------------------------------------------------------

    def _finished(self, part: UploadedPart) -> UploadedPart:
        """Remember a part, and return it."""
        self._journal.part_done(part)
        return part

    def send_part(self, number: int, body: Body, digest: int) -> UploadedPart:
        """Send one part of the upload that was begun, and return it as the store has it."""
        return self._store.upload_part(
            self._target.key, self._upload_id, number, body, digest=digest
        )

    def _copy(self, part: UploadedPart, start: int) -> UploadedPart:
        """Copy a part that the donor has at ``start``, and return it as the store has it."""
        donor, copies = self._donor, self._context.copies
        assert donor is not None and copies is not None  # else no plan has anything to copy
        source = CopyRange(donor.key, donor.etag, start, part.size_bytes)
        key, upload_id = self._target.key, self._upload_id
        try:
            part = self._store.copy_part(key, upload_id, part.number, source, digest=part.digest)
        except RemoteDigestError as error:
            raise SourceChangedError(error.message, key=source.key) from error
        copies.copied(part.size_bytes)
        return part


@dataclass(frozen=True, slots=True)
class Uploader:
    """Uploads shards to one store. Thread-safe."""

    context: UploadContext

    def upload(
        self, target: UploadTarget, source: ShardSource, journal: Journal, ask: Ask = nobody
    ) -> Stored:
        """Return how the remote stores the shard, verified; ``ask`` names a donor.

        Raises as ``Upload.send``; after NotFoundError ``clear_away`` is next.
        """
        abort_replaced(self.context.store, target.key, target.replaced.uploads)
        span = Span.of(target.size_bytes, source)
        return Upload(self.context, target, [span], journal, ask).send().stored

    def clear_away(self, target: UploadTarget, upload_id: str | None) -> None:
        """Remove what was sent of a shard that is not wanted any more."""
        store = self.context.store
        if upload_id is not None:
            store.abort_upload(target.key, upload_id)
        info = store.head(target.key)
        if info is not None and target.wrote(info) and not target.is_fixed():
            store.delete(target.key)


def _part_bytes_for(size_bytes: int, usual_bytes: int, codec: Codec, donor: Donor | None) -> int:
    if codec is not Codec.RAW:
        return packed_upload_part_bytes_for(size_bytes, usual_bytes)
    if donor is not None:
        return composing.composed_upload_part_bytes_for(size_bytes, usual_bytes)
    return upload_part_bytes_for(size_bytes, usual_bytes)


def _is_useful(target: UploadTarget, donor: Donor, how: tuple[Codec, int], part_bytes: int) -> bool:
    """Return whether an upload stored like ``how`` gains by what it can copy."""
    stored = donor.stored
    if (stored.codec, stored.element_size) != how:
        return False
    if stored.codec is not Codec.RAW:
        runs = [run.size_bytes for run in donor.frames_for(target.size_bytes).runs()]
        return composing.are_runs_worthwhile(runs, part_bytes)
    plan = tuple(composing.pieces(target.size_bytes, part_bytes, donor.unchanged))
    copied_bytes = sum(piece.size_bytes for piece in plan if piece.copied)
    if target.mode.method is not Method.OFF and copied_bytes < RAW_DONOR_SHARE * target.size_bytes:
        return False
    return composing.is_plan_worthwhile(plan, target.size_bytes, part_bytes)


def is_listed(part: UploadedPart, listed: dict[int, tuple[str, int]]) -> bool:
    """Return whether the store has a part as it was recorded."""
    etag, size_bytes = listed.get(part.number, ("", -1))
    return etag.strip('"') == part.etag.strip('"') and size_bytes == part.size_bytes


def in_rounds(send: Callable[[], UploadedPart]) -> UploadedPart:
    """Send a part up to ``ROUNDS`` times, as long as the store says that other bytes arrived."""
    for _ in range(ROUNDS - 1):
        with suppress(RemoteDigestError):
            return send()
    return send()
