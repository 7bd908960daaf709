"""Answer those who wait, all from one thread: a waiting caller takes neither thread nor slot.

A question is looked at whenever something changed here, and every two seconds, as what others do
rings no bell. Callers who ask the same share each look. Looks take a tenth of a thread's time at
the most, so however many wait, puts go on; and a look that has to ask the bucket does it beside, so
a bucket that hangs holds up nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cachetier_client.clock import Clock

from cachetier.notifier import Changes

LOOK_AGAIN_SECONDS = 2.0
REST_OF_A_ROUND = 9.0
BUCKET_THREADS = 2

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class AskBucket(Generic[Answer]):
    """The result of a look that needs the bucket: ``look`` asks it, and may take long."""

    look: Callable[[], Answer | None]


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """The conditions that callers wait for.

    Args:
        key: The same for those who ask the same.
        look: Returns the answer, None while there is none, or how to ask the bucket. What it raises
            is an answer too.
        late: Called at the deadline, with the seconds that were given; as ``look``, but an answer.
    """

    key: Hashable
    look: Callable[[], Answer | AskBucket[Answer] | None]
    late: Callable[[float], Answer]

    def answer(self, changes: Changes, timeout_seconds: float) -> Answer:
        """Wait for the answer on the caller's own thread."""
        found: Answer | None = None

        def looked() -> bool:
            nonlocal found
            seen = self.look()
            found = seen.look() if isinstance(seen, AskBucket) else seen
            return found is not None

        changes.wait_for(looked, timeout_seconds, LOOK_AGAIN_SECONDS)
        return self.late(timeout_seconds) if found is None else found


@dataclass(frozen=True, slots=True, eq=False)
class _Caller:
    """Somebody who asked; ``seconds`` is what was given, until ``ends_at``."""

    question: Question[Any]
    future: Future[Any]
    seconds: float
    ends_at: float


class Waits:
    """Looks for all who wait. Thread-safe."""

    def __init__(self, changes: Changes, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._callers: list[_Caller] = []
        self._new = False
        self._closed = False
        self._ask_again_at: dict[Hashable, float] = {}  # when the bucket may be asked again
        self._thread = threading.Thread(target=self._run, name="waits", daemon=True)
        self._bucket = ThreadPoolExecutor(BUCKET_THREADS, thread_name_prefix="waits-bucket")
        changes.listen(self._ring)

    @property
    def callers(self) -> int:
        """How many wait now."""
        with self._changed:
            return sum(not caller.future.done() for caller in self._callers)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell everybody who still waits that it is too late."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._bucket.shutdown(wait=False, cancel_futures=True)

    def ask(self, question: Question[Answer], timeout_seconds: float) -> Future[Answer]:
        """Return what will hold the answer, ``timeout_seconds`` from now at the latest.

        Cancelled, it is forgotten.
        """
        future: Future[Answer] = Future()
        ends_at = self._clock.monotonic() + timeout_seconds
        with self._changed:
            self._callers.append(_Caller(question, future, timeout_seconds, ends_at))
            self._new = True
            self._changed.notify()
        return future

    # --- the thread ------------------------------------------------------------------------------

    def _ring(self) -> None:
        with self._changed:
            if self._callers:
                self._new = True
                self._changed.notify()

    def _run(self) -> None:
        while not self._closed:
            began_at = self._clock.monotonic()
            for callers in self._due():
                question, now = callers[0].question, self._clock.monotonic()
                if now >= self._ask_again_at.get(question.key, now):
                    self._look(callers, question.look)
                self._tell_late([caller for caller in callers if caller.ends_at <= now])
            now = self._clock.monotonic()
            rest_seconds = min(REST_OF_A_ROUND * (now - began_at), LOOK_AGAIN_SECONDS)
            self._wait(rest_seconds, lambda: self._closed)
            self._wait(self._patience(), lambda: self._new or self._closed)
        for callers in self._due():
            self._tell_late(callers)

    def _due(self) -> list[list[_Caller]]:
        """Return who waits, those together who ask the same; forget who is gone."""
        groups: dict[Hashable, list[_Caller]] = {}
        with self._changed:
            self._new = False
            self._callers = [each for each in self._callers if not each.future.cancelled()]
            for caller in self._callers:
                groups.setdefault(caller.question.key, []).append(caller)
            for key in self._ask_again_at.keys() - groups.keys():
                del self._ask_again_at[key]
        return list(groups.values())

    def _look(self, callers: Sequence[_Caller], look: Callable[[], Any]) -> None:
        """Tell ``callers``, and nobody who asked since, what one look answers."""
        try:
            seen = look()
        except Exception as error:
            for future in self._taken(callers):
                future.set_exception(error)
            return
        if isinstance(seen, AskBucket):
            self._ask_again_at[callers[0].question.key] = float("inf")
            self._bucket.submit(self._ask_bucket, callers, seen.look)
        elif seen is not None:
            for future in self._taken(callers):
                future.set_result(seen)

    def _ask_bucket(self, callers: Sequence[_Caller], look: Callable[[], Any]) -> None:
        try:
            self._look(callers, look)
        finally:
            with self._changed:
                again_at = self._clock.monotonic() + LOOK_AGAIN_SECONDS
                self._ask_again_at[callers[0].question.key] = again_at

    def _tell_late(self, callers: Sequence[_Caller]) -> None:
        for caller in callers:
            for future in self._taken([caller]):
                try:
                    future.set_result(caller.question.late(caller.seconds))
                except Exception as error:
                    future.set_exception(error)

    def _taken(self, callers: Sequence[_Caller]) -> list[Future[Any]]:
        """Return the futures of those who wait still, whom the caller tells now."""
        with self._changed:
            waiting = set(callers).intersection(self._callers)
            self._callers = [each for each in self._callers if each not in waiting]
            return [each.future for each in waiting if each.future.set_running_or_notify_cancel()]

    def _patience(self) -> float | None:
        """Return for how long there is nothing to look at, unless something changes."""
        with self._changed:
            if not self._callers:
                return None
            ends_at = min(caller.ends_at for caller in self._callers)
            return max(0.0, min(LOOK_AGAIN_SECONDS, ends_at - self._clock.monotonic()))

    def _wait(self, seconds: float | None, ended: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(ended, seconds)
