"""A store that throttles, or is away, simulated: many nodes before one token bucket, in no time.

Discrete events, no sockets and no sleeps; the same seed gives the same run. It drives the real
``Pace`` of each node as ``PacedObjectStore`` does, and its real ``RemoteHealth`` as the drain
does: a node has always something to send, and begins a request as soon as both allow it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from cachetier.drain.pace.pace import Pace, Ticket
from cachetier.drain.pace.remote_health import RemoteHealth
from cachetier.errors import TransientError

BODY_BYTES = 1 << 20
LATENCY_SECONDS = (0.02, 0.08)  # each node lies at its own distance from the store


class TokenBucket:
    """Lets ``rate`` requests a second through, and up to ``depth`` at once after a pause."""

    def __init__(self, rate: float, depth: float, *, now: float = 0.0) -> None:
        self.rate = rate
        self._depth = depth
        self._tokens = depth
        self._filled_at = now

    def take(self, now: float) -> bool:
        """Let one request through, or say no."""
        earned = max(0.0, now - self._filled_at) * self.rate
        self._tokens = min(self._depth, self._tokens + earned)
        self._filled_at = max(now, self._filled_at)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class SimulatedNode:
    """One node; ``accepted_at``, ``rejected_at`` and ``knocked_at`` are instants at the store.

    Knocks are what comes while the store is away, requests and probes alike.
    """

    def __init__(
        self,
        limit: int = 16,
        fraction: Callable[[], float] = lambda: 0.0,
        *,
        starts_at: float = 0.0,
        latency_seconds: float = 0.05,
    ) -> None:
        self.pace = Pace(limit, moved=self._moved, fraction=fraction)
        self.starts_at = starts_at
        self.latency_seconds = latency_seconds
        self.accepted_at: list[float] = []
        self.rejected_at: list[float] = []
        self.knocked_at: list[float] = []
        self.in_flight = 0
        self.wakes_at = math.inf

    def _moved(self) -> float:
        return float(BODY_BYTES * len(self.accepted_at))


class Simulation:
    """Nodes that send to one store, whose requests pass a bucket unless it is ``away``.

    It is the ``Clock`` of all of them; ``now`` are the seconds since its start.
    """

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        bucket: TokenBucket,
        *,
        seed: int = 0,
        away: Callable[[float], bool] = lambda _now: False,
    ) -> None:
        self._seconds = 0.0
        self._bucket = bucket
        self._away = away
        self._random = random.Random(seed)
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._healths = {id(node): self._health(node) for node in nodes}
        for node in nodes:
            self._wake(node, node.starts_at)

    def now(self) -> float:
        return self._seconds

    def monotonic(self) -> float:
        return self._seconds

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass for everybody."""
        self.run(self._seconds + seconds)

    def run(self, until_seconds: float) -> None:
        """Let time pass up to ``until_seconds`` after the start."""
        while self._events and self._events[0][0] <= until_seconds:
            self._seconds, _, happen = heapq.heappop(self._events)
            happen()
        self._seconds = until_seconds

    # --- time ------------------------------------------------------------------------------------

    def _at(self, instant: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (instant, next(self._order), happen))

    def _wake(self, node: SimulatedNode, instant: float) -> None:
        """Let ``node`` look what it may send at ``instant``, unless it does so earlier anyway."""
        if instant >= node.wakes_at:
            return
        node.wakes_at = instant

        def look() -> None:
            if node.wakes_at == instant:
                node.wakes_at = math.inf
                self._send(node)

        self._at(instant, look)

    # --- a node ----------------------------------------------------------------------------------

    def _health(self, node: SimulatedNode) -> RemoteHealth:
        def probe() -> None:
            if self._away(self._seconds):
                node.knocked_at.append(self._seconds)
                raise TransientError("the store is away")

        return RemoteHealth(probe, lambda _health: None, self)

    def _send(self, node: SimulatedNode) -> None:
        """Begin what pace and breaker allow now, and come back when they allow more."""
        self._healths[id(node)].probe()
        while (wait_seconds := self._seconds_to_wait(node)) == 0.0:
            ticket = node.pace.begin(self._seconds, BODY_BYTES)
            node.in_flight += 1
            travels_seconds = node.latency_seconds * self._random.uniform(0.5, 1.5)
            self._at(
                self._seconds + travels_seconds / 2,
                self._arrival(node, ticket, travels_seconds / 2),
            )
        if wait_seconds < math.inf:
            # Never the same instant again, whatever is lost in rounding.
            self._wake(node, self._seconds + max(wait_seconds, 1e-6))

    def _seconds_to_wait(self, node: SimulatedNode) -> float:
        health = self._healths[id(node)]
        if health.is_away:
            return max(health.seconds_until_probe(), 1e-6)
        if node.in_flight >= health.allowed:
            return math.inf
        return node.pace.wait_seconds(self._seconds, BODY_BYTES)

    def _arrival(
        self, node: SimulatedNode, ticket: Ticket, returns_in_seconds: float
    ) -> Callable[[], None]:
        """Return what happens when a request reaches the store: an answer sets out."""

        def arrive() -> None:
            answered = self._answered(node, ticket)
            self._at(self._seconds + returns_in_seconds, lambda: self._come_back(node, answered))

        return arrive

    def _answered(self, node: SimulatedNode, ticket: Ticket) -> Callable[[], None]:
        """Judge a request at the store; return what its answer does to the node."""
        health = self._healths[id(node)]
        if self._away(self._seconds):
            node.knocked_at.append(self._seconds)

            def answer() -> None:
                node.pace.failed()
                health.failed(TransientError("the store is away"))

        elif self._bucket.take(self._seconds):
            node.accepted_at.append(self._seconds)

            def answer() -> None:
                node.pace.succeeded(ticket, self._seconds)
                health.succeeded()

        else:
            node.rejected_at.append(self._seconds)

            def answer() -> None:
                node.pace.throttled(ticket, self._seconds, None)

        return answer

    def _come_back(self, node: SimulatedNode, answer: Callable[[], None]) -> None:
        node.in_flight -= 1
        answer()
        self._send(node)


