"""Compress blocks to frames on a few threads; each frame is decoded again and compared.

A frame is decoded again at once: what is sent decodes to the block's digest, or is not sent. The
memory that all uploads share is bounded: a few blocks for each thread, and contexts within a limit.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache

from cachetier_client.bucket_format.stored import ELEMENT_SIZES, Codec
from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.codec import planes
from cachetier.codec.codecs import CODECS, Decode, Encoders
from cachetier.drain.upload.compression_model import CompressionSample
from cachetier.drain.upload.source import ShardSource
from cachetier.errors import CachetierError, IntegrityError

CONTEXTS_BYTES = 72 << 20
# Beside those in their slots: they read the next blocks meanwhile.
READ_AHEAD = 2
# From the middle of a block: enough to tell what all of it would give, in a quarter of the time.
SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a block becomes a frame: at level 0 it is only stored in one.

    With an ``element_size`` it is split into planes first. ``sampled`` stores it, too, and
    compresses some of it to see what that gives.
    """

    level: int
    element_size: int = 0
    sampled: bool = False
    codec: Codec = Codec.ZSTD


@dataclass(frozen=True, slots=True)
class Made:
    """A frame, and what compressing gave: None where it only stores its block, and nothing was.

    The seconds of the sample are those in a slot; proving what was compressed is part of them.
    """

    frame: bytes
    raw_bytes: int
    compressed: bool
    sample: CompressionSample | None


class Compressor:
    """Turns blocks into frames on a few threads of its own. Thread-safe."""

    def __init__(
        self,
        threads: int,
        slot: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """A compressor that works inside ``slot()``, which lets ``threads`` in at once."""
        self.threads = threads
        self._slot = slot
        self._clock = clock
        self._encoders = Encoders(CONTEXTS_BYTES)
        self._pool = ThreadPoolExecutor(threads + READ_AHEAD, thread_name_prefix="drain-zstd")
        self._bench = _Bench()
        self._lock = threading.Lock()
        self._begun = 0

    @property
    def begun(self) -> int:
        """How many frames are under way or wait for a thread."""
        return self._begun

    def submit(
        self, source: ShardSource, size_bytes: int, block: int, recipe: Recipe
    ) -> Future[Made]:
        """Begin to turn one block of a shard of ``size_bytes`` into a frame.

        The future raises DamagedError if the local bytes fail their digest.
        """
        start = block * BLOCK_BYTES
        part = UploadPartRange(1, start, min(BLOCK_BYTES, size_bytes - start))
        with self._lock:
            self._begun += 1
        future = self._pool.submit(copy_context().run, self._make, source, part, recipe)
        future.add_done_callback(self._ended)
        return future

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(cancel_futures=True)

    def _ended(self, _future: Future[Made]) -> None:
        with self._lock:
            self._begun -= 1

    def _make(self, source: ShardSource, part: UploadPartRange, recipe: Recipe) -> Made:
        codec = CODECS[recipe.codec]
        decode = self._bench.decoder(codec.decoder)
        block, digest = source.read(part, self._bench.scratch)
        if recipe.level and not recipe.sampled:
            frame, sample = self._compressed(decode, block, digest, recipe)
            return Made(frame, len(block), True, sample)
        frame = codec.stored_frame(block)
        _prove(decode, frame, len(block), digest, 0)
        if not recipe.sampled:
            return Made(frame, len(block), False, None)
        some = _middle(block)
        _, sample = self._compressed(decode, some, digest_of(some), recipe)
        return Made(frame, len(block), False, sample)

    def _compressed(
        self, decode: Decode, block: memoryview, digest: int, recipe: Recipe
    ) -> tuple[bytes, CompressionSample]:
        """Return the frame of ``block``, which decodes to ``digest``, and what that gave."""
        element_size = recipe.element_size
        with self._encoders.lend(CODECS[recipe.codec], recipe.level) as encode, self._slot():
            began_at = self._clock()
            frame = encode(planes.split(block, element_size) if element_size else block)
            _prove(decode, frame, len(block), digest, element_size)
            seconds = self._clock() - began_at
        return frame, CompressionSample(len(frame) / len(block), seconds / len(block))


class _Bench(threading.local):
    """The memory of each thread: a page-aligned block, and its decoders."""

    def __init__(self) -> None:
        self.scratch = memoryview(mmap.mmap(-1, BLOCK_BYTES))
        # By what makes them: codecs that have that in common share a decoder's memory.
        self.decoder: Callable[[Callable[[], Decode]], Decode] = cache(lambda make: make())


def _middle(block: memoryview) -> memoryview:
    """Return some of a block, from the first byte of an element on."""
    size_bytes = min(len(block), SAMPLE_BYTES)
    start = (len(block) - size_bytes) // 2
    start -= start % max(ELEMENT_SIZES)
    return block[start : start + size_bytes]


def _prove(decode: Decode, frame: bytes, raw_bytes: int, digest: int, element_size: int) -> None:
    """Make sure that ``frame`` decodes to the block it was made of.

    Raises:
        CachetierError: It does not.
    """
    try:
        sound = digest_of(decode(frame, raw_bytes, element_size)) == digest
    except IntegrityError:
        sound = False
    if not sound:
        raise CachetierError(
            "a frame does not decode to the block it was made of",
            hint="Check this machine's memory; the shard is kept, and tried again.",
        )
