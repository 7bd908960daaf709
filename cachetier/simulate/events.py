"""The queue of events, and the clock that follows it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from itertools import count


class Events:
    """The events of one simulation. It is also the ``Clock`` of whatever is simulated."""

    def __init__(self) -> None:
        self.seconds = 0.0  # since the start
        self._order = count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass for everybody."""
        self.run(self.seconds + seconds)

    def after(self, seconds: float, happen: Callable[[], None]) -> None:
        """Call ``happen`` once ``seconds`` have passed."""
        heapq.heappush(self._queue, (self.seconds + seconds, next(self._order), happen))

    def run(self, until_seconds: float) -> None:
        """Let time pass up to ``until_seconds`` after the start."""
        queue = self._queue
        while queue and queue[0][0] <= until_seconds:
            self.seconds, _, happen = heapq.heappop(queue)
            happen()
        self.seconds = until_seconds


class Alarm:
    """Calls ``ring`` at the earliest of the instants that it was set to since it last rang."""

    def __init__(self, events: Events, ring: Callable[[], None]) -> None:
        self._events = events
        self._ring = ring
        self._at = math.inf

    def set(self, in_seconds: float) -> None:
        """Ring in so many seconds at the latest; never if that is infinity."""
        instant = self._events.seconds + in_seconds
        if instant < self._at:
            self._at = instant
            self._events.after(in_seconds, partial(self._due, instant))

    def _due(self, instant: float) -> None:
        if self._at == instant:
            self._at = math.inf
            self._ring()
