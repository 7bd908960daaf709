"""A node before a simulated store: it drains, or restores, with its real pace.

It does what the threads behind ``RetryingObjectStore`` and ``PacedObjectStore`` do: each has one
request at a time, begins it when pace and circuit breaker allow, and repeats what was throttled as
the real policy says.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from functools import partial

from cachetier.drain.pace.remote_health import RemoteHealth
from cachetier.errors import ThrottledError, TransientError
from cachetier.model.pace import Pace, Ticket
from cachetier.remote.retrying import RetryPolicy, wait_before_next
from cachetier.simulate.events import Alarm, Events
from cachetier.simulate.link import Link
from cachetier.simulate.store import Answer, Store

LATENCY_SECONDS = (0.02, 0.08)  # each node lies at its own distance
THROTTLED = ThrottledError("slow down")
AS_DRAINS = RetryPolicy()
AWAY = TransientError("the store is away")


@dataclass(frozen=True, slots=True)
class Work:
    """What a node has to do: so many requests of one size, endless unless said otherwise."""

    reads: bool = False
    requests: float = math.inf
    size_bytes: int = 16 << 20
    at_once: int = 128
    prefix: str = ""
    policy: RetryPolicy = AS_DRAINS


@dataclass(frozen=True, slots=True)
class Place:
    """How a node lies to the store, in bytes a second, and when it starts."""

    latency_seconds: float = 0.05
    each_connection: float = 90e6
    link: float = 12.5e9
    starts_at: float = 0.0


@dataclass(slots=True)
class _Request:
    began_at: float
    attempt: int = 1


class Node:
    """One node; ``accepted_at``, ``rejected_at`` and ``knocked_at`` are instants at the store.

    Knocks are what comes while the store is away, requests and probes alike. ``gave_up`` counts
    requests that were throttled as often as the policy allows, ``ended_at`` is when the last one
    ended.
    """

    def __init__(
        self, events: Events, store: Store, chance: random.Random, work: Work, place: Place
    ) -> None:
        self.accepted_at: list[float] = []
        self.rejected_at: list[float] = []
        self.knocked_at: list[float] = []
        self.gave_up = 0
        self.ended_at = math.inf
        self._events = events
        self._store = store
        self._chance = chance
        self._work = work
        self._place = place
        self._link = Link(events, place.each_connection, place.link)
        self.pace = Pace(work.at_once, moved=self._link.moved, fraction=chance.random)
        self._health = RemoteHealth(self._probe, lambda _health: None, events)
        self._left = work.requests
        self._begun = 0  # those that are repeated as well
        self._waiting: deque[_Request] = deque()
        self._under_way = 0
        self._alarm = Alarm(events, self._send)
        self._alarm.set(place.starts_at)

    # --- what may begin --------------------------------------------------------------------------

    def _send(self) -> None:
        """Begin what may begin now, and come back when more may."""
        self._health.probe()
        self._take()
        while self._waiting:
            wait_seconds = self._seconds_to_wait()
            if wait_seconds:
                # Never the same instant again, whatever is lost in rounding.
                self._alarm.set(max(wait_seconds, 1e-6))
                return
            self._begin(self._waiting.popleft())

    def _take(self) -> None:
        """Let threads that have nothing to do wait for their turn."""
        threads = self._work.at_once
        if self._work.reads:
            threads = min(threads, 2 * self.pace.concurrency)
        while self._left and self._begun < threads:
            self._left -= 1
            self._begun += 1
            self._waiting.append(_Request(self._events.seconds))

    def _seconds_to_wait(self) -> float:
        if self._health.is_away:
            return max(self._health.seconds_until_probe(), 1e-6)
        if self._under_way >= self._health.allowed:
            return math.inf
        return self.pace.wait_seconds(
            self._events.seconds, self._body_bytes, reads=self._work.reads
        )

    @property
    def _body_bytes(self) -> int:
        return 0 if self._work.reads else self._work.size_bytes

    def _probe(self) -> None:
        if self._store.is_away():
            self.knocked_at.append(self._events.seconds)
            raise AWAY

    # --- a request -------------------------------------------------------------------------------

    def _begin(self, request: _Request) -> None:
        ticket = self.pace.begin(self._events.seconds, self._body_bytes, reads=self._work.reads)
        self._under_way += 1
        one_way_seconds = self._place.latency_seconds * self._chance.uniform(0.25, 0.75)
        self._events.after(one_way_seconds, partial(self._arrive, request, ticket, one_way_seconds))

    def _arrive(self, request: _Request, ticket: Ticket, one_way_seconds: float) -> None:
        """A request is at the store: an answer sets out, after the body where it is accepted."""
        answer = self._store.judge(self._work.prefix, reads=self._work.reads)
        now = self._events.seconds
        if answer is Answer.ACCEPTED:
            self.accepted_at.append(now)
            succeed = partial(self._succeeded, ticket)
            self._link.move(
                self._work.size_bytes, partial(self._events.after, one_way_seconds, succeed)
            )
        elif answer is Answer.THROTTLED:
            self.rejected_at.append(now)
            self._events.after(one_way_seconds, partial(self._throttled, request, ticket))
        else:
            self.knocked_at.append(now)
            self._events.after(one_way_seconds, partial(self._failed, request))

    def _succeeded(self, ticket: Ticket) -> None:
        self._under_way -= 1
        self._begun -= 1
        self.pace.succeeded(ticket, self._events.seconds)
        self._health.succeeded()
        self._look_for_end()
        self._send()

    def _throttled(self, request: _Request, ticket: Ticket) -> None:
        self._under_way -= 1
        now = self._events.seconds
        self.pace.throttled(ticket, now, None)
        wait_seconds = wait_before_next(
            self._work.policy,
            THROTTLED,
            request.attempt,
            now - request.began_at,
            self._chance.random(),
        )
        if wait_seconds is None:
            self.gave_up += 1
            self._begun -= 1
            self._look_for_end()
        else:
            request.attempt += 1
            self._events.after(wait_seconds, partial(self._repeat, request))
        self._send()

    def _failed(self, request: _Request) -> None:
        self._under_way -= 1
        self.pace.failed()
        self._health.failed(AWAY)
        self._waiting.append(request)
        self._send()

    def _repeat(self, request: _Request) -> None:
        self._waiting.append(request)
        self._send()

    def _look_for_end(self) -> None:
        if not self._left and not self._begun:
            self.ended_at = self._events.seconds


def crowd(
    events: Events,
    store: Store,
    size: int,
    work: Work,
    *,
    seed: int,
    within_seconds: float = 20.0,
) -> list[Node]:
    """Return ``size`` nodes that start at different times, at different distances."""
    chance = random.Random(seed)
    return [
        Node(
            events,
            store,
            random.Random(chance.random()),
            work,
            Place(
                latency_seconds=chance.uniform(*LATENCY_SECONDS),
                starts_at=chance.uniform(0.0, within_seconds) if number else 0.0,
            ),
        )
        for number in range(size)
    ]
