"""The link of one node: so much for each connection, and no more for all of them together."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from cachetier.simulate.events import Alarm, Events


class SimulatedLink:
    """Moves bodies beside each other, each of them equally fast.

    All are equally fast at any time, so one number tells how far each has come: the bytes that a
    connection would have moved that was open from the start.
    """

    def __init__(self, events: Events, each: float, total: float) -> None:
        """A link of ``total`` bytes a second, ``each`` at most for a connection."""
        self._events = events
        self._each = each
        self._total = total
        self._alarm = Alarm(events, self._end)
        self._order = count()
        self._bodies: list[tuple[float, int, Callable[[], None]]] = []  # the next to end first
        self._of_a_connection = 0.0
        self._moved = 0.0
        self._at = 0.0

    def moved(self) -> float:
        """Return how many bytes have moved so far, those of unfinished bodies too."""
        self._advance()
        return self._moved

    def move(self, size_bytes: float, ended: Callable[[], None]) -> None:
        """Begin to move a body; ``ended`` is called once all of it has moved."""
        self._advance()
        heapq.heappush(self._bodies, (self._of_a_connection + size_bytes, next(self._order), ended))
        self._set_alarm()

    def _rate(self) -> float:
        return min(self._each, self._total / len(self._bodies))

    def _advance(self) -> None:
        now = self._events.seconds
        if self._bodies:
            moved = (now - self._at) * self._rate()
            self._of_a_connection += moved
            self._moved += moved * len(self._bodies)
        self._at = now

    def _set_alarm(self) -> None:
        if self._bodies:
            left = max(0.0, self._bodies[0][0] - self._of_a_connection)
            self._alarm.set(left / self._rate())

    def _end(self) -> None:
        self._advance()
        while self._bodies and self._bodies[0][0] <= self._of_a_connection + 1.0:  # rounding
            heapq.heappop(self._bodies)[2]()
        self._set_alarm()
