"""The requests of one node, paced and repeated by the real rules.

It does what the threads behind ``CallPolicy`` do, without any: a
request begins when the pace allows, and is repeated when, and as often as, the real policy says.
Those with a small body, or none, wait apart from those that carry bytes, as they do there.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cachetier.errors import CachetierError, RemoteError, ThrottledError, TransientError
from cachetier.model.pace import Pace, Ticket
from cachetier.remote.call_policy import DRAIN, Retries, RetryPolicy
from cachetier.simulate.events import Alarm, Events
from cachetier.simulate.link import SimulatedLink
from cachetier.simulate.store import SimulatedAnswer, SimulatedStore

SMALL_BYTES = 1 << 20  # what is smaller takes as long as its round trip


def _nothing() -> None:
    return None


def _at_once(_under_way: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class SimulatedPlace:
    """How a node lies to the store, in bytes a second, and when it starts."""

    latency_seconds: float = 0.05
    each_connection: float = 90e6
    link: float = 12.5e9
    starts_at: float = 0.0


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """One request, repeated or not.

    ``arrived`` is done at the store once the body is there; ``ended`` gets what it returned, or the
    error that it raised or that the request failed with in the end.
    """

    ended: Callable[[object], None]
    size_bytes: int = 0
    reads: bool = False
    prefix: str = ""
    arrived: Callable[[], object] = _nothing
    began_at: float = 0.0
    sent_at: float = 0.0
    attempt: int = 1


class SimulatedRequests:
    """All requests of a node.

    ``accepted_at``, ``rejected_at`` and ``knocked_at`` are instants at the store. Knocks are what
    comes while the store is away.
    """

    def __init__(  # noqa: PLR0913 - what a node is made of
        self,
        events: Events,
        store: SimulatedStore,
        chance: random.Random,
        place: SimulatedPlace,
        pace: Pace,
        link: SimulatedLink,
        *,
        policy: RetryPolicy = DRAIN,
        first: Callable[[], None] = _nothing,
        may_begin: Callable[[int], float] = _at_once,
    ) -> None:
        """Begin at ``place.starts_at``.

        ``first`` is called before any are begun, and ``may_begin`` with how many are under way: in
        how many seconds another one may be.
        """
        self.accepted_at: list[float] = []
        self.rejected_at: list[float] = []
        self.knocked_at: list[float] = []
        self._events = events
        self._store = store
        self._chance = chance
        self._place = place
        self._pace = pace
        self._link = link
        self._retries = Retries(policy, clock=events.monotonic, fraction=chance.random)
        self._first = first
        self._may_begin = may_begin
        # Reads of documents, writes of them, and what carries bytes.
        self._waiting: tuple[deque[SimulatedRequest], ...] = (deque(), deque(), deque())
        self._under_way = 0
        self._alarm = Alarm(events, self._send)
        self._alarm.set(place.starts_at)

    def now(self) -> float:
        return self._events.seconds

    def add(self, request: SimulatedRequest) -> None:
        """Let ``request`` wait for its turn."""
        self.put(request)
        self._alarm.set(0.0)

    def put(self, request: SimulatedRequest) -> None:
        """As ``add``, from within ``first`` or ``ended``."""
        large = request.size_bytes >= SMALL_BYTES
        self._waiting[2 if large else not request.reads].append(request)

    def _send(self) -> None:
        """Begin what may begin now, and come back when more may."""
        self._first()
        for waiting in self._waiting:
            while waiting:
                request = waiting[0]
                wait_seconds = self._may_begin(self._under_way) or self._pace.wait_seconds(
                    self._events.seconds, request.size_bytes, reads=request.reads
                )
                if wait_seconds:
                    # Never the same instant again, whatever is lost in rounding.
                    self._alarm.set(max(wait_seconds, 1e-6))
                    break
                self._begin(waiting.popleft())

    def _begin(self, request: SimulatedRequest) -> None:
        now = self._events.seconds
        request.began_at = request.began_at or now
        request.sent_at = now
        ticket = self._pace.begin(now, request.size_bytes, reads=request.reads)
        self._under_way += 1
        one_way_seconds = self._place.latency_seconds * self._chance.uniform(0.25, 0.75)
        self._events.after(one_way_seconds, partial(self._arrive, request, ticket, one_way_seconds))

    def _arrive(self, request: SimulatedRequest, ticket: Ticket, one_way_seconds: float) -> None:
        """A request is at the store: an answer sets out, after the body where it is accepted."""
        answer = self._store.judge(request.prefix, reads=request.reads)
        now = self._events.seconds
        if answer is SimulatedAnswer.ACCEPTED:
            self.accepted_at.append(now)
            taken = partial(self._taken, request, ticket, one_way_seconds)
            if request.size_bytes >= SMALL_BYTES:
                self._link.move(request.size_bytes, taken)
            else:
                taken()
        elif answer is SimulatedAnswer.THROTTLED:
            self.rejected_at.append(now)
            self._events.after(one_way_seconds, partial(self._throttled, request, ticket))
        else:
            self.knocked_at.append(now)
            self._events.after(one_way_seconds, partial(self._failed, request))

    def _taken(self, request: SimulatedRequest, ticket: Ticket, one_way_seconds: float) -> None:
        """The whole of a request is at the store."""
        try:
            answer = request.arrived()
        except CachetierError as error:
            answer = error
        self._events.after(one_way_seconds, partial(self._answered, request, ticket, answer))

    # --- what came of it -------------------------------------------------------------------------

    def _answered(self, request: SimulatedRequest, ticket: Ticket, answer: object) -> None:
        self._under_way -= 1
        self._pace.succeeded(ticket, self._events.seconds)
        self._retries.budget.earn()
        request.ended(answer)
        self._send()

    def _throttled(self, request: SimulatedRequest, ticket: Ticket) -> None:
        self._under_way -= 1
        self._pace.throttled(ticket, self._events.seconds, None)
        self._repeat(request, ThrottledError("slow down"))

    def _failed(self, request: SimulatedRequest) -> None:
        self._under_way -= 1
        self._pace.failed(self._events.seconds)
        self._repeat(request, TransientError("the store is away"))

    def _repeat(self, request: SimulatedRequest, error: RemoteError) -> None:
        wait_seconds = self._retries.wait_seconds(error, request.attempt, request.began_at)
        if wait_seconds is None:
            request.ended(error)
        else:
            request.attempt += 1
            self._events.after(wait_seconds, partial(self.add, request))
        self._send()
