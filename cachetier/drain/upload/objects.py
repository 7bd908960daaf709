"""Bring one version of an object of the S3 door to its key, and make it visible there.

Its bytes go as they are, under the headers and the metadata that its client gave it. One piece that
is not large goes in one conditional put; several pieces go as one upload part each, so that the
object has the parts of the upload that it was, and none is read twice.

A version replaces only what is older than itself: see ``model.superseding``. No condition protects
an upload or a deletion, so what lies there is looked at first, and again before the parts become an
object. Our own write, whose reply was lost, is recognised by the stamp that it bears.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import NoReturn

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    ETAG_KEY,
    SINGLE_PUT_BYTES,
    STORE_KEY,
    VERSION_KEY,
    ObjectInfo,
    UploadedPart,
    UploadPartRange,
    upload_part_bytes_for,
)
from cachetier_client.io.digests import to_hex

from cachetier.drain.upload.multipart import is_listed
from cachetier.drain.upload.part_sender import ROUNDS, UploadContext, in_rounds
from cachetier.drain.upload.progress import UploadProgress
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import (
    ConflictError,
    RefusedKeyError,
    is_verified,
    noticing_blocked,
)
from cachetier.errors import (
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    UploadGoneError,
)
from cachetier.model.objects import NOTHING_THERE, WHATEVER_IS_THERE
from cachetier.model.superseding import MARGIN_SECONDS, Stamp, Verdict, judge
from cachetier.remote.base import IF_ABSENT, Condition, ObjectStore, if_match


class SupersededError(Exception):
    """Something newer than a version lies under its key, or was deleted there."""


@dataclass(frozen=True, slots=True)
class PieceToSend:
    """One piece of a version; ``version`` is that of the shard that has its bytes."""

    version: int
    size_bytes: int
    digest: int


@dataclass(frozen=True, slots=True)
class ObjectTarget:
    """What is to lie under a key, and over what: ``base`` is None where that is not known.

    ``conditional``: the client said what it may replace. ``margin_seconds``: see ``judge``. ``saw``
    hears of a version of our own that this directory has not had yet. ``is_deleted`` is asked
    whether somebody deleted the key since, before anything is written where nothing lies.
    """

    key: str
    etag: str
    size_bytes: int
    digest: int
    headers: Mapping[str, str]
    user_metadata: Mapping[str, str]
    stamp: Stamp
    base: str | None = None
    conditional: bool = False
    margin_seconds: float = MARGIN_SECONDS
    saw: Callable[[int], None] = lambda _version: None
    is_deleted: Callable[[], bool] = lambda: False

    @property
    def metadata(self) -> dict[str, str]:
        """The client's, and ours."""
        return {**self.user_metadata, **self._identity, **self.stamp.as_metadata(self.key)}

    @property
    def _identity(self) -> dict[str, str]:
        return {ETAG_KEY: self.etag, DIGEST_KEY: to_hex(self.digest)}

    def is_folder(self, info: ObjectInfo) -> bool:
        """Return whether this is the mark of a folder, and ``info`` one too.

        pyarrow, for one, puts such marks. Stores that have folders themselves, as SeaweedFS, keep
        neither their metadata nor a digest; of no bytes there is none to hold against.
        """
        return self.key.endswith("/") and not self.size_bytes and not info.size_bytes

    def wrote(self, info: ObjectInfo) -> bool:
        """Return whether ``info`` is this very version, as far as its metadata can say.

        Objects that were put before there were stamps have none.
        """
        ours, found = self._identity, info.metadata
        if STORE_KEY in found:
            stamp = self.stamp.as_metadata(self.key)
            ours |= {name: stamp[name] for name in (STORE_KEY, VERSION_KEY)}
        same = all(found.get(name) == value for name, value in ours.items())
        return same and info.size_bytes == self.size_bytes

    @property
    def first_condition(self) -> Condition | None:
        """What to write under before anybody looked: most keys are new.

        Raises:
            SupersededError: As ``over`` where nothing lies.
        """
        if self.base == WHATEVER_IS_THERE:
            return None
        return if_match(self.base) if self.base else self._if_absent()

    def over(self, info: ObjectInfo | None) -> Condition:
        """Return the condition to replace ``info`` under.

        Raises:
            SupersededError: It is newer, or was deleted since.
            ConflictError: It is not what a conditional put may replace.
        """
        if info is None:
            if self.conditional and self.base not in (None, NOTHING_THERE, WHATEVER_IS_THERE):
                raise ConflictError(f"{self.key} holds nothing in the bucket, {self._expected}")
            return self._if_absent()
        there = Stamp.of(info)
        if self.stamp.is_behind(there):
            self.saw(there.version)
        replaces = self.base in (info.etag, WHATEVER_IS_THERE)
        verdict = judge(
            self.stamp,
            there,
            replaces=replaces,
            conditional=self.conditional,
            margin_seconds=self.margin_seconds,
        )
        if verdict is Verdict.CONFLICT:
            what = f"{self.key} holds {info.etag} in the bucket"
            raise ConflictError(f"{what}, {self._expected}: somebody else changed it")
        if verdict is Verdict.SUPERSEDED:
            behind = self.stamp.is_behind(there)
            why = "this node put it before its disk went back in time" if behind else _WHY
            raise SupersededError(f"the bucket has {info.etag} under its key: {why}")
        return if_match(info.etag)

    def _if_absent(self) -> Condition:
        if self.base != WHATEVER_IS_THERE and self.is_deleted():
            raise SupersededError("its key was deleted since")
        return IF_ABSENT

    @property
    def _expected(self) -> str:
        return f"where {self.base} was before" if self.base else "where nothing was before"


