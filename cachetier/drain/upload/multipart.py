"""The multipart upload of one shard: begin or resume, send what is missing, complete.

No condition protects a multipart upload, so what lies there is looked at before the first byte and
again before the parts become an object. Parts that were finished before a crash are not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cachetier_client.bucket_format.stored import Codec, Stored
from cachetier_client.bucket_format.uploads import (
    UploadedPart,
    compressed_metadata,
    packed_upload_part_bytes_for,
    upload_part_bytes_for,
)

from cachetier.codec.codecs import content_headers
from cachetier.drain.upload.encoding import Encoding, PlainPaysError
from cachetier.drain.upload.part_sender import ROUNDS, PartSender, Upload, UploadContext, raw_plan
from cachetier.drain.upload.progress import (
    UploadProgress,
    sent_before,
    stored_of,
    whole_frames,
)
from cachetier.drain.upload.server_copies import Ask, Donor, nobody
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget, look, noticing_blocked
from cachetier.errors import (
    CopiesRefusedError,
    RemoteDigestError,
    SourceChangedError,
    UploadGoneError,
)
from cachetier.model import composing
from cachetier.model.compression import Method

# What would be compressed is stored raw only if so much of it need not be sent at all.
RAW_DONOR_SHARE = 0.5


class MultipartUpload:
    """One shard on its way in parts."""

    def __init__(
        self,
        context: UploadContext,
        target: UploadTarget,
        source: ShardSource,
        progress: UploadProgress,
        ask: Ask = nobody,
    ) -> None:
        self._context = context
        self._store = context.store
        self._target = target
        self._source = source
        self._progress = progress
        self._ask = ask

    def send(self) -> Stored:
        """Return how the shard is stored, verified; raises as ``Uploader.upload`` does."""
        context, target, progress = self._context, self._target, self._progress
        # Look before any byte is sent: no condition protects a multipart upload.
        found = look(
            context.store,
            target,
            context.buffers.lend,
            sent_before(progress, target.content),
        )
        if isinstance(found, Stored):
            if progress.upload_id is not None:
                self._store.abort_upload(target.key, progress.upload_id)
            return found
        donor = context.copies.find(target, self._ask) if context.copies is not None else None
        plain = False
        for _ in range(ROUNDS):
            upload = self._resume(donor) or self._begin(donor, plain=plain)
            try:
                parts = PartSender(context, target, self._source, progress, upload).send_missing()
            except UploadGoneError:
                progress.gone()
                continue
            except PlainPaysError:
                self._store.abort_upload(target.key, upload.upload_id)
                progress.gone()
                donor, plain = None, True  # the donor has frames
                continue
            except (SourceChangedError, CopiesRefusedError) as error:
                if context.copies is not None and isinstance(error, CopiesRefusedError):
                    context.copies.refused(error)
                donor = None  # what is there stays, and the rest is sent
                continue
            stored = self._complete(upload, parts)
            if stored is not None:
                return stored
            progress.gone()
            donor = None  # it may have been other bytes than were recorded
        raise RemoteDigestError(f"{target.key} does not keep what was sent", key=target.key)

    # --- which upload ----------------------------------------------------------------------------

    def _resume(self, donor: Donor | None) -> Upload | None:
        """Return the upload begun before with the parts the store really has, if it is there."""
        target, progress, chooser = self._target, self._progress, self._context.chooser
        upload_id, part_bytes = progress.upload_id, progress.part_bytes
        if upload_id is None or part_bytes is None:
            return None
        codec, element_size = progress.codec, progress.element_size
        if codec is not Codec.RAW and chooser is None:  # one that cannot make frames
            self._store.abort_upload(target.key, upload_id)
            progress.gone()
            return None
        try:
            listed = self._store.list_parts(target.key, upload_id)
        except UploadGoneError:
            progress.gone()
            return None
        encoding = None
        if codec is not Codec.RAW and chooser is not None:
            encoding = chooser.follow(target, codec, element_size)
        if donor is not None and not _is_useful(target, donor, (codec, element_size), part_bytes):
            donor = None
        recorded = progress.parts()
        done = [sent for sent in recorded if is_listed(sent, listed)]
        upload = Upload(upload_id, part_bytes, encoding, done, donor)
        kept = (
            whole_frames(done) if encoding is not None else raw_plan(upload, target.size_bytes)[0]
        )
        if len(kept) < len(recorded):
            self._forget_others(upload, kept)
        return replace(upload, done=kept)

    def _forget_others(self, upload: Upload, kept: Sequence[UploadedPart]) -> None:
        """Record only ``kept``: a part that is sent anew must not be taken for an old one."""
        progress = self._progress
        progress.begun(upload.upload_id, upload.part_bytes, upload.codec, upload.element_size)
        for sent in kept:
            progress.part_done(sent)
        progress.flush()

    def _begin(self, donor: Donor | None, *, plain: bool = False) -> Upload:
        target, usual_bytes = self._target, self._context.usual_part_bytes()
        encoding, donor = self._way(donor, usual_bytes) if not plain else (None, None)
        codec, element_size, metadata = Codec.RAW, 0, target.metadata
        if encoding is not None:
            codec, element_size = encoding.codec, encoding.element_size
            size_bytes = target.size_bytes
            metadata = compressed_metadata(target.metadata, size_bytes, codec, element_size)
        part_bytes = _part_bytes_for(target.size_bytes, usual_bytes, codec, donor)
        upload_id = self._store.create_upload(target.key, metadata, content_headers(codec))
        try:
            self._progress.begun(upload_id, part_bytes, codec, element_size)
        except BaseException:
            self._store.abort_upload(target.key, upload_id)
            raise
        return Upload(upload_id, part_bytes, encoding, [], donor)

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
        return chooser.choose(target, self._source) if chooser is not None else None, None

    # --- the object ------------------------------------------------------------------------------

    def _complete(self, upload: Upload, parts: Sequence[UploadedPart]) -> Stored | None:
        """Make the parts an object; return how it is stored, verified, if it is there."""
        target, lend = self._target, self._context.buffers.lend
        sent = stored_of(upload.codec, parts, target.content, upload.element_size)
        found = look(self._store, target, lend, sent)
        if isinstance(found, Stored):
            self._store.abort_upload(target.key, upload.upload_id)
            return found
        # Gone: perhaps completed by a call whose reply was lost; or one of its parts is.
        with (
            suppress(UploadGoneError, RemoteDigestError),
            noticing_blocked(self._store, target.key),
        ):
            self._store.complete_upload(target.key, upload.upload_id, parts, digest=sent.digest)
        found = look(self._store, target, lend, sent)
        if isinstance(found, Stored):
            return found
        self._store.abort_upload(target.key, upload.upload_id)
        return None


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
