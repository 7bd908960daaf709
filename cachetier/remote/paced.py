"""A wrapper that makes every call wait for its turn, and reports the answer to the controller.

The decisions are ``drain.pace``'s; here are the lock, the clock and the waiting. Put it inside
``RetryingObjectStore``: a call that is repeated waits for its turn again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from typing import Any, Protocol, TypeVar

from cachetier_client.clock import Clock

from cachetier.errors import StoppingError, ThrottledError
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

TicketT = TypeVar("TicketT")

READS = frozenset({"head", "get", "read_into", "list", "list_parts", "list_uploads"})
LOOK_SECONDS = 1.0  # a limit that follows the time of day changes while calls wait


class Controller(Protocol[TicketT]):
    """Decides when a request may begin; not thread-safe, and told the time."""

    def wait_seconds(self, now: float, size_bytes: int, *, reads: bool) -> float:
        """Return how long a request that sends, or gets, ``size_bytes`` has to wait."""

    def begin(self, now: float, size_bytes: int, *, reads: bool) -> TicketT:
        """Count a request that begins now."""

    def succeeded(self, ticket: TicketT, now: float) -> None:
        """A request was answered."""

    def failed(self, now: float) -> None:
        """A request failed, and not for its pace."""

    def throttled(self, ticket: TicketT, now: float, retry_after_seconds: float | None) -> None:
        """A request was told to slow down."""


class PacedObjectStore(WrappedObjectStore):
    """Begins each call when ``controller`` allows it; one controller serves every thread."""

    def __init__(
        self,
        store: ObjectStore,
        controller: Controller[Any],
        clock: Clock,
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wrap ``store``; a call that waits while ``stopping`` raises StoppingError."""
        super().__init__(store)
        self._controller = controller
        self._clock = clock
        self._stopping = stopping
        self._changed = threading.Condition()
        # One of each kind that the pace judges apart waits for its turn, and the others for that
        # one: else every turn would wake them all.
        self._first = {kind: threading.Lock() for kind in product((False, True), repeat=2)}

    def _around(self, operation: Operation, size_bytes: int, call: Callable[[], Answer]) -> Answer:
        reads = operation in READS
        ticket = self._wait_for_turn(size_bytes, reads=reads)
        try:
            answer = call()
        except ThrottledError as error:
            with self._changed:
                now = self._clock.monotonic()
                self._controller.throttled(ticket, now, error.retry_after_seconds)
                self._changed.notify_all()
            raise
        except BaseException:
            with self._changed:
                self._controller.failed(self._clock.monotonic())
                self._changed.notify_all()
            raise
        with self._changed:
            self._controller.succeeded(ticket, self._clock.monotonic())
            self._changed.notify_all()
        return answer

    def _wait_for_turn(self, size_bytes: int, *, reads: bool) -> Any:
        with self._first[reads, bool(size_bytes) and not reads], self._changed:
            while True:
                now = self._clock.monotonic()
                wait_seconds = self._controller.wait_seconds(now, size_bytes, reads=reads)
                if not wait_seconds:
                    return self._controller.begin(now, size_bytes, reads=reads)
                if self._stopping():
                    raise StoppingError("the drain stops")
                self._changed.wait(min(wait_seconds, LOOK_SECONDS))
