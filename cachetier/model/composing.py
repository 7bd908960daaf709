"""Plan an object's upload parts: which bytes are copied from a donor, which are sent.

A *donor* is an object in the same bucket. What lies in both at the same place is copied there,
range by range; the rest is sent. A part may be copied or sent, never both, and S3 takes parts of
5 MiB and more only: so of raw bytes a sent part takes along what it lacks of the unchanged block
behind it, and frames, which are copied whole, take along the next ones.

A plan is made from left to right and looks back at nothing: going on behind parts that are there,
it comes to the same parts again.

Source: docs/compression.md, "Block copies".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES, StoredFrame
from cachetier_client.bucket_format.uploads import (
    MINIMUM_PART_BYTES,
    PART_LIMIT,
    SINGLE_PUT_BYTES,
    UploadPartRange,
    upload_part_bytes_for,
)
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from cachetier.model.shard import Shard

# What goes in one request anyway is sent: the six of a composed upload cost more than its bytes.
DONOR_FROM_BYTES = SINGLE_PUT_BYTES + 1
# S3 copies up to 5 GiB at once; smaller ones run beside each other, and less is lost with one.
COPY_PART_BYTES = 256 << 20
# What a connection carries while one request more is answered: 35 ms at some 100 MB/s.
REQUEST_BYTES = 4 << 20
# Parts that a composed object may have: some of S3's 10,000 are left for a change of plan.
COMPOSED_PARTS = PART_LIMIT - 1000


Twins = tuple[int, int]  # size and digest of shards with the same bytes


def twins_of(shard: Shard) -> Twins:
    """Return what a shard has in common with its twins."""
    return shard.content.size_bytes, shard.content.digest


def contents_of_twins(shards: Iterable[Shard]) -> set[Twins]:
    """Return what several of ``shards`` have in common, where copying is worth it."""
    large = (shard for shard in shards if shard.content.size_bytes >= DONOR_FROM_BYTES)
    return {twins for twins, count in Counter(map(twins_of, large)).items() if count > 1}


@dataclass(frozen=True, slots=True)
class SourcePiece(UploadPartRange):
    """One part of a composed object: a range of raw bytes, copied from the donor or sent."""

    copied: bool = False


def least_upload_part_bytes(size_bytes: int) -> int:
    """Return what each part but the last has at least, so that there are not too many."""
    return max(MINIMUM_PART_BYTES, -(-size_bytes // COMPOSED_PARTS))


def composed_upload_part_bytes_for(size_bytes: int, usual_bytes: int) -> int:
    """Return the size of a sent part of a composed object: the least one surely ends in it."""
    least = blocks_of(least_upload_part_bytes(size_bytes)) + 1
    return max(upload_part_bytes_for(size_bytes, usual_bytes), least * BLOCK_BYTES)


def pieces(
    size_bytes: int,
    part_bytes: int,
    unchanged: Sequence[bool] = (),
    *,
    number: int = 1,
    start: int = 0,
) -> Iterator[SourcePiece]:
    """Yield the parts of a raw object from ``start`` on, the first of them called ``number``.

    Args:
        size_bytes: Of the object.
        part_bytes: What a sent part has at most.
        unchanged: Which blocks are the donor's; none without a donor.
        number: One more than there are parts before.
        start: Where those end.
    """
    composition = _Composition(size_bytes, part_bytes, unchanged)
    while start < size_bytes:
        end, copied = composition.next_end(start)
        yield SourcePiece(number, start, end - start, copied)
        number, start = number + 1, end


class _Composition:
    """Where the part that begins somewhere ends."""

    def __init__(self, size_bytes: int, part_bytes: int, unchanged: Sequence[bool]) -> None:
        self._size_bytes = size_bytes
        self._part_bytes = part_bytes
        self._least = least_upload_part_bytes(size_bytes)
        self._last_block = BLOCK_BYTES * (blocks_of(size_bytes) - 1)
        fits = part_bytes >= self._least + BLOCK_BYTES
        self._run_ends = _run_ends(unchanged, size_bytes) if fits else [0] * len(unchanged)

    def next_end(self, start: int) -> tuple[int, bool]:
        """Return where the part ends that begins at ``start``, and whether it is copied."""
        run_end = self._run_end(start)
        if self._is_copied(start, run_end):
            return self._copy_end(start, run_end), True
        return self._sent_end(start), False

    def _run_end(self, at: int) -> int:
        """Return where the unchanged bytes around ``at`` end; 0 where they are changed."""
        return self._run_ends[at // BLOCK_BYTES] if self._run_ends else 0

    def _is_copied(self, start: int, end: int) -> bool:
        return end - start >= self._least

    def _copy_end(self, start: int, end: int) -> int:
        """Cut a long run into even parts, at blocks."""
        count = -(-(end - start) // max(COPY_PART_BYTES, self._least + BLOCK_BYTES))
        if count == 1:
            return end
        cut = start + (end - start) // count
        return cut - cut % BLOCK_BYTES

    def _sent_end(self, start: int) -> int:
        """Return the first place where a copied part may begin, or where the part is full."""
        full = start + self._part_bytes
        limit = self._size_bytes if full >= self._size_bytes else full - full % BLOCK_BYTES
        at = start - start % BLOCK_BYTES + BLOCK_BYTES
        while at < limit:
            run_end = self._run_end(at)
            # One that is too short takes along what it lacks; the last block is never cut.
            end = max(at, start + self._least)
            if end <= min(limit, self._last_block) and self._is_copied(end, run_end):
                return end
            at = max(run_end, at + BLOCK_BYTES)
        return limit


def _run_ends(unchanged: Sequence[bool], size_bytes: int) -> list[int]:
    """Return for each block where the unchanged blocks from it on end; 0 for a changed one."""
    ends = [0] * len(unchanged)
    for block in range(len(unchanged) - 1, -1, -1):
        if unchanged[block]:
            follows = ends[block + 1] if block + 1 < len(unchanged) else 0
            ends[block] = follows or min(size_bytes, (block + 1) * BLOCK_BYTES)
    return ends


@dataclass(frozen=True, slots=True)
class FrameRun:
    """Whole frames of the donor, one after the other, and where in the donor they lie."""

    start: int
    size_bytes: int
    frames: tuple[StoredFrame, ...]


class DonorFrames:
    """The frames of a donor, of which those of unchanged blocks may be copied."""

    def __init__(
        self, frames: Sequence[StoredFrame], unchanged: Sequence[bool], raw_bytes: int
    ) -> None:
        self._frames = frames
        self._starts = [0, *accumulate(frame.size_bytes for frame in frames)]
        self.least_bytes = least_upload_part_bytes(raw_bytes)
        # What the shard has behind the donor's last frame is not there to be copied.
        self._run_ends = _run_ends(unchanged, raw_bytes)[: len(frames)]
        self._is_whole = all(unchanged)

    def has_table_of(self, frames: Sequence[StoredFrame]) -> bool:
        """Return whether the seek table of ``frames``, all those of the shard, is the donor's."""
        return self._is_whole and [*frames] == [*self._frames]

    def run_at(self, block: int, more_bytes: int = 0) -> FrameRun | None:
        """Return the frames from ``block`` on that one part may copy; None if they are too few.

        ``more_bytes`` are copied with them.
        """
        if block >= len(self._run_ends):
            return None
        end = blocks_of(self._run_ends[block])
        start = self._starts[block]
        size_bytes = self._starts[max(end, block)] - start
        if size_bytes + more_bytes < self.least_bytes:
            return None
        count = -(-size_bytes // max(COPY_PART_BYTES, self.least_bytes + FRAME_LIMIT_BYTES))
        if count > 1:  # cut into even parts
            end = bisect_left(self._starts, start + size_bytes // count)
        return FrameRun(start, self._starts[end] - start, tuple(self._frames[block:end]))

    def runs(self) -> Iterator[FrameRun]:
        """Yield what can be copied at most, run by run."""
        block = 0
        while block < len(self._frames):
            run = self.run_at(block)
            if run is not None:
                yield run
            block += len(run.frames) if run is not None else 1


def is_worthwhile(copied_bytes: int, more_requests: int) -> bool:
    """Return whether not sending so many bytes is worth so many more requests."""
    return copied_bytes > max(0, more_requests * REQUEST_BYTES)


def is_plan_worthwhile(
    composition: Iterable[SourcePiece], size_bytes: int, part_bytes: int
) -> bool:
    """Return whether ``composition`` is better than sending all ``size_bytes`` in usual parts.

    It needs the requests of its parts, and one to look at the donor.
    """
    parts = tuple(composition)
    copied_bytes = sum(piece.size_bytes for piece in parts if piece.copied)
    usual = -(-size_bytes // part_bytes)
    return is_worthwhile(copied_bytes, len(parts) + 1 - usual)


def are_runs_worthwhile(runs: Sequence[int], part_bytes: int) -> bool:
    """Return whether copying ``runs`` of frames, so many bytes each, is better than sending them.

    Each is a part of its own, and may cut in two the part that it lies in.
    """
    copied_bytes = sum(runs)
    return is_worthwhile(copied_bytes, 2 * len(runs) + 1 - copied_bytes // part_bytes)
