"""The policy of calls on a bucket: when a call begins, when it is sent twice, and when again.

``CallPolicy`` is the one store that stands in front of a bucket. Each call of it

1. waits until the pace allows it (``Pacer``), and reports the answer to the pace;
2. is sent, and measured for ``observe``;
3. is sent a second time beside the first one if it is a slow upload part (``Hedge``). The second
   send waits for the pace as well;
4. is repeated after a throttled or transient failure (``Retries``). The caller decides about every
   other error.

What a store lacks (no pace for doctor, no hedge for a restore, no retry for a probe) is left out.

A repeated call may meet its own earlier success: ``base`` says for each call what that means.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from cachetier_client.clock import Clock

from cachetier.errors import (
    CachetierError,
    RemoteError,
    StoppingError,
    ThrottledError,
    TransientError,
)
from cachetier.model.pace import Pace, Ticket
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

READS = frozenset({"head", "get", "read_into", "list", "list_parts", "list_uploads"})
LOOK_SECONDS = 1.0  # a limit that follows the time of day changes while calls wait

HEDGE_AFTER_SECONDS = 2.0
HEDGE_AFTER_TIMES = 3.0  # the usual time of a part
USUAL_OF = 32
USUAL_FROM = 8
AGAIN_SECONDS = 0.2

# Hears of each call of a store: operation, seconds, bytes that it moved, and outcome.
Observe = Callable[[Operation, float, int, str], None]
# Breaks off the call that a thread is in, if any: it fails as on a broken connection.
Cut = Callable[[int], None]


# --- retries --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How hard to try: so many calls in all, none begun after ``deadline_seconds``.

    Calls that the store throttles may have a limit of their own, because the pace slows them down
    until they get through.
    """

    attempts: int = 6
    throttled_attempts: float | None = None
    base_seconds: float = 0.1
    cap_seconds: float = 20.0
    deadline_seconds: float = 120.0


# All retry policies of the service, by purpose.
# A probe, and the drain's look whether a remote is back: the caller repeats it at its own pace.
ONCE = RetryPolicy(attempts=1)
# The drain: nobody waits, and a task that fails is handed out again later.
DRAIN = RetryPolicy()
# A restore, a listing, a command: somebody waits, so the deadline is short. A throttled call is
# repeated until then.
ASKING = RetryPolicy(
    attempts=4, throttled_attempts=math.inf, cap_seconds=5.0, deadline_seconds=30.0
)
# The checks of doctor: a fault that passes is no finding, and a person watches.
DOCTOR = RetryPolicy(attempts=3, cap_seconds=2.0, deadline_seconds=20.0)
# Doctor's look for the size of the largest save: it is only a hint, so doctor does without it.
DOCTOR_HINT = RetryPolicy(attempts=2, deadline_seconds=10.0)


def wait_before_next(
    policy: RetryPolicy, error: RemoteError, attempt: int, elapsed_seconds: float, fraction: float
) -> float | None:
    """Return the seconds to wait after ``attempt`` (from 1) failed, or None to give up.

    Args:
        fraction: Uniform in [0, 1): how much of the exponential step to wait (full jitter). A time
            that the store asked for is waited in full, with the jitter on top, so that callers
            that were told the same time do not come back together.
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


class RetryBudget:
    """How many calls may be repeated: 20, then five a second and one for each ten that succeed.

    Thread-safe. Throttled calls cost nothing, because the pace slows them down. Five a second are
    no load for a store, and bring an item of several calls through where one call of a few fails.
    Without them a drain that tries one item after each pause would make ever longer pauses.
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


