"""Which requests on their way to an S3 server meet trouble, and which trouble."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from cachetier.testing.http_wire import Head

CHANGING_METHODS = ("PUT", "POST", "DELETE")


class Trouble(StrEnum):
    """What can happen to a request."""

    SLOW_DOWN = "slow_down"  # 503, not passed on
    RESET = "reset"  # half of the body is passed on, then both sides are reset
    LOST_REPLY = "lost_reply"  # the server does it, and the client never hears of it


class Troubles:
    """What goes wrong: thread-safe, and changeable while the proxy runs.

    Args:
        lose_replies: Lose the replies to this many of the next PUT, POST and DELETE requests.
        resets: Reset this many of the next requests that have a body.
        slowdown_rate: Requests a second; what comes faster gets 503 SlowDown. 0 for no limit.
    """

    def __init__(
        self,
        *,
        lose_replies: int = 0,
        resets: int = 0,
        slowdown_rate: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._left = {Trouble.LOST_REPLY: lose_replies, Trouble.RESET: resets}
        self._rate = slowdown_rate
        self._clock = clock
        self._tokens = self._burst
        self._filled_at = clock()
        self.fired: Counter[Trouble] = Counter()

    def add(self, trouble: Trouble, count: int = 1) -> None:
        """Strike ``count`` more requests with LOST_REPLY or RESET."""
        with self._lock:
            self._left[trouble] += count

    def limit(self, slowdown_rate: float) -> None:
        """Change the rate above which requests are told to slow down; 0 for no limit."""
        with self._lock:
            self._rate = slowdown_rate
            self._tokens = self._burst

    def strike(self, request: Head) -> Trouble | None:
        """Decide what happens to ``request``, and count it."""
        with self._lock:
            trouble = self._due(request)
            if trouble is not None:
                self.fired[trouble] += 1
            return trouble

    def _due(self, request: Head) -> Trouble | None:
        if self._rate and not self._take_token():
            return Trouble.SLOW_DOWN
        if request.request_framing and self._left[Trouble.RESET]:
            self._left[Trouble.RESET] -= 1
            return Trouble.RESET
        if request.method in CHANGING_METHODS and self._left[Trouble.LOST_REPLY]:
            self._left[Trouble.LOST_REPLY] -= 1
            return Trouble.LOST_REPLY
        return None

    @property
    def _burst(self) -> float:
        return max(1.0, self._rate)  # a second's worth

    def _take_token(self) -> bool:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
