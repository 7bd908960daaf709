"""Estimate a link's bytes a second from how fast single upload parts went.

While as many parts are under way as may be, their share times their number is what the link takes.
With fewer nobody can tell whether the link or we were the limit: their speed times the number that
there may be is an upper bound, and what was found when the link was full counts as long as it is
fresh. So a guess that is too good fills the link, and thereby corrects itself.

Pure: it is told the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachetier.drain.upload.compression_model import Link

# What is smaller takes as long as its round trip, and tells nothing of the link.
LEAST_BYTES = 1 << 20
FULL_SHARE = 0.75
FRESH_SECONDS = 30.0
WEIGHT = 0.3


@dataclass(slots=True)
class _Mean:
    value: float = 0.0
    at: float | None = None

    def note(self, value: float, now: float) -> None:
        fresh = self.is_fresh(now)
        self.value = self.value + WEIGHT * (value - self.value) if fresh else value
        self.at = now

    def is_fresh(self, now: float) -> bool:
        return self.at is not None and now - self.at <= FRESH_SECONDS


class Throughput:
    """What is known of one link."""

    def __init__(self) -> None:
        self._full = _Mean()
        self._bound = _Mean()
        self._seen = _Mean()

    def note(self, size_bytes: int, seconds: float, in_flight: int, most: int, now: float) -> None:
        """Count a part that was sent in ``seconds``, beside others, up to ``most`` in all.

        Args:
            size_bytes: The size of the part.
            seconds: How long it took.
            in_flight: How many requests were under way when it ended, itself included.
            most: How many there may be.
            now: Monotonic.
        """
        if size_bytes < LEAST_BYTES:
            return
        speed = size_bytes / max(seconds, 1e-6)
        self._seen.note(speed * in_flight, now)
        if in_flight >= FULL_SHARE * most:
            self._full.note(speed * in_flight, now)
        else:
            self._bound.note(speed * most, now)

    def link(self, now: float) -> Link | None:
        """Return what the link takes, or None while nobody knows."""
        guess = self._guess(now)
        return Link(guess, min(guess, self._seen.value)) if guess is not None else None

    def _guess(self, now: float) -> float | None:
        known = [mean for mean in (self._full, self._bound) if mean.at is not None]
        fresh = [mean.value for mean in known if mean.is_fresh(now)]
        if fresh:
            return min(fresh)
        latest = max(known, key=lambda mean: mean.at or 0.0, default=None)
        return latest.value if latest is not None else None
