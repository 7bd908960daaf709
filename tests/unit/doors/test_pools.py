"""Calls on threads end as their caller would have them, also when nobody waits any more."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from threading import Semaphore

import pytest

from cachetier.access.principals import OWNER, Caller, Principal
from cachetier.access.roles import Role
from cachetier.callers import working_for
from cachetier.doors.http.pools import Pools


def test_what_somebody_who_was_cut_off_asked_for_is_undone() -> None:
    async def go() -> None:
        pools, release, undone = Pools(), threading.Event(), threading.Event()

        def begin() -> str:
            assert release.wait(60)
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
            assert release.wait(60)
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


@pytest.mark.parametrize("pool", ["quick", "patient"])
@pytest.mark.parametrize("cut_off", [False, True])
def test_one_principal_does_not_take_the_last_thread(pool: str, cut_off: bool) -> None:
    async def go() -> None:
        pools = Pools(quick=8, patient=8)
        asked: Callable[..., asyncio.Future[bool]] = getattr(pools, pool)
        release, began = threading.Event(), defaultdict[str, Semaphore](lambda: Semaphore(0))

        def wait(name: str) -> bool:
            began[name].release()
            return release.wait(60)

        def ask(name: str) -> asyncio.Future[bool]:
            with working_for(None, Caller(Principal(name, Role.WRITE))):
                return asked(wait, name)

        greedy = [ask("greedy") for _ in range(20)]
        for _ in range(6):
            assert await asyncio.to_thread(began["greedy"].acquire, timeout=10)
        if cut_off:  # their threads are as busy as before
            for each in greedy[:6]:
                each.cancel()
            greedy = greedy[6:]
        others = [ask(name) for name in ("other", OWNER)]
        for name in ("other", OWNER):
            assert await asyncio.to_thread(began[name].acquire, timeout=10)
        assert not began["greedy"].acquire(blocking=False)

        release.set()
        assert all(await asyncio.gather(*others, *greedy))
        pools.close()

    asyncio.run(go())


def test_who_is_cut_off_before_a_thread_is_free_leaves_the_line() -> None:
    async def go() -> None:
        pools, release = Pools(patient=1), threading.Event()
        first = pools.patient(release.wait, 10)
        await asyncio.sleep(0)
        second, third = pools.patient(threading.Event().wait, 10), pools.patient(release.wait, 10)
        await asyncio.sleep(0)
        second.cancel()
        release.set()
        assert all(await asyncio.gather(first, third))
        pools.close()

    asyncio.run(go())
