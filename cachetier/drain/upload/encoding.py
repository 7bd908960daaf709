"""The encoding of one upload: every block alike, or each as pays at that moment.

The codec of an upload holds for all of it. What ``auto`` decides again before each block is whether
the block is compressed or only stored in its frame: any zstd decoder reads both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.compression_model import (
    CompressionSample,
    CompressionVerdict,
    Means,
    judge,
)
from cachetier.drain.upload.compressor import Compressor, Made, Recipe
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget
from cachetier.model.compression import AUTO_LEVEL

# One block of so many that are only stored is sampled: what compressing would give may change.
SAMPLED_EVERY = 32
WEIGHT = 0.3  # of the last block in what ``auto`` goes by
# An upload of frames that began when nobody knew the link begins again with plain bytes, which cost
# no copying, as long as not more than this share of it is there.
RESTART_SHARE = 1 / 8
# On a link that nobody knows the first part is small and only stored: it is soon there, and tells
# the speed. What shrinks to less than this compresses too fast to be held up by that.
PROBE_BLOCKS = 2
PROBE_ROOM_BYTES = 3 * BLOCK_BYTES
PROBED_ABOVE_RATIO = 0.1

STORED = Recipe(0)
SAMPLED = Recipe(AUTO_LEVEL, sampled=True)


class PlainPaysError(Exception):
    """Plain bytes are what pays, and hardly any frames were sent: the upload begins again."""


class Encoding:
    """How the blocks of one upload become frames."""

    def __init__(self, compressor: Compressor, recipe: Recipe) -> None:
        self.codec = recipe.codec
        self.element_size = recipe.element_size
        self._compressor = compressor
        self.recipe = recipe
        self._recipes: dict[int, Recipe] = {}  # of the blocks that were begun

    def submit(self, source: ShardSource, size_bytes: int, block: int) -> Future[bytes]:
        """Begin to turn one block of a shard of ``size_bytes`` into a frame.

        The future raises DamagedError if the local bytes fail their digest.
        """
        self._recipes[block] = self._next()
        return self.again(source, size_bytes, block)

    def again(self, source: ShardSource, size_bytes: int, block: int) -> Future[bytes]:
        """Begin to make the frame of a block once more, by the same recipe."""
        frame: Future[bytes] = Future()
        frame.set_running_or_notify_cancel()
        made = self._compressor.submit(source, size_bytes, block, self._recipes[block])
        made.add_done_callback(lambda ended: self._deliver(ended, frame))
        return frame

    def part_room(self, room_bytes: int) -> int:
        """Return how much of so much room the next part may fill: three blocks at least."""
        return room_bytes

    def _next(self) -> Recipe:
        """Return how to make the next frame."""
        return self.recipe

    def _learn(self, made: Made) -> None:
        """Take note of a frame."""

    def _deliver(self, ended: Future[Made], frame: Future[bytes]) -> None:
        if ended.cancelled():
            frame.set_exception(RuntimeError("the compressor was closed"))
        elif (error := ended.exception()) is not None:
            frame.set_exception(error)
        else:
            self._learn(ended.result())
            frame.set_result(ended.result().frame)


class AutoEncoding(Encoding):
    """Compresses the next block if that pays now, else only stores it in a frame."""

    def __init__(
        self,
        compressor: Compressor,
        target: UploadTarget,
        means: Callable[[], Means],
        decisions: CompressionLog,
        sample: CompressionSample | None = None,
    ) -> None:
        """An encoding for an upload of ``target``; without a sample the first block is one."""
        super().__init__(compressor, Recipe(AUTO_LEVEL))
        self._run = target.run
        self._means = means
        self._decisions = decisions
        self._sample = sample
        self._lock = threading.Lock()
        self._compresses = True
        self._stored = 0
        self._in_parts = target.size_bytes > SINGLE_PUT_BYTES
        self._may_restart = self._in_parts and sample is not None and means().link is None
        self._blocks = blocks_of(target.size_bytes)
        self._submitted = 0
        self._probes = PROBE_BLOCKS if self._in_parts else 0

    def part_room(self, room_bytes: int) -> int:
        whole = not self._in_parts or self._means().link is not None
        return room_bytes if whole else min(room_bytes, PROBE_ROOM_BYTES)

    def _is_probing(self) -> bool:
        shrinks_well = self._sample is not None and self._sample.ratio < PROBED_ABOVE_RATIO
        return self._probes > 0 and self._means().link is None and not shrinks_well

    def _next(self) -> Recipe:
        with self._lock:
            self._submitted += 1
            if self._is_probing():
                self._probes -= 1
                return STORED
            if self._sample is None:
                return self.recipe
            verdict = judge(self._sample, self._means())
            self._restart(verdict)
            if verdict.compress is not self._compresses:
                self._compresses = verdict.compress
                self._decisions.note(self._run, verdict)
            self._stored = 0 if verdict.compress else self._stored + 1
            if verdict.compress:
                return self.recipe
            return SAMPLED if self._stored % SAMPLED_EVERY == 0 else STORED

    def _restart(self, verdict: CompressionVerdict) -> None:
        """Raise PlainPaysError if that is so, and early enough."""
        early = self._submitted <= 1 + self._blocks * RESTART_SHARE
        self._may_restart = self._may_restart and early
        if self._may_restart and verdict.sure and not verdict.compress:
            self._decisions.note(self._run, verdict)
            self._decisions.count(compressed=False, blocks=self._blocks)
            raise PlainPaysError

    def _learn(self, made: Made) -> None:
        self._decisions.count(compressed=made.compressed)
        if (newer := made.sample) is not None:
            with self._lock:
                before = self._sample
                self._sample = newer if before is None else before.after(newer, WEIGHT)
