"""How many requests at once bring the most, found by trying.

A store gives each connection so much and no more; how many it takes until the link is full, nobody
says. So a few begin, and as long as doubling them brings more they are doubled; later a few more
are tried now and then, as links change. Pure: callers pass the time.

Source: docs/design/0025-many-slow-connections.md.
"""

from __future__ import annotations

import math

FIRST = 4
SPAN_SECONDS = 0.2
SETTLE_SECONDS = 0.1  # new connections bring nothing yet
STALE_SECONDS = 4 * SPAN_SECONDS
GAIN = 1.08  # what a step has to bring, that it stays
CLEAR_GAIN = 1.5  # what needs no whole span to be believed
LATER_SECONDS = 20.0
LATER_STEP = 1.25


class Search:
    """``size`` is how many there may be at once now, up to ``limit``.

    A span counts only while as many are under way as may be: ``look`` is for whoever finds no room.
    """

    def __init__(self, limit: int, first: int = FIRST) -> None:
        self.size = min(first, limit)
        self._limit = limit
        self._kept = self.size
        self._kept_rate = 0.0  # unknown
        self._doubles = True
        self._doubted = False  # the present step, after a first look
        self._span: tuple[float, float] | None = None  # when it began, and what had moved by then
        self._look_at = 0.0

    def look(self, now: float, moved: float) -> float:
        """Go a step further, or back, by what has moved so far; return when to look again."""
        if self._kept >= self._limit:
            return math.inf
        if now >= self._look_at:
            self._judge(now, moved)
        return self._look_at - now

    def _judge(self, now: float, moved: float) -> None:
        if self._span is None or now - self._span[0] > STALE_SECONDS:
            early = self._kept_rate and not self._doubted
            self._span, self._look_at = (now, moved), now + SPAN_SECONDS / (2 if early else 1)
            return
        began_at, before = self._span
        rate = (moved - before) / (now - began_at)
        whole_at = began_at + SPAN_SECONDS
        if self._look_at < whole_at and rate < CLEAR_GAIN * self._kept_rate:
            self._look_at = whole_at
            return
        if self._kept_rate and rate < GAIN * self._kept_rate:
            self._was_in_vain(now, moved)
            return
        self._kept, self._kept_rate = self.size, rate
        self._step(now)

    def cut(self) -> None:
        """Give up the present step, as the store wants fewer; the next look begins another."""
        self.size, self._doubted = min(self.size, self._kept), False
        self._kept_rate, self._span, self._look_at = 0.0, None, 0.0

    def _was_in_vain(self, now: float, moved: float) -> None:
        """Look once more, as many new requests take a while to begin; then go back."""
        self._doubted = not self._doubted
        if self._doubted:
            self._span, self._look_at = (now, moved), now + SPAN_SECONDS
            return
        self.cut()
        self._doubles, self._look_at = False, now + LATER_SECONDS

    def _step(self, now: float) -> None:
        self._doubted = False
        factor = 2.0 if self._doubles else LATER_STEP
        self.size = min(self._limit, max(self.size + 1, int(self.size * factor)))
        self._span, self._look_at = None, now + SETTLE_SECONDS
