"""A bounded number of places for large bodies, which nobody keeps from others by being slow.

While nobody waits, a body may be as slow as its own watch lets it. While somebody does, those make
way who move little, and those whose holder has more than their share: first who holds most, of them
who moved least. They may come again at once, and wait like everybody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
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
    """A place, taken or waited for; its body was at ``seen_bytes`` at the time ``since``."""

    holder: str
    body: Moving
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    since: float = 0.0
    seen_bytes: int = 0

    def begin_span(self, now: float) -> None:
        self.since, self.seen_bytes = now, self.body.moved_bytes


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
        patience = asyncio.timeout(timeout_seconds)
        error = f"all places for {self._what} are taken"
        try:
            async with patience:
                await place.turn.wait()
                patience.reschedule(None)
                place.limit = patience
                error = f"others wait for a place among the {self._what}, and this one moved least"
                yield
        except TimeoutError:
            if not patience.expired():
                raise
            raise BusyError(error) from None
        finally:
            (self._taken if place in self._taken else self._waiting).remove(place)
            self._admit()

    def _admit(self) -> None:
        """Give free places to those whose holder has fewest, the longest wait first."""
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._taken) < self._number:
            held = _held(self._taken)
            place = min(self._waiting, key=lambda each: held[each.holder])
            self._waiting.remove(place)
            self._taken.append(place)
            place.begin_span(loop.time())
            place.turn.set()
        if self._waiting and self._watch is None:
            for place in self._taken:
                place.begin_span(loop.time())
            self._look_again(loop)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watch = loop.call_later(self._limits.crowded_seconds / LOOKS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let places go for those who wait; runs only while somebody does."""
        self._watch = None
        if not self._waiting:
            return
        now = loop.time()
        staying = [place for place in self._taken if not place.limit.expired()]
        due = [each for each in staying if now - each.since >= self._limits.crowded_seconds]
        held = _held(staying)
        leaving = len(self._taken) - len(staying)
        for newcomer in sorted(self._waiting, key=lambda each: held[each.holder])[leaving:]:
            share = held[newcomer.holder] + 1
            losers = [each for each in due if self._is_slow(each) or held[each.holder] > share]
            if not losers:
                break
            loser = min(losers, key=lambda each: (-held[each.holder], _moved_bytes(each)))
            due.remove(loser)
            held[loser.holder] -= 1
            held[newcomer.holder] += 1
            loser.limit.reschedule(now)
        for place in due:
            place.begin_span(now)
        self._look_again(loop)

    def _is_slow(self, place: _Place) -> bool:
        little = _moved_bytes(place) < self._limits.crowded_bytes
        return little and place.body.waits_for_peer(place.since)


def _moved_bytes(place: _Place) -> int:
    return place.body.moved_bytes - place.seen_bytes


def _held(places: Iterable[_Place]) -> Counter[str]:
    return Counter(place.holder for place in places)