@dataclass(frozen=True, slots=True)
class NodeShares:
    """What the nodes got between two instants."""

    accepted: tuple[int, ...]
    rejected: int
    seconds: float

    @property
    def fairness(self) -> float:
        """Jain's index: 1 for equal shares, 1/n when one node gets everything."""
        squares = sum(each * each for each in self.accepted)
        return sum(self.accepted) ** 2 / (len(self.accepted) * squares) if squares else 0.0

    @property
    def per_second(self) -> float:
        return sum(self.accepted) / self.seconds

    @property
    def rejected_share(self) -> float:
        return self.rejected / max(1, self.rejected + sum(self.accepted))


def shares(nodes: Sequence[SimulatedNode], since: float, until: float) -> NodeShares:
    """Count what reached the store between two instants of a simulation."""

    def within(instants: list[float]) -> int:
        return sum(since <= instant < until for instant in instants)

    return NodeShares(
        tuple(within(node.accepted_at) for node in nodes),
        sum(within(node.rejected_at) for node in nodes),
        until - since,
    )


def crowd(
    size: int,
    *,
    seed: int,
    limit: int = 16,
    latency_seconds: tuple[float, float] = LATENCY_SECONDS,
    within_seconds: float = 20.0,
) -> list[SimulatedNode]:
    """Return ``size`` nodes that start at different times, at different distances."""
    chance = random.Random(seed)
    return [
        SimulatedNode(
            limit,
            chance.random,
            starts_at=chance.uniform(0.0, within_seconds) if number else 0.0,
            latency_seconds=chance.uniform(*latency_seconds),
        )
        for number in range(size)
    ]
