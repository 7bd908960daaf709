"""A wrapper that sends a slow upload part once more beside itself.

The end of a checkpoint waits for its slowest part, and what makes a part slow is most often the
connection or the server behind it: a second one rarely meets the same. The first of the two to
succeed counts. The other is cut off and waited for, so that nobody sends from memory that the
caller has given away; both carry the same bytes under the same number, so whichever the store keeps
is the part.

A part is only sent twice while there is room for it: see ``has_room``.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from contextvars import copy_context
from typing import Generic

from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

HEDGE_AFTER_SECONDS = 2.0
HEDGE_AFTER_TIMES = 3.0  # what a part takes usually
USUAL_OF = 32
USUAL_FROM = 8
AGAIN_SECONDS = 0.2

# Breaks off the call that a thread is in, if any: it fails as on a broken connection.
Cut = Callable[[int], None]


def hedge_after_seconds(usual: Sequence[float]) -> float | None:
    """Return after how long a part counts as slow, by what the last ones took; None: unknown."""
    if len(usual) < USUAL_FROM:
        return None
    return max(HEDGE_AFTER_SECONDS, HEDGE_AFTER_TIMES * statistics.median(usual))


class HedgingObjectStore(WrappedObjectStore):
    """Repeats slow ``upload_part`` calls beside themselves. ``hedged`` counts how many."""

    def __init__(
        self,
        store: ObjectStore,
        cut: Cut,
        threads: Executor,
        *,
        has_room: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap ``store``.

        Args:
            cut: Breaks off the call of a thread of ``store``.
            threads: Send parts: twice as many as call ``upload_part`` at once.
            has_room: Whether a second send would not take the place of another part's first.
            clock: For how long parts take.
        """
        super().__init__(store)
        self.hedged = 0
        self._cut = cut
        self._has_room = has_room
        self._clock = clock
        self._usual: deque[float] = deque(maxlen=USUAL_OF)
        self._threads = threads

    def _around(self, operation: Operation, _size_bytes: int, call: Callable[[], Answer]) -> Answer:
        if operation != "upload_part":
            return call()
        began_at = self._clock()
        attempts = [_Attempt(self._threads, call)]
        try:
            patience_seconds = hedge_after_seconds(tuple(self._usual))
            if not attempts[0].ends_within(patience_seconds) and self._has_room():
                self.hedged += 1
                attempts.append(_Attempt(self._threads, call))
            answer = _first_success(attempts)
        finally:
            for attempt in attempts:
                attempt.end(self._cut)
        self._usual.append(self._clock() - began_at)
        return answer


class _Attempt(Generic[Answer]):
    """One send of a part, on a thread of its own."""

    def __init__(self, threads: Executor, call: Callable[[], Answer]) -> None:
        self._call = call
        self._thread: int | None = None
        self.future = threads.submit(copy_context().run, self._run)

    def _run(self) -> Answer:
        self._thread = threading.get_ident()
        return self._call()

    def ends_within(self, seconds: float | None) -> bool:
        return bool(wait([self.future], seconds).done)

    def end(self, cut: Cut) -> None:
        """Break it off if it still runs, and return once it has ended."""
        while not self.future.cancel() and not self.future.done():
            if self._thread is not None:
                cut(self._thread)
            self.ends_within(AGAIN_SECONDS)  # it may not have reached its connection yet


def _first_success(attempts: Sequence[_Attempt[Answer]]) -> Answer:
    """Return the answer of the first attempt that succeeds, or raise what the last one raised."""
    pending = {attempt.future for attempt in attempts}
    while True:
        ended, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in ended:
            if future.exception() is None:
                return future.result()
        if not pending:
            return ended.pop().result()
