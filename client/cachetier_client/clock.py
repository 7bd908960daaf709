"""Time, passed in: instants in UTC seconds for people, monotonic seconds for deadlines."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return UTC seconds."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""


class SystemClock:
    """The machine's clocks."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class Countdown:
    """Seconds that begin to run when somebody asks for the first time how many are left."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._ends_at: float | None = None

    def left(self) -> float:
        if self._ends_at is None:
            self._ends_at = self._clock.monotonic() + self._seconds
        return max(0.0, self._ends_at - self._clock.monotonic())
