"""Compress a shard on its way: blocks to frames in parallel, frames in order to parts.

A frame is one block, read and checked like any other, compressed in a compute slot, and decoded
again at once: what is sent decodes to the block's digest, or is not sent. The memory that all
uploads share is bounded: one block, one frame and one context for each compressing thread, beside
the part that is being filled.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from cachetier_client.digests import digest_of, joined

from cachetier.codec.frames import FrameDecoder, FrameEncoder, encoder_bytes
from cachetier.codec.seek_table import encode_table
from cachetier.drain.source import Source
from cachetier.errors import CachetierError, IntegrityError
from cachetier.model.shard import BLOCK_BYTES, blocks_of
from cachetier.model.stored import FRAME_LIMIT_BYTES, Frame, is_worthwhile
from cachetier.model.uploads import PartRange

# Of one upload: a second core helps a lone shard, more would wait for their turn in the part.
FRAMES_AT_ONCE = 2
# Contexts of high levels are large: 64 MiB at zstd:15.
CONTEXTS_BYTES = 72 << 20
# Keeps the report of one part small; so many frames have more than the 5 MiB that S3 wants.
FRAMES_A_PART = 1 << 16
SAMPLED_FROM_BLOCKS = 16


class Compressor:
    """Turns blocks into frames on a few threads of its own. Thread-safe."""

    def __init__(
        self,
        level: int,
        threads: int,
        slot: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Make one; each frame is compressed inside ``slot()``."""
        affordable = max(1, CONTEXTS_BYTES // max(1, encoder_bytes(level)))
        self._level = level
        self._slot = slot
        self._pool = ThreadPoolExecutor(min(threads, affordable), thread_name_prefix="drain-zstd")
        self._benches = threading.local()

    def submit(self, source: Source, size_bytes: int, block: int) -> Future[bytes]:
        """Begin to turn one block of a shard of ``size_bytes`` into a frame.

        The future raises DamagedError if the local bytes fail their digest.
        """
        start = block * BLOCK_BYTES
        part = PartRange(1, start, min(BLOCK_BYTES, size_bytes - start))
        return self._pool.submit(self._compress, source, part)

    def pays(self, source: Source, size_bytes: int) -> bool:
        """Return whether the first block, and of a large shard one in the middle, get smaller."""
        blocks = blocks_of(size_bytes)
        sampled = {0, blocks // 2} if blocks >= SAMPLED_FROM_BLOCKS else {0}
        frames = [self.submit(source, size_bytes, block) for block in sampled]
        wait(frames)  # the caller may close the source
        stored_bytes = sum(len(frame.result()) for frame in frames)
        return is_worthwhile(stored_bytes, min(size_bytes, len(sampled) * BLOCK_BYTES))

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(cancel_futures=True)

    def _compress(self, source: Source, part: PartRange) -> bytes:
        bench = self._bench()
        block, digest = source.read(part, bench.scratch)
        with self._slot():
            frame = bench.encoder.encode(block)
            try:
                sound = digest_of(bench.decoder.decode(frame, part.size_bytes)) == digest
            except IntegrityError:
                sound = False
        if not sound:
            raise CachetierError(
                f"the zstd frame of block {part.first_block} does not decode to it",
                hint="Check this machine's memory; the shard is kept, and tried again.",
            )
        return frame

    def _bench(self) -> _Bench:
        bench: _Bench | None = getattr(self._benches, "bench", None)
        if bench is None:
            memory = memoryview(mmap.mmap(-1, BLOCK_BYTES))
            bench = _Bench(memory, FrameEncoder(self._level), FrameDecoder())
            self._benches.bench = bench
        return bench


@dataclass(frozen=True, slots=True)
class _Bench:
    """What a compressing thread keeps: page-aligned memory for a block, and its contexts."""

    scratch: memoryview
    encoder: FrameEncoder
    decoder: FrameDecoder


@dataclass(frozen=True, slots=True)
class Packed:
    """Whole frames one after the other, perhaps with the seek table behind; ``number`` from 1."""

    number: int
    view: memoryview
    digest: int
    raw_start: int
    raw_bytes: int
    frames: tuple[Frame, ...]


class Packer:
    """Cuts one shard into parts of frames, in order; for one thread at a time."""

    def __init__(
        self,
        compressor: Compressor,
        source: Source,
        size_bytes: int,
        frames: Sequence[Frame] = (),
        parts: int = 0,
        *,
        ended: bool = False,
    ) -> None:
        """Go on behind ``frames``, in so many ``parts``; ``ended`` if the table is there."""
        self._compressor = compressor
        self._source = source
        self._size_bytes = size_bytes
        self._blocks = blocks_of(size_bytes)
        self._frames = list(frames)
        self._parts = parts
        self.ended = ended

    def next_part(self, buffer: memoryview) -> Packed:
        """Fill ``buffer``: with as many frames as surely fit, and the table behind the last one.

        Raises:
            DamagedError: The local bytes fail their digest. Nothing more comes then.
        """
        first = len(self._frames)
        try:
            filled, digest = self._fill(buffer)
        except BaseException:
            self.ended = True
            raise
        frames = tuple(self._frames[first:])
        table = self._table()
        if table and filled + len(table) <= len(buffer):  # else it is a part of its own
            buffer[filled : filled + len(table)] = table
            filled, digest = filled + len(table), digest_of(table, digest)
            self.ended = True
        self._parts += 1
        view = buffer[:filled]
        raw_start = min(first * BLOCK_BYTES, self._size_bytes)
        raw_end = min(len(self._frames) * BLOCK_BYTES, self._size_bytes)
        return Packed(self._parts, view, digest, raw_start, raw_end - raw_start, frames)

    def _fill(self, buffer: memoryview) -> tuple[int, int]:
        """Append frames until none more surely fits; return the bytes filled and their digest."""
        filled, digest, begun = 0, 0, len(self._frames)
        last = min(self._blocks, begun + FRAMES_A_PART)
        pending: deque[Future[bytes]] = deque()
        try:
            while True:
                room = (len(buffer) - filled) // FRAME_LIMIT_BYTES
                while begun < last and len(pending) < min(room, FRAMES_AT_ONCE):
                    pending.append(self._compressor.submit(self._source, self._size_bytes, begun))
                    begun += 1
                if not pending:
                    return filled, digest
                frame = pending.popleft().result()
                buffer[filled : filled + len(frame)] = frame
                made = Frame(len(frame), digest_of(frame))
                digest = joined(((digest, filled), (made.digest, made.size_bytes)))
                filled += made.size_bytes
                self._frames.append(made)
        finally:
            wait(pending)  # nobody may read the source once the caller closes it

    def _table(self) -> bytes:
        """Return the seek table once every frame is there."""
        if len(self._frames) < self._blocks:
            return b""
        return encode_table([frame.size_bytes for frame in self._frames], self._size_bytes)
