"""The pace of one remote: the concurrency and rate of all requests that this node sends there.

Pure: every method is told the time, and nothing waits. ``remote.paced`` puts it before a store.

- **Concurrency** grows by one for each window of successes, up to the limit, and is cut when the
  store throttles.
- **Rates**, one of writes and one of reads as stores limit the two apart, are ``rate.Rate``.
- **Bytes** are metered where a limit is set: what is sent now puts off what comes next.

Source: docs/drain.md, "Pace".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cachetier.drain.pace.aimd import LEAD_SECONDS, Rate

FIRST_CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request under way; ``cuts`` says how many cuts its rate had when it began."""

    reads: bool
    cuts: int


@dataclass(frozen=True, slots=True)
class PaceState:
    """What people see of the pace; a rate of None is unlimited."""

    concurrency: int
    in_flight: int
    writes_per_second: float | None
    reads_per_second: float | None
    bytes_per_second: float | None
    cuts: int


class Pace:
    """AIMD of concurrency and request rates, and a meter of bytes, for one remote."""

    def __init__(
        self,
        limit: int,
        *,
        bytes_limit: Callable[[], float | None] = lambda: None,
        fraction: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Make one that has seen nothing yet.

        Args:
            limit: The most requests at once.
            bytes_limit: How many bytes a second may be sent now; None without a limit.
            fraction: Uniform in [0, 1), to spread those who were told the same time to come back.
        """
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._fraction = fraction
        self._window = float(min(FIRST_CONCURRENCY, limit))
        self._rates = {False: Rate(), True: Rate()}  # of writes, of reads
        self._in_flight = 0
        self._bytes_allow_at = 0.0
        self._not_before = 0.0

    # --- before a request ------------------------------------------------------------------------

    def wait_seconds(self, now: float, size_bytes: int, *, reads: bool = False) -> float:
        """Return how long a request with a body of ``size_bytes`` has to wait.

        Infinity until another request ends, or a window does in which nothing may be sent.
        """
        if self._in_flight >= int(self._window):
            return math.inf
        allowed_at = max(self._not_before, self._rates[reads].allows_at)
        if size_bytes and (limit := self._bytes_limit()) is not None:
            allowed_at = max(allowed_at, self._bytes_allow_at if limit else math.inf)
        return max(0.0, allowed_at - now)

    def begin(self, now: float, size_bytes: int, *, reads: bool = False) -> Ticket:
        """Count a request that begins now, with a body of ``size_bytes``."""
        self._in_flight += 1
        if size_bytes and (limit := self._bytes_limit()):
            sent_from = max(self._bytes_allow_at, now - LEAD_SECONDS)
            self._bytes_allow_at = sent_from + size_bytes / limit
        return Ticket(reads, self._rates[reads].begin(now))

    # --- after it --------------------------------------------------------------------------------

    def succeeded(self, ticket: Ticket, now: float) -> None:
        """The store took a request."""
        self._in_flight -= 1
        self._window = min(float(self._limit), self._window + 1.0 / self._window)
        self._rates[ticket.reads].succeeded(now)

    def failed(self) -> None:
        """A request failed for a reason that says nothing about the pace."""
        self._in_flight -= 1

    def throttled(self, ticket: Ticket, now: float, retry_after_seconds: float | None) -> None:
        """The store refused a request and wants fewer of them, perhaps none for a while."""
        self._in_flight -= 1
        if retry_after_seconds is not None:
            pause_seconds = retry_after_seconds * (1.0 + 0.2 * self._fraction())
            self._not_before = max(self._not_before, now + pause_seconds)
        rate = self._rates[ticket.reads]
        if ticket.cuts == rate.cuts:
            self._window = max(1.0, self._window * rate.cut(now))

    def state(self) -> PaceState:
        """Return what people see."""
        writes, reads = self._rates[False], self._rates[True]
        return PaceState(
            concurrency=int(self._window),
            in_flight=self._in_flight,
            writes_per_second=writes.per_second,
            reads_per_second=reads.per_second,
            bytes_per_second=self._bytes_limit(),
            cuts=writes.cuts + reads.cuts,
        )
