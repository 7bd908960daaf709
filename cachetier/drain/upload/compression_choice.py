"""Choose a shard's codec when its upload begins, by its mode and by a sample.

Whether ``auto`` compresses is arithmetic (``worth``) over a sample and the link as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace

from cachetier_client.bucket_format.stored import (
    COMPRESSED_FROM_BYTES,
    ELEMENT_SIZES_OF,
    WORTHWHILE_RATIO,
    Codec,
)
from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.compression_model import (
    CompressionSample,
    LinkRate,
    Means,
    judge,
    together,
)
from cachetier.drain.upload.compressor import Compressor, Recipe
from cachetier.drain.upload.encoding import SAMPLED, AutoEncoding, Encoding
from cachetier.drain.upload.frame_packer import FRAMES_AT_ONCE
from cachetier.drain.upload.source import ShardSource
from cachetier.drain.upload.target import UploadTarget
from cachetier.model.compression import AUTO_LEVEL, CODEC_OF, Method

# Of a large shard more than its first block is sampled: parts of it may be of another kind.
TWO_SAMPLES_BLOCKS, THREE_SAMPLES_BLOCKS = 16, 64


class Chooser:
    """Decides how shards are stored. Thread-safe.

    Args:
        compressor: Makes the frames.
        decisions: Records what ``auto`` decided, and why.
        link: What the link takes now, or None.
        allowed: How many threads may compress now, and how long each has to pause before a
            frame; all of them and not at all without it.
    """

    def __init__(
        self,
        compressor: Compressor,
        decisions: CompressionLog,
        link: Callable[[], LinkRate | None] = lambda: None,
        allowed: Callable[[], tuple[int, float]] | None = None,
    ) -> None:
        self._compressor = compressor
        self._decisions = decisions
        self._link = link
        self._allowed = allowed or (lambda: (compressor.threads, 0.0))

    def choose(self, target: UploadTarget, source: ShardSource) -> Encoding | None:
        """Return how to store a shard whose upload begins; None for plain bytes.

        Raises:
            DamagedError: The local bytes fail their digest.
        """
        mode = target.mode
        if mode.method is Method.OFF or target.size_bytes < COMPRESSED_FROM_BYTES:
            return None
        if mode.method is Method.AUTO:
            return self._decided(target, source)
        encoding = self._encoding(target)
        if target.size_bytes <= SINGLE_PUT_BYTES:
            return encoding  # the whole is judged once it is there
        ratio = self._sample(target, source, replace(encoding.recipe, sampled=True)).ratio
        return encoding if ratio <= WORTHWHILE_RATIO else None

    def follow(self, target: UploadTarget, codec: Codec, element_size: int = 0) -> Encoding:
        """Return how to go on with an upload of frames, whatever the mode says by now."""
        mode = target.mode
        if mode.method is Method.AUTO and codec is Codec.ZSTD:
            return AutoEncoding(self._compressor, target, self.means, self._decisions)
        level = mode.level or AUTO_LEVEL
        return Encoding(self._compressor, Recipe(level, element_size, codec=codec))

    def may_follow(
        self, target: UploadTarget, codec: Codec, element_size: int = 0
    ) -> Encoding | None:
        """Return how to store a shard like an object of frames; None if its mode forbids it."""
        if target.mode.method is Method.OFF or target.size_bytes < COMPRESSED_FROM_BYTES:
            return None
        wanted = self._encoding(target)
        if (wanted.codec, wanted.element_size) != (codec, element_size):
            return None
        return self.follow(target, codec, element_size)

    def means(self) -> Means:
        """Return what ``auto`` has to work with now."""
        allowed, pause_seconds = self._allowed()
        busy = max(FRAMES_AT_ONCE, self._compressor.begun)
        threads = max(1, min(allowed, self._compressor.threads, busy))
        return Means(self._link(), threads, pause_seconds / BLOCK_BYTES)

    def _encoding(self, target: UploadTarget) -> Encoding:
        """Return what the mode asks for, if it pays."""
        mode, element_size = target.mode, target.facts.element_size
        codec = CODEC_OF[mode.method]
        if element_size not in ELEMENT_SIZES_OF[codec]:
            element_size = 0  # a codec that needs elements cannot do without
            codec = codec if 0 in ELEMENT_SIZES_OF[codec] else Codec.ZSTD
        return Encoding(self._compressor, Recipe(mode.level, element_size, codec=codec))

    def _decided(self, target: UploadTarget, source: ShardSource) -> Encoding | None:
        """Sample, and do the arithmetic of ``auto``."""
        sample = self._sample(target, source, SAMPLED)
        verdict = judge(sample, self.means())
        self._decisions.note(target.run, verdict)
        if verdict.sure and not verdict.compress:
            self._decisions.count(compressed=False, blocks=blocks_of(target.size_bytes))
            return None
        return AutoEncoding(self._compressor, target, self.means, self._decisions, sample)

    def _sample(
        self, target: UploadTarget, source: ShardSource, recipe: Recipe
    ) -> CompressionSample:
        """Return what compressing some of a few blocks gives, the first among them."""
        size_bytes, blocks = target.size_bytes, blocks_of(target.size_bytes)
        sampled = {0}
        if blocks >= THREE_SAMPLES_BLOCKS:
            sampled |= {blocks // 3, 2 * blocks // 3}
        elif blocks >= TWO_SAMPLES_BLOCKS:
            sampled |= {blocks // 2}
        made = [self._compressor.submit(source, size_bytes, block, recipe) for block in sampled]
        wait(made)  # the caller may close the source
        samples = [sample for each in made if (sample := each.result().sample) is not None]
        return together(samples)
