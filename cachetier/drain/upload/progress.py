"""The progress of a multipart upload, and the object that its upload parts make."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Protocol

from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import joined


class UploadProgress(Protocol):
    """Where a multipart upload is remembered, synced.

    Any of them may raise NotFoundError: the shard was replaced or deleted.
    """

    @property
    def upload_id(self) -> str | None:
        """The upload begun before, if any."""

    @property
    def part_bytes(self) -> int | None:
        """The size of its parts; of compressed ones, the room for each."""

    @property
    def codec(self) -> Codec:
        """How its parts are encoded: all of them the same way."""

    def parts(self) -> list[UploadedPart]:
        """Return its parts that were finished, in order."""

    @property
    def element_size(self) -> int:
        """The size of the elements whose planes its parts hold, or 0."""

    def begun(self, upload_id: str, part_bytes: int, codec: Codec, element_size: int = 0) -> None:
        """Remember a new upload."""

    def part_done(self, part: UploadedPart) -> None:
        """Remember a finished part, soon; called by many threads."""

    def flush(self) -> None:
        """Remember the finished parts now."""

    def gone(self) -> None:
        """Forget the upload."""


def contiguous(parts: Iterable[UploadedPart]) -> list[UploadedPart]:
    """Return the parts from the first on without a gap: where the next frame goes depends on it."""
    kept: list[UploadedPart] = []
    reached = 0
    for sent in sorted(parts, key=lambda sent: sent.number):
        if sent.number != len(kept) + 1 or sent.raw_start != reached:
            break
        kept.append(sent)
        reached += sent.raw_bytes
    return kept


def whole_frames(parts: Iterable[UploadedPart]) -> list[UploadedPart]:
    """Return the parts without a gap, up to the last that ends with a frame: there it goes on."""
    kept = contiguous(parts)
    sizes = accumulate(sent.size_bytes for sent in kept)
    ends = accumulate(sum(frame.size_bytes for frame in sent.frames) for sent in kept)
    whole = [
        number
        for number, (has, needs) in enumerate(zip(sizes, ends, strict=True), 1)
        if has >= needs
    ]
    return kept[: whole[-1]] if whole else []


def frames_of(parts: Iterable[UploadedPart]) -> tuple[StoredFrame, ...]:
    return tuple(frame for sent in parts for frame in sent.frames)


def stored_of(
    codec: Codec, parts: Iterable[UploadedPart], content: Content, element_size: int = 0
) -> Stored:
    """Return what the object of these parts is."""
    if codec is Codec.RAW:
        return Stored.raw(content)
    ordered = sorted(parts, key=lambda sent: sent.number)
    size_bytes = sum(sent.size_bytes for sent in ordered)
    digest = joined((sent.digest, sent.size_bytes) for sent in ordered)
    return Stored(codec, size_bytes, digest, frames_of(ordered), element_size)


def is_whole(stored: Stored, content: Content) -> bool:
    """Return whether ``stored`` is all of a shard, with its seek table."""
    try:
        stored.check(content.size_bytes)
    except ValueError:
        return False
    return True


def sent_before(progress: UploadProgress, content: Content) -> Stored | None:
    """Return what an upload of frames that was sent to its end has made, if it is known."""
    if progress.upload_id is None or progress.codec is Codec.RAW:
        return None
    parts = contiguous(progress.parts())
    stored = stored_of(progress.codec, parts, content, progress.element_size)
    return stored if is_whole(stored, content) else None
