"""The circuit breaker: whether to call somebody who may be away, and when to look again.

Closed: calls go out. Open: nothing but a probe does, when one is due. Half-open: a probe passed,
and a single call goes first; each time that fails as well, the next probe comes later.

Pure: it is told the time, and its owner holds the lock.
"""

from __future__ import annotations

from enum import Enum, auto


class BreakerState(Enum):
    """The calls that may go out: all, none, or one."""

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class CircuitBreaker:
    """A state, and the instant of the next probe.

    Args:
        probe_seconds: From one probe to the next, and to the first one.
        limit_seconds: How long the first one waits at most, after probes that passed in vain.
    """

    def __init__(self, probe_seconds: float, limit_seconds: float) -> None:
        self.state = BreakerState.CLOSED
        self.probe_at = 0.0
        self._probe_seconds = probe_seconds
        self._limit_seconds = limit_seconds
        self._first_seconds = probe_seconds

    def failed(self, now: float) -> bool:
        """Open for a call that failed; return whether it was not open already."""
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.HALF_OPEN:
            self._first_seconds = min(self._limit_seconds, 2 * self._first_seconds)
        self.state = BreakerState.OPEN
        self.probe_at = now + self._first_seconds
        return True

    def succeeded(self) -> bool:
        """Close for a call that succeeded; return whether it was not closed already."""
        was_away = self.state is not BreakerState.CLOSED
        self.state = BreakerState.CLOSED
        self._first_seconds = self._probe_seconds
        return was_away

    def takes_probe(self, now: float) -> bool:
        """Return whether the caller is to probe now; nobody else is, for a while."""
        due = self.state is BreakerState.OPEN and now >= self.probe_at
        if due:
            self.probe_at = now + self._probe_seconds
        return due

    def probe_failed(self, now: float) -> None:
        """Put the next probe off, which may have taken its time."""
        self.probe_at = now + self._probe_seconds

    def probe_passed(self) -> bool:
        """Let one call try; return whether it was open, and not closed meanwhile."""
        was_open = self.state is BreakerState.OPEN
        if was_open:
            self.state = BreakerState.HALF_OPEN
        return was_open
