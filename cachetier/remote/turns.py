"""Places that those who are at work share equally: a long body leaves room for a short one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.1


class Turns:
    """``places`` to send or to read at once, shared by those who are ``at_work``."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._at_work = 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count as somebody who shares the places."""
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def room_beside(self, taken: int) -> bool:
        """Return whether who has taken so many places may take one more.

        Ask again now and then, as shares grow when somebody ends. They are one more than fit, so
        that no place is ever idle.
        """
        return taken <= self._places // max(1, self._at_work)

    def _add(self, number: int) -> None:
        with self._lock:
            self._at_work += number
