"""Links and stores as a search for concurrency meets them, in steps of some milliseconds.

A store works through so much of each connection, and so much in all; what stands before it takes so
many bytes ahead of that. A new connection costs a round trip, or two, and begins slowly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

STEP_SECONDS = 0.008
FIRST_WINDOW, LARGEST_WINDOW = 90e3, 16e6  # bytes for each round trip
WIRE = 1.25e9


class Searching(Protocol):
    """Who decides how many requests there are; ``moved`` is all that left us so far."""

    def has_room(self, now: float, in_flight: int, moved: float) -> bool: ...

    def begin(self, now: float, size_bytes: int, moved: float) -> object: ...

    def answered(self, begun: object, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class World:
    """One link, and one store.

    Attributes:
        each: Bytes a second that the store works through of one connection.
        total: Of all.
        round_trip: Seconds.
        buffer: Bytes of a connection that are taken ahead of the work.
        greets: Round trips before a new connection takes a request.
        knee: So many connections are served at ``each``; more make all of them slower.
        outliers: The share of answers that are seconds late.
        changes: By what ``total`` changes, and when.
    """

    each: float = 8e6
    total: float = 400e6
    round_trip: float = 0.035
    buffer: float = 256e3
    greets: int = 1
    knee: int = 0
    outliers: float = 0.0
    changes: tuple[float, float] = (1.0, math.inf)

    def total_of(self, now: float, connections: int) -> float:
        factor, at = self.changes
        total = self.total * (factor if now >= at else 1.0)
        if self.knee and connections > self.knee:
            total = min(total, self.knee * self.each * self.knee / connections)
        return total


@dataclass(slots=True, eq=False)
class _Request:
    begun: object
    size: int
    sends_at: float
    late_seconds: float
    window: float = FIRST_WINDOW
    sent: float = 0.0
    worked: float = 0.0
    answers_at: float | None = None


@dataclass(slots=True)
class Outcome:
    """How long it took, and the most requests at once."""

    seconds: float
    most: int
    sizes: list[int] = field(default_factory=list)


def run(world: World, searching: Searching, sizes: Sequence[int], seed: int = 1) -> Outcome:
    """Send all of ``sizes`` through a world."""
    chance = random.Random(seed)
    waiting, under_way = list(reversed(sizes)), list[_Request]()
    idle = list[float]()  # the windows of connections that are open
    now = moved = 0.0
    outcome = Outcome(0.0, 0)
    while waiting or under_way:
        while waiting and searching.has_room(now, len(under_way), moved):
            size = waiting.pop()
            greets = 0 if idle else world.greets
            under_way.append(
                _Request(
                    searching.begin(now, size, moved),
                    size,
                    now + (greets + 0.5) * world.round_trip,
                    chance.uniform(1.0, 4.0) if chance.random() < world.outliers else 0.0,
                    idle.pop() if idle else FIRST_WINDOW,
                )
            )
        outcome.most = max(outcome.most, len(under_way))
        moved += _send(world, [each for each in under_way if now >= each.sends_at])
        _work(world, now, under_way)
        now += STEP_SECONDS
        for each in [each for each in under_way if each.answers_at and each.answers_at <= now]:
            under_way.remove(each)
            idle.append(each.window)
            searching.answered(each.begun, now)
    outcome.seconds = now
    return outcome


def _send(world: World, sending: Sequence[_Request]) -> float:
    """Let bytes leave, as far as windows, buffers and the wire allow; return how many."""
    share = STEP_SECONDS / max(world.round_trip, 0.002)
    room = [
        min(each.size - each.sent, world.buffer + each.worked - each.sent, each.window * share)
        for each in sending
    ]
    factor = min(1.0, WIRE * STEP_SECONDS / max(1.0, sum(room)))
    for each, most in zip(sending, room, strict=True):
        each.sent += most * factor
        each.window = min(LARGEST_WINDOW, each.window + most * factor)
    return sum(room) * factor


def _work(world: World, now: float, under_way: Sequence[_Request]) -> None:
    """Let the store work through what it has, and answer."""
    working = [each for each in under_way if each.answers_at is None]
    room = [min(world.each * STEP_SECONDS, each.sent - each.worked) for each in working]
    total = world.total_of(now, len(under_way)) * STEP_SECONDS
    factor = min(1.0, total / max(1.0, sum(room)))
    for each, most in zip(working, room, strict=True):
        each.worked += most * factor
        if each.worked >= each.size - 1.0:
            each.answers_at = now + world.round_trip / 2 + each.late_seconds
