"""Pack frames in order into upload parts, with the seek table at the end.

Runs of frames that a donor has are left out, to be copied: each of them is a part of its own.

The memory is that of the parts, and what ``compressor`` holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES, StoredFrame
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of, digest_of, joined

from cachetier.codec.seek_table import encode_table
from cachetier.drain.upload.encoding import Encoding
from cachetier.drain.upload.part_room import PartRoom
from cachetier.drain.upload.source import ShardSource
from cachetier.errors import CachetierError
from cachetier.model.composing import DonorFrames, FrameRun

# Of one upload: two are compressed while the next is read; more would wait for their turn.
FRAMES_AT_ONCE = 3
# Keeps the report of one part small; so many frames have more than the 5 MiB that S3 wants.
FRAMES_A_PART = 1 << 16


@dataclass(frozen=True, slots=True)
class Packed:
    """Whole frames one after the other, and the seek table, if any, behind: a part to be sent."""

    part: UploadedPart
    body: PartRoom
    table: bytes


@dataclass(frozen=True, slots=True)
class Copied:
    """Whole frames of the donor, perhaps with its seek table behind, and where they lie there."""

    part: UploadedPart
    start: int


class Packer:
    """Cuts one shard into parts of frames, in order; for one thread at a time.

    Where the frames of ``donor`` can be copied next, ``next_copied`` says so; else ``next_part``
    packs what comes.
    """

    def __init__(
        self,
        made: Encoding,
        source: ShardSource,
        size_bytes: int,
        frames: Sequence[StoredFrame] = (),
        parts: int = 0,
        *,
        ended: bool = False,
        donor: DonorFrames | None = None,
    ) -> None:
        """Go on behind ``frames``, in so many ``parts``; ``ended`` if the table is there."""
        self._donor = donor
        self._made = made
        self._source = source
        self._size_bytes = size_bytes
        self._blocks = blocks_of(size_bytes)
        self._frames = list(frames)
        self._parts = parts
        self._tail: FrameRun | None = None
        self.ended = ended

    def next_part(self, room: PartRoom) -> Packed:
        """Fill ``room``: with as many frames as surely fit, and the table behind the last one.

        Raises:
            DamagedError: The local bytes fail their digest. Nothing more comes then.
        """
        first = len(self._frames)
        limit_bytes = self._made.part_room(room.room_bytes)
        try:
            digest = self._fill(room, limit_bytes)
        except BaseException:
            self.ended = True
            raise
        frames = tuple(self._frames[first:])
        table = self._table()
        if room.size_bytes + len(table) > limit_bytes:
            table = b""  # it is a part of its own
        room.append(table)
        room.trim()
        self.ended = bool(table)
        part = self._part_of(first, room.size_bytes, digest_of(table, digest), frames)
        return Packed(part, room, table)

    def again(self, made: Packed, room: PartRoom) -> Packed:
        """Fill ``room`` with the bytes of ``made`` once more.

        Raises:
            DamagedError: The local bytes fail their digest.
        """
        for block, before in enumerate(made.part.frames, made.part.raw_start // BLOCK_BYTES):
            frame = self._made.again(self._source, self._size_bytes, block).result()
            if StoredFrame(len(frame), digest_of(frame)) != before:
                raise CachetierError(
                    "a block became another zstd frame than before",
                    hint="Check this machine's memory; the shard is kept, and tried again.",
                )
            room.append(memoryview(frame)[: made.body.size_bytes - room.size_bytes])
        room.append(made.table)
        room.trim()
        return replace(made, body=room)

    def next_copied(self) -> Copied | None:
        """Pass over the frames that can be copied next; None if there are none."""
        first = len(self._frames)
        run, tail = self._next_run(first)
        if run is None or self._donor is None:
            return None
        self._frames += run.frames
        digest = joined((frame.digest, frame.size_bytes) for frame in (*tail, *run.frames))
        size_bytes, table = run.size_bytes, self._table()
        if table and self._donor.has_table_of(self._frames):
            size_bytes, digest = size_bytes + len(table), digest_of(table, digest)
            self.ended = True
        return Copied(self._part_of(first, size_bytes, digest, run.frames), run.start)

    def _next_run(self, first: int) -> tuple[FrameRun | None, tuple[StoredFrame, ...]]:
        """Return what can be copied next, and what of it is left of a frame that was cut."""
        tail, self._tail = self._tail, None
        if self._donor is None or tail is None:
            return self._run_at(first), ()
        run = self._donor.run_at(first, tail.size_bytes)
        assert run is not None  # or nothing would have been cut
        whole = FrameRun(tail.start, tail.size_bytes + run.size_bytes, run.frames)
        return whole, tail.frames

    def _head_of(self, frame: memoryview, made: StoredFrame, filled: int) -> memoryview:
        """Return how much of the next frame the part takes that has ``filled`` bytes so far.

        All of it; or, if the donor has the very same frame in a run, what the part lacks to the
        least size: the rest is then copied with the run.
        """
        run = self._run_at(len(self._frames))
        if self._donor is None or run is None or run.frames[0] != made:
            return frame
        lacking = self._donor.least_bytes - filled
        if not 0 < lacking < len(frame) or run.size_bytes - lacking < self._donor.least_bytes:
            return frame
        rest = frame[lacking:]
        self._tail = FrameRun(
            run.start + lacking, len(rest), (StoredFrame(len(rest), digest_of(rest)),)
        )
        return frame[:lacking]

    def _run_at(self, block: int) -> FrameRun | None:
        return self._donor.run_at(block) if self._donor is not None else None

    def _may_end(self, filled: int) -> bool:
        """Return whether a part of so many bytes may have others behind it."""
        return self._donor is not None and filled >= self._donor.least_bytes

    def _part_of(
        self, first: int, size_bytes: int, digest: int, frames: tuple[StoredFrame, ...]
    ) -> UploadedPart:
        """Return the next part: of the blocks from ``first`` to the last one packed."""
        self._parts += 1
        start = min(first * BLOCK_BYTES, self._size_bytes)
        raw_bytes = min(len(self._frames) * BLOCK_BYTES, self._size_bytes) - start
        return UploadedPart(self._parts, "", size_bytes, digest, start, raw_bytes, frames)

    def _fill(self, room: PartRoom, limit_bytes: int) -> int:
        """Append frames until none more surely fits; return the digest of all of them.

        A part that is large enough ends where frames can be copied.
        """
        digest, begun = 0, len(self._frames)
        last = min(self._blocks, begun + FRAMES_A_PART)
        pending: deque[Future[bytes]] = deque()
        try:
            while True:
                filled = room.size_bytes
                fit = (limit_bytes - filled) // FRAME_LIMIT_BYTES
                if not pending and self._may_end(filled) and self._run_at(begun):
                    return digest
                while begun < last and len(pending) < min(fit, FRAMES_AT_ONCE):
                    if pending and (filled or len(pending) > 1) and self._run_at(begun):
                        break  # behind one frame it is wanted for sure, else perhaps not
                    pending.append(self._made.submit(self._source, self._size_bytes, begun))
                    begun += 1
                if not pending:
                    return digest
                frame = memoryview(pending.popleft().result())
                made = StoredFrame(len(frame), digest_of(frame))
                head = self._head_of(frame, made, filled)
                room.append(head)
                head_digest = made.digest if len(head) == len(frame) else digest_of(head)
                digest = joined(((digest, filled), (head_digest, len(head))))
                self._frames.append(made)
                if self._tail is not None:
                    return digest
        finally:
            wait(pending)  # nobody may read the source once the caller closes it

    def _table(self) -> bytes:
        """Return the seek table once every frame is there."""
        if len(self._frames) < self._blocks:
            return b""
        return encode_table([frame.size_bytes for frame in self._frames], self._size_bytes)