_WHY = "it was put later, or nobody can say which of the two was"


OpenPiece = Callable[[PieceToSend], AbstractContextManager[ShardSource]]


@dataclass(frozen=True, slots=True)
class _PlannedUploadPart:
    """An upload part: a range of a piece, which begins ``start`` bytes inside of the object."""

    piece: PieceToSend
    start: int
    range: UploadPartRange

    @property
    def begin(self) -> int:
        return self.start + self.range.start

    def is_sent(self, sent: UploadedPart | None) -> bool:
        """Return whether ``sent`` is this part."""
        which = self.begin, self.range.size_bytes
        return sent is not None and (sent.raw_start, sent.raw_bytes) == which


class ObjectUpload:
    """One version on its way; ``context`` names the store of its bucket."""

    def __init__(
        self,
        context: UploadContext,
        target: ObjectTarget,
        pieces: Sequence[PieceToSend],
        open_piece: OpenPiece,
        progress: UploadProgress,
    ) -> None:
        self._context = context
        self._store = context.store
        self._target = target
        self._pieces = pieces
        self._open_piece = open_piece
        self._progress = progress
        self._again = progress.upload_id is not None  # it was sent, or tried, before
        self._answered: str | None = None  # the ETag of the last write, as its answer said

    def show(self) -> str:
        """Make the version visible, and return the ETag that the bucket gave it, verified.

        Raises:
            SupersededError: Something newer lies there; it was left alone.
            ConflictError: A person must decide; what lies there was left alone.
            DamagedError: A piece is not what was committed; none of the damage was sent.
            NotFoundError: The version is gone, or one of its pieces.
            StoppingError: The drain stops; a multipart upload can go on later.
            RemoteError: Try again later.
        """
        in_parts = len(self._pieces) > 1 or self._target.size_bytes > SINGLE_PUT_BYTES
        return (self._show_in_parts() if in_parts else self._put()).etag

    def refuse_damaged(self) -> NoReturn:
        """Let a version go whose bytes are damaged here, if the bucket makes up for it.

        Raises:
            SupersededError: It has the version, or something newer.
            ConflictError, RemoteError: As ``show``.
        """
        if isinstance(self._look(), ObjectInfo):
            raise SupersededError("the bucket has it, and its bytes here are damaged")
        raise ConflictError("its bytes are damaged here, and the bucket does not have it")

    def send_ahead(self) -> None:
        """Bring all parts of the version, without making it visible; raises as ``show``."""
        for _ in range(ROUNDS):
            upload_id, done = self._resumed() or self._begun()
            with suppress(UploadGoneError):
                self._send_missing(upload_id, done)
                return
            self._give_up(upload_id)
        raise RemoteDigestError(f"{self._target.key} loses its upload", key=self._target.key)

    # --- what lies there -------------------------------------------------------------------------

    def _look(self) -> ObjectInfo | Condition:
        """Return the version as it lies there, verified; or the condition to write it under.

        Raises:
            SupersededError, ConflictError: See ``ObjectTarget.over``.
        """
        target = self._target
        info = confirmed_head(self._store, target.key, (self._answered, target.base))
        if info is not None and target.is_folder(info):
            return info
        if info is not None and target.wrote(info):
            lend = self._context.buffers.lend
            if is_verified(self._store, info, target.size_bytes, target.digest, lend):
                return info
            return if_match(info.etag)  # ours, and damaged on the way
        return target.over(info)

    # --- in one put ------------------------------------------------------------------------------

    def _put(self) -> ObjectInfo:
        target, (piece,) = self._target, self._pieces
        whole = UploadPartRange(1, 0, piece.size_bytes)
        condition, refused = target.first_condition, False
        for _ in range(ROUNDS):
            refused = False
            with (
                self._open_piece(piece) as source,
                self._context.body(source, whole, piece.size_bytes) as (body, digest),
                # Perhaps our own success whose reply was lost; else the next round mends it.
                suppress(RemoteDigestError),
            ):
                try:
                    self._answered = self._store.put(
                        target.key,
                        body,
                        digest=digest,
                        metadata=target.metadata,
                        condition=condition,
                        headers=target.headers,
                    ).etag
                except PreconditionFailedError:
                    refused = condition == IF_ABSENT
            found = self._look()
            if isinstance(found, ObjectInfo):
                return found
            condition = found
        if refused and condition == IF_ABSENT:
            raise RefusedKeyError(target.key)
        raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    # --- in parts --------------------------------------------------------------------------------

    def _show_in_parts(self) -> ObjectInfo:
        key = self._target.key
        found = self._look()
        if isinstance(found, ObjectInfo):
            if self._progress.upload_id is not None:
                self._store.abort_upload(key, self._progress.upload_id)
            return found
        for _ in range(ROUNDS):
            upload_id, done = self._resumed() or self._begun()
            with suppress(UploadGoneError):
                shown = self._completed(upload_id, self._send_missing(upload_id, done))
                if shown is not None:
                    return shown
            self._give_up(upload_id)
        raise RemoteDigestError(f"{key} does not keep what was sent", key=key)

    def _completed(self, upload_id: str, parts: Sequence[UploadedPart]) -> ObjectInfo | None:
        """Make the parts an object; return it, verified, if it is there."""
        target = self._target
        found = self._look()
        if not isinstance(found, ObjectInfo):
            # Gone: perhaps completed by a call whose reply was lost; or one of its parts is.
            # A store that fails once may be away; it is asked again before a person is.
            blocked = noticing_blocked(self._store, target.key) if self._again else nullcontext()
            with suppress(UploadGoneError, RemoteDigestError), blocked:
                self._answered = self._store.complete_upload(
                    target.key, upload_id, parts, digest=target.digest
                ).etag
            found = self._look()
        if isinstance(found, ObjectInfo):
            self._store.abort_upload(target.key, upload_id)  # unknown by now, unless it was another
            return found
        return None

    def _give_up(self, upload_id: str) -> None:
        """Leave nothing of an upload that cannot be completed, whatever is left of it."""
        self._store.abort_upload(self._target.key, upload_id)
        self._progress.gone()

    def _begun(self) -> tuple[str, list[UploadedPart]]:
        target = self._target
        usual_bytes = self._context.usual_part_bytes()
        upload_id = self._store.create_upload(target.key, target.metadata, target.headers)
        try:
            part_bytes = upload_part_bytes_for(target.size_bytes, usual_bytes)
            self._progress.begun(upload_id, part_bytes, Codec.RAW)
        except BaseException:
            self._store.abort_upload(target.key, upload_id)
            raise
        return upload_id, []

    def _resumed(self) -> tuple[str, list[UploadedPart]] | None:
        """Return the upload begun before with the parts the store really has, if it is there."""
        upload_id = self._progress.upload_id
        if upload_id is None or self._progress.part_bytes is None:
            return None
        try:
            listed = self._store.list_parts(self._target.key, upload_id)
        except UploadGoneError:
            self._progress.gone()
            return None
        return upload_id, [each for each in self._progress.parts() if is_listed(each, listed)]

    def _send_missing(self, upload_id: str, done: Sequence[UploadedPart]) -> list[UploadedPart]:
        """Bring what the upload lacks, some at once, and return all its parts in order."""
        context, key = self._context, self._target.key

        def bring(part: _PlannedUploadPart) -> UploadedPart:
            def send() -> UploadedPart:
                with (
                    self._open_piece(part.piece) as source,  # each time: it may go bad here
                    context.body(source, part.range, part.piece.size_bytes) as (body, digest),
                ):
                    number = part.range.number
                    return self._store.upload_part(key, upload_id, number, body, digest=digest)

            raw_bytes = part.range.size_bytes
            sent = replace(in_rounds(send), raw_start=part.begin, raw_bytes=raw_bytes)
            self._progress.part_done(sent)
            return sent

        plan = tuple(self._parts())
        there = {sent.number: sent for sent in done}
        lacking = [part for part in plan if not part.is_sent(there.get(part.range.number))]
        for part in lacking:
            there.pop(part.range.number, None)
        try:
            sent = context.each_part(bring, lacking)
        finally:
            self._progress.flush()
        return sorted([*there.values(), *sent], key=lambda part: part.number)

    def _parts(self) -> Iterator[_PlannedUploadPart]:
        """Yield the upload's parts: a piece each, or a piece that is alone, cut."""
        if len(self._pieces) > 1:
            start = 0
            for number, piece in enumerate(self._pieces, 1):
                yield _PlannedUploadPart(piece, start, UploadPartRange(number, 0, piece.size_bytes))
                start += piece.size_bytes
            return
        (piece,), part_bytes = self._pieces, self._progress.part_bytes
        assert part_bytes is not None
        for number, start in enumerate(range(0, piece.size_bytes, part_bytes), 1):
            size_bytes = min(part_bytes, piece.size_bytes - start)
            yield _PlannedUploadPart(piece, 0, UploadPartRange(number, start, size_bytes))


