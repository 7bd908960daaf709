"""Time, passed in: instants in UTC seconds for people, monotonic seconds for deadlines."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return UTC seconds."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
