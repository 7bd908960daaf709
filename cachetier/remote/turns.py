"""Places that those who are at work share equally: a long body leaves room for a short one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """``places`` to send or to read at once; who is ``at_work`` takes no more than ``share``."""

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

    @property
    def share(self) -> int:
        """How many places each may take now; one more than fit, so that none is ever idle."""
        return self._places // max(1, self._at_work) + 1

    def _add(self, number: int) -> None:
        with self._lock:
            self._at_work += number
