"""The clock of a store, as its answers tell: our own clock, and what that has to be put right by.

Our own is the machine's since it was started, which no change of the wall clock touches, and which
is the same in all its processes. Each answer has a ``Date``, in whole seconds: what has to be added
lies between that less the time of the answer, and a second more less the time of the question. What
several answers leave over is soon narrower than a second.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from functools import partial

REMEMBERED = 4096


since_boot = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class StoreClock:
    """Tells the time of one store, once an answer of it was seen. Thread-safe."""

    def __init__(self, own: Callable[[], float] = since_boot) -> None:
        self.own = own
        self._lock = threading.Lock()
        self._between: tuple[float, float] | None = None
        self._untimed: OrderedDict[int, float] = OrderedDict()
        self._began = own()

    def heard(self, date: str | None, asked: float) -> None:
        """Hear the ``Date`` of an answer that came now, to a request that began at ``asked``."""
        try:
            at = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        self.learn((at - self.own(), at + 1.0 - asked))

    def learn(self, between: tuple[float, float] | None) -> None:
        """Take what somebody else knows; what contradicts it is older, and is forgotten."""
        if between is None or between[0] > between[1]:
            return
        with self._lock:
            known = self._between or between
            both = max(known[0], between[0]), min(known[1], between[1])
            self._between = both if both[0] <= both[1] else between

    @property
    def between(self) -> tuple[float, float] | None:
        """The least and the most that has to be added to our own clock; None while unknown."""
        return self._between

    def at(self, own: float) -> float | None:
        """Return the store's time at an instant of our own clock."""
        between = self._between
        return None if between is None else own + sum(between) / 2

    def now(self) -> float | None:
        return self.at(self.own())

    def is_from_before(self, at: float | None) -> bool:
        """Return whether something was before this process began; so is what has no known time."""
        now = self.now()
        return now is None or at is None or now - at > self.own() - self._began

    # --- what was acknowledged while the time was unknown ----------------------------------------

    def acknowledged(self, version: int, at: float | None) -> None:
        """Remember that a version was acknowledged just now, if nobody knew that it was ``at``."""
        if at is not None:
            return
        with self._lock:
            self._untimed[version] = self.own()
            if len(self._untimed) > REMEMBERED:
                self._untimed.popitem(last=False)

    def acknowledged_at(self, version: int) -> float | None:
        """Return when such a version was acknowledged, if that is known by now."""
        own = self._untimed.get(version)
        return None if own is None else self.at(own)
