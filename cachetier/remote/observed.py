"""A wrapper that reports every call to an observer: operation, time, bytes, outcome."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetier.errors import CachetierError
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

Observe = Callable[[Operation, float, int, str], None]


class MeasuredObjectStore(WrappedObjectStore):
    """Calls ``observe(operation, seconds, size_bytes, outcome)`` after each call of the store.

    ``outcome`` is ``ok``, the ``code`` of the error, or ``internal`` for anything that is not one
    of ours; ``size_bytes`` are the bytes that the call moved, 0 when it failed. Put it inside
    ``RetryingObjectStore`` to see each attempt, outside to see what the caller sees.
    """

    def __init__(
        self, store: ObjectStore, observe: Observe, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(store)
        self._observe = observe
        self._clock = clock

    def _around(self, operation: Operation, size_bytes: int, call: Callable[[], Answer]) -> Answer:
        started_at = self._clock()
        moved_bytes, outcome = 0, CachetierError.code
        try:
            answer = call()
            moved_bytes = len(answer) if isinstance(answer, bytes) else size_bytes
            outcome = "ok"
            return answer
        except CachetierError as error:
            outcome = error.code
            raise
        finally:
            self._observe(operation, self._clock() - started_at, moved_bytes, outcome)