def delete_object(context: UploadContext, target: ObjectTarget) -> None:
    """Delete what a deletion may, and look that it is gone; what is gone already is deleted.

    Only the version that was looked at goes: a deletion that arrives late, long after its caller
    gave up, would take what was put since.

    Raises:
        SupersededError: Something newer lies there; it was left alone.
        RemoteError: Try again later.
    """
    for _ in range(ROUNDS):
        info = confirmed_head(context.store, target.key, (target.base,))
        if info is None:
            return
        target.over(info)
        with suppress(PreconditionFailedError):
            context.store.delete(target.key, info.etag)
    raise RemoteError(f"{target.key} stays in the bucket, deleted as it was", key=target.key)


def confirmed_head(
    store: ObjectStore, key: str, known: Collection[str | None]
) -> ObjectInfo | None:
    """Return what lies under a key, as two answers say it: by it is decided, and it is remembered.

    A wrong ETag would be a conflict with nobody. That nothing is there a HEAD says of a bucket that
    is not there, too: a deletion would be taken for done. ``known`` are ETags that were said
    before, or that nothing was there.

    Raises:
        RemoteDigestError: Two answers differ: try again later.
        RemoteError: There is no second answer.
    """
    info = store.head(key)
    if (NOTHING_THERE if info is None else info.etag) in known:
        return info
    if info is not None:
        again = store.head(key)
        agrees = again is not None and again.etag == info.etag
    else:  # the mark of a folder is listed in ways of its own
        listed = () if key.endswith("/") else store.list_page(key, "", "", 1).objects
        agrees = not any(each.key == key for each in listed)
    if not agrees:
        raise RemoteDigestError(f"{key} is described in two ways", key=key)
    return info
