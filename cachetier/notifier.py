"""A notifier: callers wait for what others do, as commits, drained shards, published steps."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cachetier_client.clock import Clock


class Changes:
    """A notifier for the whole node; every waiter looks again when it is notified."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = threading.Condition()
        self._count = 0
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called at each ring; it must be quick."""
        self._listeners.append(listener)

    def ring(self) -> None:
        with self._rung:
            self._count += 1
            self._rung.notify_all()
        for listener in self._listeners:
            listener()

    def close(self) -> None:
        """Let every waiter go: the service stops."""
        self._closed = True
        self.ring()

    def next_ring(self, seen: int, timeout_seconds: float) -> int:
        """Return the number of rings so far, once it is not ``seen`` or the time is up."""
        with self._rung:
            self._rung.wait_for(lambda: self._count != seen, timeout_seconds)
            return self._count

    def wait_for(
        self,
        satisfied: Callable[[], bool],
        timeout_seconds: float,
        look_again_seconds: float | None = None,
    ) -> bool:
        """Return True once ``satisfied()``; False at the deadline, or when the service stops.

        ``look_again_seconds`` bounds how long a change that rings no bell here stays unseen.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        while True:
            seen = self._count
            if satisfied():
                return True
            left = deadline - self._clock.monotonic()
            if left <= 0 or self._closed:
                return False
            patience = left if look_again_seconds is None else min(left, look_again_seconds)
            with self._rung:
                self._rung.wait_for(lambda seen=seen: self._count != seen, patience)  # type: ignore[misc]
