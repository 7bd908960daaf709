"""A node that does nothing but drain, or restore, as fast as its real pace lets it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

from cachetier.drain.pace.remote_health import RemoteHealth
from cachetier.errors import ThrottledError, TransientError
from cachetier.model.pace import Pace
from cachetier.remote.call_policy import DRAIN, RetryPolicy
from cachetier.simulate.events import Events
from cachetier.simulate.link import SimulatedLink
from cachetier.simulate.requests import SimulatedPlace, SimulatedRequest, SimulatedRequests
from cachetier.simulate.store import SimulatedStore

LATENCY_SECONDS = (0.02, 0.08)  # each node lies at its own distance


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """The work of a node: ``count`` requests of one size, endless unless said otherwise."""

    reads: bool = False
    requests: float = math.inf
    size_bytes: int = 16 << 20
    at_once: int = 128
    prefix: str = ""
    policy: RetryPolicy = DRAIN


class SimulatedNode:
    """One node. Its threads have one request at a time each, and keep it while the store is away.

    ``gave_up`` counts requests that were throttled as often as the policy allows, ``ended_at`` is
    when the last one ended; for the rest see ``SimulatedRequests``.
    """

    def __init__(
        self,
        events: Events,
        store: SimulatedStore,
        chance: random.Random,
        work: SimulatedWork,
        place: SimulatedPlace,
    ) -> None:
        self.gave_up = 0
        self.ended_at = math.inf
        self._events = events
        self._store = store
        self._work = work
        link = SimulatedLink(events, place.each_connection, place.link)
        self.pace = Pace(work.at_once, moved=link.moved, fraction=chance.random)
        self._health = RemoteHealth(self._probe, lambda _health: None, events)
        self._left = work.requests
        self._begun = 0  # those that are repeated as well
        attempts = work.policy.throttled_attempts or work.policy.attempts
        self._requests = SimulatedRequests(
            events,
            store,
            chance,
            place,
            self.pace,
            link,
            policy=replace(work.policy, attempts=1, throttled_attempts=attempts),
            first=self._take,
            may_begin=self._seconds_to_wait,
        )
        self.accepted_at = self._requests.accepted_at
        self.rejected_at = self._requests.rejected_at
        self.knocked_at = self._requests.knocked_at

    def _take(self) -> None:
        """Let threads that have nothing to do wait for their turn."""
        self._health.probe()
        threads = self._work.at_once
        if self._work.reads:
            threads = min(threads, 2 * self.pace.concurrency)
        while self._left and self._begun < threads:
            self._left -= 1
            self._begun += 1
            self._put()

    def _put(self) -> None:
        work = self._work
        request = SimulatedRequest(self._ended, work.size_bytes, work.reads, work.prefix)
        request.began_at = self._events.seconds
        self._requests.put(request)

    def _seconds_to_wait(self, under_way: int) -> float:
        if self._health.is_away:
            return max(self._health.seconds_until_probe(), 1e-6)
        return math.inf if under_way >= self._health.allowed else 0.0

    def _probe(self) -> None:
        if self._store.is_away():
            self.knocked_at.append(self._events.seconds)
            raise TransientError("the store is away")

    def _ended(self, answer: object) -> None:
        if isinstance(answer, TransientError):
            self._health.failed(answer)
            self._put()
            return
        if isinstance(answer, ThrottledError):
            self.gave_up += 1
        else:
            self._health.succeeded()
        self._begun -= 1
        if not self._left and not self._begun:
            self.ended_at = self._events.seconds


def crowd(
    events: Events,
    store: SimulatedStore,
    size: int,
    work: SimulatedWork,
    *,
    seed: int,
    within_seconds: float = 20.0,
) -> list[SimulatedNode]:
    """Return ``size`` nodes that start at different times, at different distances."""
    chance = random.Random(seed)
    return [
        SimulatedNode(
            events,
            store,
            random.Random(chance.random()),
            work,
            SimulatedPlace(
                latency_seconds=chance.uniform(*LATENCY_SECONDS),
                starts_at=chance.uniform(0.0, within_seconds) if number else 0.0,
            ),
        )
        for number in range(size)
    ]
