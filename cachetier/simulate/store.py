"""The object store: it lets so many requests a second through for each prefix, and may be away."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from cachetier.simulate.events import Events

WRITES_PER_SECOND, READS_PER_SECOND = 3500.0, 5500.0  # S3's, for each prefix


class TokenBucket:
    """Lets ``rate`` requests a second through, and up to ``depth`` at once after a pause."""

    def __init__(self, rate: float, depth: float, *, now: float = 0.0) -> None:
        self.rate = rate
        self._depth = depth
        self._tokens = depth
        self._filled_at = now

    def take(self, now: float) -> bool:
        """Let one request through, or say no."""
        earned = max(0.0, now - self._filled_at) * self.rate
        self._tokens = min(self._depth, self._tokens + earned)
        self._filled_at = max(now, self._filled_at)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class SimulatedAnswer(Enum):
    """The fate of a request."""

    ACCEPTED = auto()
    THROTTLED = auto()
    AWAY = auto()


class SimulatedStore:
    """Judges requests; each prefix has a bucket of a second's depth for writes, and for reads."""

    def __init__(
        self,
        events: Events,
        writes_per_second: float = WRITES_PER_SECOND,
        reads_per_second: float = READS_PER_SECOND,
        *,
        away: Callable[[float], bool] = lambda _now: False,
    ) -> None:
        self._events = events
        self._rates = {False: writes_per_second, True: reads_per_second}
        self._away = away
        self._buckets: dict[tuple[str, bool], TokenBucket] = {}

    def limit(self, writes_per_second: float, reads_per_second: float) -> None:
        """Let so many requests through from now on, below each prefix."""
        self._rates = {False: writes_per_second, True: reads_per_second}
        self._buckets.clear()

    def is_away(self) -> bool:
        return self._away(self._events.seconds)

    def judge(self, prefix: str, *, reads: bool) -> SimulatedAnswer:
        """Return what becomes of a request that arrives now."""
        if self.is_away():
            return SimulatedAnswer.AWAY
        bucket = self._buckets.get((prefix, reads))
        if bucket is None:
            rate = self._rates[reads]
            bucket = self._buckets[prefix, reads] = TokenBucket(rate, max(1.0, rate))
        return (
            SimulatedAnswer.ACCEPTED
            if bucket.take(self._events.seconds)
            else SimulatedAnswer.THROTTLED
        )
