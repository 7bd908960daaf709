"""All who watch share one look a second, and charts find what was seen before."""

from __future__ import annotations

import asyncio
from typing import Any

from cachetier.console.history import LOOK_SECONDS, History
from tests.unit.cli.test_screen import answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def history(clock: Clock, asked: list[float]) -> History:
    async def ask() -> dict[str, Any]:
        asked.append(clock.now)
        flow = {"put_bytes": int(clock.now * 10), "restored_bytes": 0, "evicted_bytes": 0}
        return answer(uptime_seconds=clock.now, flow=flow, dirty_bytes=7)

    return History(ask, clock, clock)


def test_many_who_watch_share_a_look() -> None:
    async def watched() -> None:
        clock, asked = Clock(), list[float]()
        seen = history(clock, asked)
        looks = await asyncio.gather(*(seen.look() for _ in range(20)))
        assert asked == [100.0]
        assert all(look is looks[0] for look in looks)
        clock.now += LOOK_SECONDS
        assert (await seen.look()).rates.put == 10.0
        assert seen.columns() == [[100.0, 101.0], [None, 10.0], [None, 0.0], [7, 7]]

    asyncio.run(watched())


def test_before_anybody_looked_the_charts_are_empty() -> None:
    async def empty() -> None:
        assert history(Clock(), []).columns() == [[], [], [], []]

    asyncio.run(empty())
