"""The arithmetic of whether compressing makes a shard durable sooner, and its explanation.

Compressing goes on beside sending, so that the slower of the two decides. A raw byte takes ``1 /
link`` seconds; compressed it takes ``ratio / link`` to send, and ``seconds_per_byte / threads`` to
make. As long as nobody knows the link, what shrinks is compressed: the price of that mistake is
bounded by the CPU, that of the other one by nothing.

Source: docs/compression.md, "What auto decides".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cachetier_client.bucket_format.stored import WORTHWHILE_RATIO
from cachetier_client.units import shown_size, shown_span

# What compressing has to take off the time to be worth its CPU.
LEAST_GAIN = 0.05


@dataclass(frozen=True, slots=True)
class CompressionSample:
    """The recent yield of compression.

    Stored by raw bytes, and the seconds of one thread for each.
    """

    ratio: float
    seconds_per_byte: float

    def after(self, newer: CompressionSample, weight: float) -> CompressionSample:
        """Return this with a newer one counted in."""
        return CompressionSample(
            self.ratio + weight * (newer.ratio - self.ratio),
            self.seconds_per_byte + weight * (newer.seconds_per_byte - self.seconds_per_byte),
        )


def together(samples: Sequence[CompressionSample]) -> CompressionSample:
    """Return what ``samples``, one at least, say: their mean ratio, and the best speed.

    A thread that had to wait for a core says little of the next minutes; blocks will tell.
    """
    ratio = sum(sample.ratio for sample in samples) / len(samples)
    return CompressionSample(ratio, min(sample.seconds_per_byte for sample in samples))


@dataclass(frozen=True, slots=True)
class LinkRate:
    """The rate of a link: the best guess, and the highest rate seen."""

    bytes_per_second: float
    seen_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Means:
    """The resources there are now: a link, None where unknown, and threads that may compress."""

    link: LinkRate | None
    threads: int
    pause_seconds_per_byte: float = 0.0


@dataclass(frozen=True, slots=True)
class CompressionVerdict:
    """The decision, and the numbers behind it; ``sure`` if a slower link cannot change it."""

    compress: bool
    sure: bool
    ratio: float
    compress_bytes_per_second: float
    link_bytes_per_second: float | None
    why: str


def judge(sample: CompressionSample, means: Means) -> CompressionVerdict:
    """Return whether to compress what is like ``sample``."""
    seconds_per_byte = (sample.seconds_per_byte + means.pause_seconds_per_byte) / means.threads
    speed, link = 1.0 / max(seconds_per_byte, 1e-12), means.link
    if sample.ratio > WORTHWHILE_RATIO:
        why = f"a sample shrank to {sample.ratio:.2f} of its size only: stored as it is"
        return CompressionVerdict(False, True, sample.ratio, speed, _guess(link), why)
    if link is None:
        why = f"a sample shrank to {sample.ratio:.2f}, and the link's speed is not known yet: "
        return CompressionVerdict(True, False, sample.ratio, speed, None, f"{why}compressed")
    guess = link.bytes_per_second
    raw_seconds, packed_seconds = _times(sample.ratio, seconds_per_byte, guess)
    compress = _pays(sample.ratio, seconds_per_byte, guess)
    why = (
        f"1 GB takes {_shown(1e9 * raw_seconds)} raw on a link of {shown_size(guess)}/s, "
        f"{_shown(1e9 * packed_seconds)} compressed to {sample.ratio:.2f} "
        f"at {shown_size(speed)}/s: {'compressed' if compress else 'stored as it is'}"
    )
    sure = compress or not _pays(sample.ratio, seconds_per_byte, link.seen_bytes_per_second)
    return CompressionVerdict(compress, sure, sample.ratio, speed, guess, why)


def _pays(ratio: float, seconds_per_byte: float, link: float) -> bool:
    raw_seconds, packed_seconds = _times(ratio, seconds_per_byte, link)
    return packed_seconds <= (1.0 - LEAST_GAIN) * raw_seconds


def _times(ratio: float, seconds_per_byte: float, link: float) -> tuple[float, float]:
    """Return the seconds that a raw byte takes on ``link``, as it is and compressed."""
    return 1.0 / link, max(ratio / link, seconds_per_byte)


def _guess(link: LinkRate | None) -> float | None:
    return link.bytes_per_second if link is not None else None


def _shown(seconds: float) -> str:
    return shown_span(seconds) if seconds >= 100 else f"{seconds:.3g} s"
