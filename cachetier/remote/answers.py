"""The outcomes of reads, lists and heads at a remote, as the status shows them.

The drain tells of its own requests. While it has nothing to send it asks nothing, and would go on
to call a remote well that answers nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cachetier.errors import (
    ClientPendingError,
    RemoteError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
)
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore


def state_after(error: RemoteError) -> str | None:
    """Return the state of a remote that answers so, or None if the answer was about one object."""
    if isinstance(error, ClientPendingError):
        return "unasked"
    if isinstance(error, RemoteRefusedError):
        return "refused"
    if isinstance(error, ThrottledError):
        return "throttled"
    return "unreachable" if isinstance(error, TransientError) else None


@dataclass(frozen=True, slots=True)
class Met:
    """How the last request ended, at ``asked_at``; in this ``state`` they end ``since``. In UTC."""

    state: str = "ok"
    reason: str = ""
    since: float = 0.0
    asked_at: float | None = None


class Answers:
    """Hears how requests to one remote end. Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.met = Met()
        self._now = now
        self._lock = threading.Lock()

    def of(self, bucket: Bucket, *, shared: bool = False) -> Bucket:
        """Return ``bucket``, heard; of one ``shared`` with strangers a refusal says nothing."""
        heard = _HeardObjectStore(bucket.objects, self, shared=shared)
        return Bucket(heard, bucket.layout, bucket.slots)

    def note(self, state: str, reason: str = "") -> None:
        """Hear of a request that ended now."""
        with self._lock:
            now, before = self._now(), self.met
            since = before.since if before.state == state else now
            self.met = Met(state, reason, since, now)


class _HeardObjectStore(WrappedObjectStore):
    """Tells ``answers`` how each call ends, when it has been repeated often enough."""

    def __init__(self, store: ObjectStore, answers: Answers, *, shared: bool) -> None:
        super().__init__(store)
        self._answers = answers
        self._shared = shared

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer]
    ) -> Answer:
        try:
            answer = call()
        except RemoteError as error:
            state = state_after(error) or "ok"
            if state != "unasked" and not (self._shared and state == "refused"):
                self._answers.note(state, "" if state == "ok" else f"a reader met {error.message}")
            raise
        self._answers.note("ok")
        return answer
