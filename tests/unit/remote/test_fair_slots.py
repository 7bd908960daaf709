"""Slots are shared, and as many as there are now."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore

from cachetier.remote.fair_slots import FairSlots


def test_slots_that_become_more_are_taken() -> None:
    limit, begun, end = [2], Semaphore(0), Semaphore(0)

    def work(item: int) -> int:
        begun.release()
        assert end.acquire(timeout=60)
        return item

    with ThreadPoolExecutor(9) as threads:
        slots = FairSlots(lambda: limit[0])
        whole = threads.submit(slots.each, threads, work, range(8))
        for _ in range(3):  # one more than fit
            assert begun.acquire(timeout=60)
        assert not begun.acquire(blocking=False)
        limit[0] = 8
        for _ in range(5):
            assert begun.acquire(timeout=60)
        end.release(8)
        assert sorted(whole.result(60)) == list(range(8))
