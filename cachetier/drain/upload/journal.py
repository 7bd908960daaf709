"""The journal of an upload in parts, and the object that its parts make."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from itertools import accumulate

from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import joined

from cachetier.drain.serve.service import DrainService
from cachetier.local.catalog.rows import NOTHING_BEGUN, UploadRecord

BUNDLE_PARTS = 8
BUNDLE_FRAMES = 4096
FLUSH_SECONDS = 2.0


class Journal:
    """The state of one upload in parts, as long as this process runs.

    Attributes:
        record: The upload begun before; without its parts.
    """

    def __init__(self, record: UploadRecord = NOTHING_BEGUN) -> None:
        self.record = record
        self._parts: list[UploadedPart] = []

    def parts(self) -> list[UploadedPart]:
        """Return its parts that were finished, in order."""
        return sorted(self._parts, key=lambda part: part.number)

    def begun(self, record: UploadRecord) -> None:
        """Remember a new upload, without any part."""
        self.record, self._parts = record, []

    def part_done(self, part: UploadedPart) -> None:
        """Remember a finished part, soon; called by many threads."""
        self._parts.append(part)

    def flush(self) -> None:
        """Remember the finished parts now."""

    def gone(self) -> None:
        """Forget the upload."""
        self.begun(NOTHING_BEGUN)


class ReportedJournal(Journal):
    """The journal that ``serve`` keeps in the catalog, synced.

    Finished parts are reported in bundles: each report costs a sync, and what a crash forgets is
    only sent again. Any call may raise NotFoundError: the shard was replaced or deleted.
    """

    def __init__(self, serve: DrainService, version: int, record: UploadRecord) -> None:
        super().__init__(record)
        self._serve = serve
        self._version = version
        self._lock = threading.Lock()
        self._flush_at = 0.0

    def parts(self) -> list[UploadedPart]:
        return [*self._serve.finished_parts(self._version)]

    def begun(self, record: UploadRecord) -> None:
        self._serve.upload_begun(self._version, record)
        self.record = record

    def part_done(self, part: UploadedPart) -> None:
        with self._lock:
            self._parts.append(part)
            frames = sum(len(finished.frames) for finished in self._parts)
            many = len(self._parts) >= BUNDLE_PARTS or frames >= BUNDLE_FRAMES
            due = many or time.monotonic() >= self._flush_at
        if due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            finished, self._parts = self._parts, []
            self._flush_at = time.monotonic() + FLUSH_SECONDS
        if finished:
            self._serve.parts_done(self._version, tuple(finished))

    def gone(self) -> None:
        self.record = NOTHING_BEGUN
        self._serve.upload_gone(self._version)


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


def sent_before(journal: Journal, content: Content) -> Stored | None:
    """Return what an upload of frames that was sent to its end has made, if it is known."""
    record = journal.record
    if record.upload_id is None or record.codec is Codec.RAW:
        return None
    stored = stored_of(record.codec, contiguous(journal.parts()), content, record.element_size)
    return stored if is_whole(stored, content) else None
