"""The policy of calls on a bucket: when a call begins, when it is broken off, and when made again.

``CallPolicy`` is the one store that stands in front of a bucket. Each call of it

1. waits until the pace allows it (``Pacer``), and reports the answer to the pace;
2. is sent, and measured for ``observe``;
3. is broken off and made again if it moves a part and is far slower than others
   (``Stragglers``). The next try waits for the pace as well;
4. is repeated after a throttled or transient failure (``Retries``). The caller decides about every
   other error.

What a store lacks (no pace for doctor, no stragglers for fsck, no retry for a probe) is left out.

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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product

from cachetier_client.clock import Clock
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import (
    CachetierError,
    RemoteError,
    StoppingError,
    ThrottledError,
    TransientError,
)
from cachetier.model.pace import Pace, Ticket
from cachetier.remote.base import ObjectStore
from cachetier.remote.stall_guard import keep_looking
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore

READS = frozenset({"head", "get", "read_into", "list", "list_parts", "list_uploads"})
LOOK_SECONDS = 1.0  # a limit that follows the time of day changes while calls wait

SLOW_SECONDS = 2.0
SLOW_TIMES = 3.0  # the usual time of a call
USUAL_OF = 32
USUAL_FROM = 8

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


# --- stragglers -----------------------------------------------------------------------------------


def slow_after_seconds(usual: Sequence[float]) -> float | None:
    """Return after how long a call counts as slow, by the last ones; None if they are too few."""
    if len(usual) < USUAL_FROM:
        return None
    return max(SLOW_SECONDS, SLOW_TIMES * statistics.median(usual))


@dataclass(slots=True)
class Try:
    """One try of a call, and how many times as long as any call it may take."""

    patience: float = 1.0
    began_at: float = 0.0
    broken_off: bool = False


class Stragglers:
    """Breaks calls off that take far longer than others do, and makes them again. Thread-safe.

    The end of a checkpoint or a restore waits for its slowest call, and one is slow most often
    because of its connection or the server behind that: a second try rarely meets the same. Each
    try of a call may take twice as long as the one before, so that one that needs its time gets it.
    ``broken_off`` counts the calls.

    The store may keep either of two tries of a part: they carry the same bytes.
    """

    def __init__(self, cuts: Sequence[Cut], has_room: Callable[[], bool] = lambda: True) -> None:
        """Watch the calls to one server.

        Args:
            cuts: Break off the call of a thread, whoever makes it.
            has_room: Whether a second try would not take the place of another call's first.
        """
        self.broken_off = 0
        self._cuts = cuts
        self._has_room = has_room
        self._lock = threading.Lock()
        self._usual: deque[float] = deque(maxlen=USUAL_OF)
        self._under_way: dict[int, Try] = {}  # by thread
        self._watched = False

    @contextmanager
    def watched(self, this: Try) -> Iterator[None]:
        """Make a call inside; it fails once ``this`` is ``broken_off``."""
        thread, this.began_at = threading.get_ident(), time.monotonic()
        with self._lock:
            self._under_way[thread] = this
            if not self._watched:
                keep_looking(self._look, SLOW_SECONDS / 4)
                self._watched = True
        try:
            yield
            self._usual.append(time.monotonic() - this.began_at)
        finally:
            with self._lock:
                del self._under_way[thread]

    def _look(self) -> bool:
        """Break off what is slow, and return whether there is anything left to watch."""
        with self._lock:  # a call that ends waits: its thread may be in another one next
            slow_after = slow_after_seconds(tuple(self._usual)) or math.inf
            for thread, this in self._under_way.items():
                slow_at = this.began_at + this.patience * slow_after
                if slow_at <= time.monotonic() and self._has_room():
                    self.broken_off += not this.broken_off
                    this.broken_off = True
                    for cut in self._cuts:  # again, if it had not reached its connection
                        cut(thread)
            self._watched = bool(self._under_way)
            return self._watched


# --- the policy -----------------------------------------------------------------------------------


class CallPolicy(WrappedObjectStore):
    """A store whose calls are paced, timed, watched and retried, each where that is asked for."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        retries: Retries | None = None,
        pacer: Pacer | None = None,
        stragglers: Stragglers | None = None,
        observe: Observe | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap ``store``.

        Args:
            store: The bucket itself, each call of which is sent once.
            retries: Its retries; without any a call is made once.
            pacer: Gives each attempt its turn.
            stragglers: Makes slow calls again that move parts of objects.
            observe: Called with operation, seconds, size and outcome of each attempt. The outcome
                is ``ok``, the ``code`` of the error, or ``internal`` for an error that is not one
                of ours; the size is what the call moved, 0 when it failed.
            clock: Measures attempts.
        """
        super().__init__(store)
        self._retries = retries or Retries(ONCE)
        self._pacer = pacer
        self._stragglers = stragglers
        self._observe = observe
        self._clock = clock

    def _around(self, operation: Operation, size_bytes: int, call: Callable[[], Answer]) -> Answer:
        retries, attempt, patience = self._retries, 1, 1.0
        began_at = retries.clock()
        while True:
            this = Try(patience)
            try:
                answer = self._attempt(operation, size_bytes, call, this)
            except (ThrottledError, TransientError) as error:
                if this.broken_off:
                    patience *= 2
                    continue
                wait_seconds = retries.wait_seconds(error, attempt, began_at)
                if wait_seconds is None:
                    raise
            else:
                retries.budget.earn()
                return answer
            retries.sleep(wait_seconds)
            attempt += 1

    def _attempt(
        self, operation: Operation, size_bytes: int, call: Callable[[], Answer], this: Try
    ) -> Answer:
        """Wait for the turn, call the store once, and measure it."""
        reads = operation in READS
        with self._pacer.turn(size_bytes, reads=reads) if self._pacer else nullcontext():
            began_at = self._clock()
            moved_bytes, outcome = 0, CachetierError.code
            try:
                with self._watched(operation, size_bytes, this):
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

    def _watched(
        self, operation: Operation, size_bytes: int, this: Try
    ) -> AbstractContextManager[None]:
        reads_much = operation == "read_into" and size_bytes >= BLOCK_BYTES
        if self._stragglers is None or not (reads_much or operation == "upload_part"):
            return nullcontext()
        return self._stragglers.watched(this)
