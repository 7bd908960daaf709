"""Calls on threads end as their caller would have them, also when nobody waits any more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cachetier.doors.http.pools import Pools


def test_what_somebody_who_was_cut_off_asked_for_is_undone() -> None:
    async def go() -> None:
        pools, release, undone = Pools(), threading.Event(), threading.Event()

        def begin() -> str:
            assert release.wait(10)
            return "stage"

        asked = asyncio.create_task(pools.owned(lambda _stage: undone.set(), begin))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        release.set()
        assert await asyncio.to_thread(undone.wait, 10)
        pools.close()

    asyncio.run(go())


def test_what_uses_a_thing_ends_before_the_thing_is_closed() -> None:
    async def go() -> None:
        pools, release = Pools(), threading.Event()
        used: list[str] = []

        def use() -> None:
            assert release.wait(10)
            used.append("used")

        async def cut_off() -> None:
            try:
                await pools.whole(pools.disk(use))
            finally:
                used.append("closed")

        asked = asyncio.create_task(cut_off())
        for _ in range(3):
            await asyncio.sleep(0.01)
            asked.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert used == ["used", "closed"]
        pools.close()

    asyncio.run(go())


def test_a_call_that_fails_says_why() -> None:
    async def go() -> None:
        pools = Pools()
        with pytest.raises(ZeroDivisionError):
            await pools.owned(lambda _none: None, lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await pools.whole(pools.disk(lambda: 1 // 0))
        pools.close()

    asyncio.run(go())
