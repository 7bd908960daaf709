"""The pace of one remote: the concurrency and rate of all requests that this node sends there.

One is the drain's, another one that of restores and whatever else the service asks. Pure: every
method is told the time, and nothing waits. ``remote.call_policy`` puts it before a store.

- **Concurrency** is searched for: as many as bring more answers. It is cut when the store
  throttles, and grows back by one for each window of successes.
- **Rates**, one of writes and one of reads as stores limit the two apart, grow by each success and
  are cut by throttling.
- **Bytes** are metered where a limit is set: what is sent now puts off what comes next.

Source: docs/drain.md, "Pace".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from cachetier.model.concurrency import Begun, Search

GROWTH_PER_SECOND = 0.025  # what a success adds to the rate
READ_GROWTH_PER_SECOND = 0.05  # a restore has less time, and a refused read has no body
GENTLE_CUT, HARD_CUT = 0.9, 0.5
FAR_OFF = 0.5  # throttled share of the last requests above which the rate is cut hard
MEMORY = 1 / 8  # how much the last request weighs in that share
CALM_SECONDS = 40.0  # without throttling, until a success adds twice as much
READ_CALM_SECONDS = 2.0  # others end their restores, and leave room
LIFT_SECONDS = 300.0
BACK_AFTER_STORM = 1.5  # what each success multiplies the rate by, up to where it held before
LEAST_RATE = 0.5  # requests a second: a node always finds out when things get better
LOOK_BACK_SECONDS = 5.0
LEAST_SPAN_SECONDS = 0.25
EVIDENCE = 16  # requests seen lately, below which a first refusal sets no rate
LEAD_SECONDS = 0.05  # how far requests may run ahead of an even spacing


class Rate:
    """An AIMD rate of requests; ``cuts`` counts how often it was cut.

    It is unlimited until the store throttles and there is something to judge by: a lone refusal
    after a pause says little. Then it is what was getting through; from there on each success adds
    the same to it, and throttling cuts it by a share. Every node adds alike, and meets throttling
    in proportion to its rate: so nodes that share a prefix drift to equal shares without a word
    between them.

    Cuts with no success between them are one storm: what is known to hold is what held before it,
    and once requests get through again the rate goes back there in a few of them. The longer
    nothing is throttled, the more a success adds, until the rate is lifted.
    """

    def __init__(
        self, growth_per_second: float = GROWTH_PER_SECOND, calm_seconds: float = CALM_SECONDS
    ) -> None:
        self._growth = growth_per_second
        self._calm_seconds = calm_seconds
        self.cuts = 0
        self.allows_at = 0.0
        self._rate = math.inf
        self._held_rate = 0.0
        self._was_short = False
        self._cut_at = 0.0
        self._throttled_share = 0.0
        self._successes_since_cut = 0
        self._got_through_at: deque[float] = deque()

    @property
    def per_second(self) -> float | None:
        """The limit; None without one."""
        return None if self._rate == math.inf else self._rate

    def begin(self, now: float) -> int:
        """Count a request that begins now; return how many cuts there were before it."""
        if self._rate < math.inf:
            spaced_from = now - LEAD_SECONDS
            self._was_short = self.allows_at >= spaced_from
            self.allows_at = max(self.allows_at, spaced_from) + 1.0 / self._rate
        return self.cuts

    def succeeded(self, now: float) -> None:
        """A request got through."""
        self._successes_since_cut += 1
        self._throttled_share *= 1.0 - MEMORY
        self._got_through_at.append(now)
        self._forget_before(now - LOOK_BACK_SECONDS)
        if self._rate < math.inf:
            self._speed_up(now - self._cut_at)

    def cut(self, now: float) -> float:
        """A request was throttled that began after the last cut; return by how much to cut."""
        self._throttled_share += MEMORY * (1.0 - self._throttled_share)
        self._forget_before(now - LOOK_BACK_SECONDS)
        far_off = self._throttled_share > FAR_OFF
        factor = HARD_CUT if far_off else GENTLE_CUT
        self.cuts += 1
        self._cut_at = now
        if self._rate == math.inf and (far_off or len(self._got_through_at) >= EVIDENCE):
            self._rate = self._seen(now)
        if self._rate < math.inf:
            self._slow_down(factor)
            self.allows_at = now + 1.0 / self._rate
        self._successes_since_cut = 0
        return factor

    def _slow_down(self, factor: float) -> None:
        self._rate = max(LEAST_RATE, self._rate * factor)
        if self._successes_since_cut:
            self._held_rate = self._rate

    def _speed_up(self, calm_seconds: float) -> None:
        if calm_seconds > LIFT_SECONDS:
            self._rate = math.inf
        elif self._rate < self._held_rate:
            self._rate = min(self._held_rate, self._rate * BACK_AFTER_STORM)
        elif self._was_short:  # one that nobody used up is not known to hold
            eagerness = 1.0 + (calm_seconds / self._calm_seconds) ** 2
            self._rate += self._growth * eagerness

    def _forget_before(self, instant: float) -> None:
        while self._got_through_at and self._got_through_at[0] < instant:
            self._got_through_at.popleft()

    def _seen(self, now: float) -> float:
        """Return the rate at which requests got through lately."""
        seen = self._got_through_at
        if not seen:
            return 1.0
        return len(seen) / max(LEAST_SPAN_SECONDS, now - seen[0])


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request under way; ``cuts`` says how many cuts its rate had when it began."""

    reads: bool
    cuts: int
    begun: Begun


