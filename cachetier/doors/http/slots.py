"""A bounded number of places for large bodies, which nobody keeps from others by being slow.

While nobody waits, a body may be as slow as its own watch lets it. While somebody does, those make
way who move little, and those whose holder has more than their share: first who holds most, of them
who moved least. They may come again at once, and wait like everybody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cachetier.doors.http.limits import RequestLimits
from cachetier.errors import BusyError

LOOKS = 4  # in each span of ``crowded_seconds``


class Moving(Protocol):
    """A body on its way."""

    @property
    def moved_bytes(self) -> int: ...

    def waits_for_peer(self, since: float) -> bool:
        """Whether it stands still because of its other end, and did not because of us ``since``."""


@dataclass(eq=False, slots=True)
class _Place:
    """A place, taken or waited for; ``seen_bytes`` is how far its body was at ``since``."""

    holder: str
    body: Moving
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    since: float = 0.0
    seen_bytes: int = 0
    moved_bytes: int | None = None  # in the last span; None before there was one
    is_slow: bool = False


class Slots:
    """So many places for bodies; ``what`` names them. For one event loop."""

    def __init__(self, number: int, what: str, limits: RequestLimits) -> None:
        self._number = number
        self._what = what
        self._limits = limits
        self._taken: list[_Place] = []
        self._waiting: list[_Place] = []
        self._watch: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def hold(self, holder: str, body: Moving, timeout_seconds: float) -> AsyncIterator[None]:
        """Hold a place inside.

        Raises:
            BusyError: None became free in time, or this one had to make way for others.
        """
        place = _Place(holder, body)
        self._waiting.append(place)
        self._admit()
        try:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await place.turn.wait()
            except TimeoutError:
                raise BusyError(f"all places for {self._what} are taken") from None
            try:
                async with place.limit:
                    yield
            except TimeoutError:
                if not place.limit.expired():
                    raise
                raise BusyError(
                    f"others wait for a place among the {self._what}, and this one moved least"
                ) from None
        finally:
            (self._taken if place in self._taken else self._waiting).remove(place)
            self._admit()

    def _admit(self) -> None:
        """Give free places to those whose holder has fewest, the longest wait first."""
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._taken) < self._number:
            held = self._held()
            place = min(self._waiting, key=lambda each: held[each.holder])
            self._waiting.remove(place)
            self._taken.append(place)
            place.since, place.seen_bytes = loop.time(), place.body.moved_bytes
            place.turn.set()
        if self._waiting and self._watch is None:
            self._begin_spans(loop.time())
            self._look_again(loop)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = loop.call_later(self._limits.crowded_seconds / LOOKS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let places go for those who wait; runs only while somebody does."""
        self._watch = None
        if not self._waiting:
            return
        now = loop.time()
        for place in self._taken:
            self._measure(place, now)
        held = self._held()
        leaving = sum(place.limit.expired() for place in self._taken)
        for newcomer in sorted(self._waiting, key=lambda each: held[each.holder])[leaving:]:
            loser = self._who_makes_way(newcomer, held)
            if loser is None:
                break
            held[loser.holder] -= 1
            held[newcomer.holder] += 1
            loser.moved_bytes = None
            loser.limit.reschedule(now)
        self._look_again(loop)

    def _begin_spans(self, now: float) -> None:
        for place in self._taken:
            place.since, place.seen_bytes = now, place.body.moved_bytes
            place.moved_bytes = None

    def _measure(self, place: _Place, now: float) -> None:
        if now - place.since < self._limits.crowded_seconds or place.limit.expired():
            return
        moved_bytes = place.body.moved_bytes
        place.moved_bytes = moved_bytes - place.seen_bytes
        is_little = place.moved_bytes < self._limits.crowded_bytes
        place.is_slow = is_little and place.body.waits_for_peer(place.since)
        place.since, place.seen_bytes = now, moved_bytes

    def _who_makes_way(self, newcomer: _Place, held: Counter[str]) -> _Place | None:
        share = held[newcomer.holder] + 1
        measured = [
            (-held[place.holder], place.moved_bytes, number)
            for number, place in enumerate(self._taken)
            if place.moved_bytes is not None and (place.is_slow or held[place.holder] > share)
        ]
        return self._taken[min(measured)[2]] if measured else None

    def _held(self) -> Counter[str]:
        return Counter(place.holder for place in self._taken if not place.limit.expired())
