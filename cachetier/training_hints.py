"""Training hints: which ranks say that they are in a training step.

A hint, so nothing depends on its being true: it ends with the connection that gave it, and by
itself after a minute, as a rank that hangs in a step must not slow the drain for ever.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from cachetier_client.clock import Clock

HINT_SECONDS = 60.0
RANKS_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Hints:
    """How many ranks have said lately what they do, and how many of them are in a step."""

    hinting_ranks: int = 0
    busy_ranks: int = 0


@dataclass(frozen=True, slots=True)
class _Hint:
    busy: bool
    until: float
    via: object


class Phases:
    """The latest hint of each rank. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._hints: OrderedDict[str, _Hint] = OrderedDict()

    def report(self, rank: str, *, busy: bool, via: object = None) -> None:
        """Take a rank's hint; ``rank`` names it, ``via`` is the connection it came by.

        Of more than ``RANKS_LIMIT`` the oldest hints are dropped.
        """
        with self._lock:
            self._hints[rank] = _Hint(busy, self._clock.monotonic() + HINT_SECONDS, via)
            self._hints.move_to_end(rank)
            if len(self._hints) > RANKS_LIMIT:
                self._hints.popitem(last=False)

    def leave(self, rank: str, via: object) -> None:
        """Forget a rank whose connection has ended, unless it has spoken by another since."""
        with self._lock:
            hint = self._hints.get(rank)
            if hint is not None and hint.via is via:
                del self._hints[rank]

    def hints(self) -> Hints:
        """Return what the ranks do now."""
        with self._lock:
            now = self._clock.monotonic()
            while self._hints and next(iter(self._hints.values())).until <= now:
                self._hints.popitem(last=False)
            return Hints(len(self._hints), sum(hint.busy for hint in self._hints.values()))
