"""The wrapper that retries the service's calls to a store; no other place does.

Throttled and transient calls are repeated with full jitter; everything else is the caller's to
decide. Repeating after transient failures spends from a budget that successes and time refill, all
calls of a store together: when most calls fail, they fail at once instead of several times each.

The outcome of a transient call is unknown, so a repeated call may meet its own earlier success:

- ``put`` under a condition then raises PreconditionFailedError: HEAD, and compare digests;
- ``complete_upload`` then raises UploadGoneError: HEAD likewise;
- ``create_upload`` may leave an upload behind that nobody knows: ``list_uploads`` finds it.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetier.errors import RemoteError, ThrottledError, TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How hard to try: so many calls in all, none begun after ``deadline_seconds``.

    Those that the store throttles may have a limit of their own: with a pace inside, they come
    through.
    """

    attempts: int = 6
    throttled_attempts: float | None = None
    base_seconds: float = 0.1
    cap_seconds: float = 20.0
    deadline_seconds: float = 120.0


def wait_before_next(
    policy: RetryPolicy, error: RemoteError, attempt: int, elapsed_seconds: float, fraction: float
) -> float | None:
    """Return the seconds to wait after ``attempt`` (from 1) failed, or None to give up.

    Args:
        fraction: Uniform in [0, 1): how much of the exponential step to wait (full jitter). A time
            that the store asked for is waited in full, with the jitter on top, so that those told
            the same do not come back together.
    """
    if not isinstance(error, ThrottledError | TransientError):
        return None
    own = policy.throttled_attempts if isinstance(error, ThrottledError) else None
    if attempt >= (own or policy.attempts):
        return None
    doublings = min(attempt - 1, 60)  # beyond any cap, and still a float
    step_seconds = min(policy.cap_seconds, policy.base_seconds * 2.0**doublings)
    wait_seconds = (error.retry_after_seconds or 0.0) + fraction * step_seconds
    return wait_seconds if elapsed_seconds + wait_seconds < policy.deadline_seconds else None


# Somebody waits for the answer: the drain, which retries for ever, has more patience.
ASKING = RetryPolicy(
    attempts=4, throttled_attempts=math.inf, cap_seconds=5.0, deadline_seconds=30.0
)


class RetryBudget:
    """How many calls may be repeated: 20, then five a second and one for each ten that succeed.

    Thread-safe. Throttled calls cost nothing: it is the pace that holds them back. Five a second
    are no load for a store, and bring an item of several calls through where one call of a few
    fails. Without them a drain that tries one item after each pause would make ever longer pauses.
    """

    LIMIT = 20
    A_SECOND = 5
    SUCCESSES_FOR_ONE = 10

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._successes: float = self.LIMIT * self.SUCCESSES_FOR_ONE
        self._counted_at = clock()

    def earn(self) -> None:
        with self._lock:
            self._add(1)

    def spend(self, error: RemoteError) -> bool:
        """Pay for a call repeated after ``error``; False when nothing is left."""
        if isinstance(error, ThrottledError):
            return True
        with self._lock:
            now = self._clock()
            self._add((now - self._counted_at) * self.A_SECOND * self.SUCCESSES_FOR_ONE)
            self._counted_at = now
            if self._successes < self.SUCCESSES_FOR_ONE:
                return False
            self._successes -= self.SUCCESSES_FOR_ONE
            return True

    def _add(self, successes: float) -> None:
        self._successes = min(self.LIMIT * self.SUCCESSES_FOR_ONE, self._successes + successes)


class RetryingObjectStore(WrappedObjectStore):
    """Repeats throttled and transient calls as ``policy`` says, then raises the last error."""

    def __init__(
        self,
        store: ObjectStore,
        policy: RetryPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """Wrap ``store``; a ``sleep`` that raises lets a stopping owner cut a wait short."""
        super().__init__(store)
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._fraction = fraction
        self._budget = RetryBudget(clock)

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer]
    ) -> Answer:
        started_at = self._clock()
        attempt = 1
        while True:
            try:
                answer = call()
            except (ThrottledError, TransientError) as error:
                wait_seconds = wait_before_next(
                    self._policy, error, attempt, self._clock() - started_at, self._fraction()
                )
                if wait_seconds is None or not self._budget.spend(error):
                    raise
            else:
                self._budget.earn()
                return answer
            self._sleep(wait_seconds)
            attempt += 1
