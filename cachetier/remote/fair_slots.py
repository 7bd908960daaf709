"""Fair slots for parallel work: a long body leaves room for a short one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TypeVar

AT_ONCE = 128  # of S3's connections fill a link of 100 Gbit/s
LOOK_SECONDS = 0.1  # shares grow when somebody ends

Item = TypeVar("Item")
Result = TypeVar("Result")


class FairSlots:
    """Slots for items that are sent or read at once, shared equally by all jobs. Thread-safe.

    A job is one call of ``each``; its share grows when another job ends.
    """

    def __init__(self, limit: Callable[[], int] = lambda: AT_ONCE) -> None:
        """Share ``limit()`` slots; the limit may change at any time."""
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs = 0

    def each(
        self, threads: Executor, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Do ``work`` with each item on ``threads``, in an equal share of the slots.

        After the first error no more items are begun; it is raised once those under way have ended.
        """
        running: set[Future[Result]] = set()
        ended: list[Future[Result]] = []
        just_ended: SimpleQueue[Future[Result]] = SimpleQueue()

        def goes_on(room_for: Callable[[int], bool]) -> bool:
            """Wait until there is room for so many; return whether all have been well."""
            while not room_for(len(running)):
                now: list[Future[Result]] = []
                with suppress(Empty):
                    now.append(just_ended.get(timeout=LOOK_SECONDS))
                    while True:
                        now.append(just_ended.get_nowait())
                running.difference_update(now)
                ended.extend(now)
                if any(future.exception() is not None for future in now):
                    return False
            return True

        self._add(1)
        try:
            for item in items:
                begun = threads.submit(copy_context().run, work, item)
                running.add(begun)
                begun.add_done_callback(just_ended.put)
                # Each job may exceed its share by one, so that rounding leaves no slot idle.
                if not goes_on(lambda taken: taken <= self._limit() // max(1, self._jobs)):
                    break
            else:
                goes_on(lambda under_way: not under_way)
        finally:
            for future in running:
                future.cancel()
            ended += wait(running).done
            self._add(-1)
        return [future.result() for future in ended if not future.cancelled()]

    def _add(self, number: int) -> None:
        with self._lock:
            self._jobs += number
