"""Places that those who are at work share equally: a long body leaves room for a short one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextvars import copy_context
from typing import TypeVar

AT_ONCE = 128  # of S3's connections fill a link of 100 Gbit/s
LOOK_SECONDS = 0.1  # shares grow when somebody ends

Item = TypeVar("Item")
Result = TypeVar("Result")


class Turns:
    """Places to send or to read at once, shared by those who are at work. Thread-safe."""

    def __init__(self, places: Callable[[], int] = lambda: AT_ONCE) -> None:
        """Share as many places as ``places`` says each time."""
        self._places = places
        self._lock = threading.Lock()
        self._at_work = 0

    def each(
        self, threads: Executor, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        """Do ``work`` with each item on ``threads``, in an equal share of the places.

        After the first error no more are begun; it is raised once those under way have ended.
        """
        running: set[Future[Result]] = set()
        ended: list[Future[Result]] = []

        def goes_on(room_for: Callable[[int], bool]) -> bool:
            """Wait until there is room for so many; return whether all have been well."""
            nonlocal running
            while not room_for(len(running)):
                now, running = wait(running, LOOK_SECONDS, FIRST_COMPLETED)
                ended.extend(now)
                if any(future.exception() is not None for future in now):
                    return False
            return True

        self._add(1)
        try:
            for item in items:
                running.add(threads.submit(copy_context().run, work, item))
                if not goes_on(self._has_room_beside):
                    break
            else:
                goes_on(lambda under_way: not under_way)
        finally:
            for future in running:
                future.cancel()
            ended += wait(running).done
            self._add(-1)
        return [future.result() for future in ended if not future.cancelled()]

    def _has_room_beside(self, taken: int) -> bool:
        """Say whether a share takes one more: one more than fit, so that no place is ever idle."""
        return taken <= self._places() // max(1, self._at_work)

    def _add(self, number: int) -> None:
        with self._lock:
            self._at_work += number