class Retries:
    """The retries of one store: a policy for each call, and one budget for all of them together.

    When most calls fail, the budget is spent and they fail at once instead of several times each.
    """

    def __init__(
        self,
        policy: RetryPolicy = DRAIN,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """Retry as ``policy`` says; a ``sleep`` that raises lets a stopping owner end a wait."""
        self.clock = clock
        self.sleep = sleep
        self.budget = RetryBudget(clock)
        self._policy = policy
        self._fraction = fraction

    def wait_seconds(self, error: RemoteError, attempt: int, began_at: float) -> float | None:
        """Return how long to wait before the next attempt; None if there is none."""
        elapsed_seconds = self.clock() - began_at
        wait_seconds = wait_before_next(
            self._policy, error, attempt, elapsed_seconds, self._fraction()
        )
        return wait_seconds if wait_seconds is not None and self.budget.spend(error) else None


# --- pace -----------------------------------------------------------------------------------------


class Pacer:
    """Makes calls wait for the turn that ``pace`` gives them. Thread-safe, as the pace is not.

    The decisions are those of ``model.pace``; the lock, the clock and the waiting are here. Stores
    that share a pace share its pacer.
    """

    def __init__(
        self, pace: Pace, clock: Clock, *, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """A call that waits while ``stopping`` raises StoppingError."""
        self._pace = pace
        self._clock = clock
        self._stopping = stopping
        self._changed = threading.Condition()
        # Of each kind that the pace judges apart, one call waits for its turn, and the others wait
        # for that one: otherwise every turn would wake all of them.
        self._first = {kind: threading.Lock() for kind in product((False, True), repeat=2)}

    @contextmanager
    def turn(self, size_bytes: int, *, reads: bool) -> Iterator[None]:
        """Wait until a call of ``size_bytes`` may begin; inside it is under way."""
        ticket = self._wait_for_turn(size_bytes, reads=reads)
        try:
            yield
        except ThrottledError as error:
            with self._ended() as now:
                self._pace.throttled(ticket, now, error.retry_after_seconds)
            raise
        except BaseException:
            with self._ended() as now:
                self._pace.failed(now)
            raise
        with self._ended() as now:
            self._pace.succeeded(ticket, now)

    def _wait_for_turn(self, size_bytes: int, *, reads: bool) -> Ticket:
        with self._first[reads, bool(size_bytes) and not reads], self._changed:
            while True:
                now = self._clock.monotonic()
                wait_seconds = self._pace.wait_seconds(now, size_bytes, reads=reads)
                if not wait_seconds:
                    return self._pace.begin(now, size_bytes, reads=reads)
                if self._stopping():
                    raise StoppingError("the drain stops")
                self._changed.wait(min(wait_seconds, LOOK_SECONDS))

    @contextmanager
    def _ended(self) -> Iterator[float]:
        with self._changed:
            yield self._clock.monotonic()
            self._changed.notify_all()


# --- hedging --------------------------------------------------------------------------------------


def hedge_after_seconds(usual: Sequence[float]) -> float | None:
    """Return after how long a part counts as slow, by the last ones; None if they are too few."""
    if len(usual) < USUAL_FROM:
        return None
    return max(HEDGE_AFTER_SECONDS, HEDGE_AFTER_TIMES * statistics.median(usual))


class _SecondSend(threading.Thread):
    """The second send of a part, begun only if the first counts as slow at ``slow_at``."""

    def __init__(self, send: Callable[[], Any], cut: Cut, slow_at: float) -> None:
        super().__init__(name="remote-hedge")
        self.slow_at = slow_at
        self.first_ended = threading.Event()
        self.answers: list[Any] = []  # none if it fails
        self._send = send
        self._cut = cut
        self._callers_context = copy_context()
        self._first = threading.get_ident()

    def run(self) -> None:
        """Send, and break the first send off after a success, until it has ended."""
        with suppress(Exception):
            self.answers.append(self._callers_context.run(self._send))
        while self.answers and not self.first_ended.is_set():
            self._cut(self._first)
            self.first_ended.wait(AGAIN_SECONDS)  # it may not have reached its connection yet


class Hedge:
    """Sends a slow upload part a second time beside the first. Thread-safe.

    The end of a checkpoint waits for its slowest part, and a part is slow most often because of its
    connection or the server behind that: a second send rarely meets the same. The first of the two
    to succeed counts. The other is cut off and waited for, so that nobody sends from memory that
    the caller has given away. Both carry the same bytes under the same number, so the store may
    keep either.

    The caller sends the part itself. A thread that lives while parts are under way notices the slow
    ones, and only then a second thread sends. ``hedged`` counts how often.
    """

    def __init__(self, cut: Cut, has_room: Callable[[], bool] = lambda: True) -> None:
        """Hedge the parts of one server.

        Args:
            cut: Breaks off the call of a thread.
            has_room: Whether a second send would not take the place of another part's first.
        """
        self.hedged = 0
        self._cut = cut
        self._has_room = has_room
        self._usual: deque[float] = deque(maxlen=USUAL_OF)
        self._changed = threading.Condition()
        self._waiting: set[_SecondSend] = set()
        self._wakes_at: float | None = None  # when the watching thread looks next, if there is one

    def run(self, send: Callable[[], Answer]) -> Answer:
        """Return the answer of ``send``, which is called twice if the first call is slow.

        Raises:
            Exception: What the first call raised, if both fail.
        """
        began_at = time.monotonic()
        slow_after_seconds = hedge_after_seconds(tuple(self._usual))
        if slow_after_seconds is None:
            answer = send()
        else:
            answer = self._raced(send, began_at + slow_after_seconds)
        self._usual.append(time.monotonic() - began_at)
        return answer

    def _raced(self, send: Callable[[], Answer], slow_at: float) -> Answer:
        second = _SecondSend(send, self._cut, slow_at)
        self._begin(second)
        try:
            answer = send()
        except BaseException:
            self._end(second)
            if not second.answers:
                raise
            return second.answers[0]  # type: ignore[no-any-return]
        self._end(second, self._cut)
        return answer

    def _begin(self, second: _SecondSend) -> None:
        """Watch a part whose first send begins now."""
        with self._changed:
            if self._wakes_at is None:
                threading.Thread(target=self._watch, name="remote-slow", daemon=True).start()
                self._wakes_at = second.slow_at
            elif second.slow_at < self._wakes_at:
                self._changed.notify()
            self._waiting.add(second)

    def _end(self, second: _SecondSend, cut: Cut = lambda _thread: None) -> None:
        """Return once no second send is under way, and none can begin."""
        with self._changed:
            self._waiting.discard(second)
            second.first_ended.set()
        while second.is_alive():
            cut(second.ident or 0)
            second.join(AGAIN_SECONDS)

    def _watch(self) -> None:
        """Begin the second sends of slow parts, until no part is under way."""
        with self._changed:
            while self._waiting:
                self._wakes_at = min(second.slow_at for second in self._waiting)
                self._changed.wait(max(0.0, self._wakes_at - time.monotonic()))
                now = time.monotonic()
                for second in [each for each in self._waiting if each.slow_at <= now]:
                    self._waiting.discard(second)
                    with suppress(RuntimeError):  # no thread is left: the first goes on alone
                        if self._has_room():
                            second.start()
                            self.hedged += 1
            self._wakes_at = None


# --- the policy -----------------------------------------------------------------------------------


class CallPolicy(WrappedObjectStore):
    """A store whose calls are paced, hedged, measured and retried, each where that is asked for."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        retries: Retries | None = None,
        pacer: Pacer | None = None,
        hedge: Hedge | None = None,
        observe: Observe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap ``store``.

        Args:
            store: The bucket itself, each call of which is sent once.
            retries: Its retries; without any a call is made once.
            pacer: Gives each attempt its turn.
            hedge: Sends slow upload parts twice.
            observe: Called with operation, seconds, size and outcome of each attempt. The outcome
                is ``ok``, the ``code`` of the error, or ``internal`` for an error that is not one
                of ours; the size is what the call moved, 0 when it failed.
            clock: Measures attempts.
        """
        super().__init__(store)
        self._retries = retries or Retries(ONCE)
        self._pacer = pacer
        self._hedge = hedge
        self._observe = observe
        self._clock = clock

    def _around(self, operation: Operation, size_bytes: int, call: Callable[[], Answer]) -> Answer:
        send = partial(self._attempt, operation, size_bytes, call)
        hedge = self._hedge if operation == "upload_part" else None
        retries, attempt = self._retries, 1
        began_at = retries.clock()
        while True:
            try:
                answer = send() if hedge is None else hedge.run(send)
            except (ThrottledError, TransientError) as error:
                wait_seconds = retries.wait_seconds(error, attempt, began_at)
                if wait_seconds is None:
                    raise
            else:
                retries.budget.earn()
                return answer
            retries.sleep(wait_seconds)
            attempt += 1

    def _attempt(self, operation: Operation, size_bytes: int, call: Callable[[], Answer]) -> Answer:
        """Wait for the turn, call the store once, and measure it."""
        reads = operation in READS
        with self._pacer.turn(size_bytes, reads=reads) if self._pacer else nullcontext():
            began_at = self._clock()
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
                if self._observe is not None:
                    self._observe(operation, self._clock() - began_at, moved_bytes, outcome)
