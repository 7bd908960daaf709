"""Deadlines: every call has one, and everything the call does is bounded by what is left of it."""

from __future__ import annotations

import math

from cachetier_client.clock import Clock
from cachetier_client.errors import DeadlineError, InvalidRequestError

_MARGIN_FRACTION = 0.1
_MARGIN_LIMIT_SECONDS = 0.2


class Deadline:
    """The instant at which a call gives up."""

    __slots__ = ("_clock", "_ends_at", "seconds")

    def __init__(self, seconds: float, clock: Clock) -> None:
        """Begin now.

        Raises:
            InvalidRequestError: Not a finite number of seconds from 0 up.
        """
        try:
            fine = math.isfinite(seconds) and seconds >= 0
        except TypeError:
            fine = False
        if not fine:
            raise InvalidRequestError(f"timeout_seconds {seconds!r} is not a number of seconds")
        self.seconds = float(seconds)
        self._clock = clock
        self._ends_at = clock.monotonic() + self.seconds

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._ends_at - self._clock.monotonic())

    def require(self, what: str) -> float:
        """Return the seconds left.

        Raises:
            DeadlineError: None are; ``what`` says what was being done.
        """
        left = self.remaining()
        if left <= 0:
            raise self.passed(what)
        return left

    def passed(self, what: str) -> DeadlineError:
        """Return the error that says so."""
        return DeadlineError(f"{what} did not end within {self.seconds:g} s")

    def for_service(self) -> float:
        """Return what the service may spend: a little less, so that its answer comes in time."""
        left = self.remaining()
        return left - min(left * _MARGIN_FRACTION, _MARGIN_LIMIT_SECONDS)

    def at_most(self, seconds: float) -> Deadline:
        """Return a deadline that also ends within ``seconds``."""
        return Deadline(min(seconds, self.remaining()), self._clock)
