"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """``Clock`` for tests: both clocks move together, by ``advance`` alone."""

    def __init__(self, now: float = 1_700_000_000.0, monotonic: float = 1_000.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass.

        Raises:
            ValueError: Time would go back; only the wall clock may, by ``jump``.
        """
        if seconds < 0:
            raise ValueError("monotonic time never goes back")
        self._now += seconds
        self._monotonic += seconds

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a person or NTP would."""
        self._now += seconds