@dataclass(frozen=True, slots=True)
class PaceState:
    """The pace as people see it; a rate of None is unlimited."""

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
        found: int | None = None,
        *,
        moved: Callable[[], float] = lambda: 0.0,
        bytes_limit: Callable[[], float | None] = lambda: None,
        fraction: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """A pace that has seen nothing yet.

        Args:
            limit: The most requests at once.
            found: How many at once were best before, if anybody knows.
            moved: How many bytes have gone to the remote, or come from there, so far.
            bytes_limit: How many bytes a second may be sent now; None without a limit.
            fraction: Uniform in [0, 1), to spread those who were told the same time to come back.
        """
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._fraction = fraction
        self._moved = moved
        self._window = float(limit)
        self._search = Search(limit, found)
        self._rates = {
            False: Rate(),  # of writes
            True: Rate(READ_GROWTH_PER_SECOND, READ_CALM_SECONDS),
        }
        self._bytes_allow_at = 0.0
        self._not_before = 0.0

    # --- before a request ------------------------------------------------------------------------

    def wait_seconds(self, now: float, size_bytes: int, *, reads: bool = False) -> float:
        """Return how long a request that sends, or gets, ``size_bytes`` has to wait.

        Infinity until another request ends, or a window does in which nothing may be sent.
        """
        if self._search.in_flight >= self.concurrency:
            look_in_seconds = self._search_on(now)
            if self._search.in_flight >= self.concurrency:
                return look_in_seconds
        allowed_at = max(self._not_before, self._rates[reads].allows_at)
        if size_bytes and not reads and (limit := self._bytes_limit()) is not None:
            allowed_at = max(allowed_at, self._bytes_allow_at if limit else math.inf)
        return max(0.0, allowed_at - now)

    def begin(self, now: float, size_bytes: int, *, reads: bool = False) -> Ticket:
        """Count a request that begins now, to send or to get ``size_bytes``."""
        if size_bytes and not reads and (limit := self._bytes_limit()):
            sent_from = max(self._bytes_allow_at, now - LEAD_SECONDS)
            self._bytes_allow_at = sent_from + size_bytes / limit
        begun = self._search.begin(now, size_bytes, self._moved())
        return Ticket(reads, self._rates[reads].begin(now), begun)

    @property
    def concurrency(self) -> int:
        """How many requests there may be at once now."""
        return min(self._search.size, int(self._window))

    def _search_on(self, now: float) -> float:
        """See whether more are to begin, unless the store wants less; return when again."""
        if self._search.size > self._window:
            return math.inf
        return self._search.look(now, self._moved())

    # --- after it --------------------------------------------------------------------------------

    def succeeded(self, ticket: Ticket, now: float) -> None:
        """The store took a request."""
        self._search.answered(ticket.begun, now)
        self._window = min(float(self._limit), self._window + 1.0 / self._window)
        self._rates[ticket.reads].succeeded(now)

    def failed(self, now: float) -> None:
        """A request failed for a reason that says nothing about the pace."""
        self._search.gone(now)

    def throttled(self, ticket: Ticket, now: float, retry_after_seconds: float | None) -> None:
        """The store refused a request and wants fewer of them, perhaps none for a while."""
        self._search.gone(now)
        if retry_after_seconds is not None:
            pause_seconds = retry_after_seconds * (1.0 + 0.2 * self._fraction())
            self._not_before = max(self._not_before, now + pause_seconds)
        rate = self._rates[ticket.reads]
        if ticket.cuts == rate.cuts:
            self._window = max(1.0, self.concurrency * rate.cut(now))
            self._search.cut(now)

    def found(self) -> int | None:
        """Return how many at once are known to be good; None where nobody knows yet."""
        return self._search.found

    def has_room(self) -> bool:
        """Return whether a slow request may go twice: no limit holds, and half of us is idle."""
        state = self.state()
        limits = state.writes_per_second, state.reads_per_second, state.bytes_per_second
        return limits == (None, None, None) and 2 * state.in_flight <= state.concurrency

    def state(self) -> PaceState:
        """Return what people see."""
        writes, reads = self._rates[False], self._rates[True]
        return PaceState(
            concurrency=self.concurrency,
            in_flight=self._search.in_flight,
            writes_per_second=writes.per_second,
            reads_per_second=reads.per_second,
            bytes_per_second=self._bytes_limit(),
            cuts=writes.cuts + reads.cuts,
        )
