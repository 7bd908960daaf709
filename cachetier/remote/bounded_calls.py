"""Calls on a bucket that nobody waits for longer than some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from cachetier.errors import TransientError

PATIENCE_SECONDS = 5.0
_CLOSED = "the bucket is asked nothing more: this ends"
Answer = TypeVar("Answer")


class BoundedCalls:
    """Makes calls on threads of its own, each waited for a bounded time. Thread-safe.

    A call that hangs is left behind: it may take effect still.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._is_closed = False

    def __call__(self, call: Callable[[], Answer]) -> Answer:
        """Return the answer of ``call``.

        Raises:
            RemoteError: The call fails, does not answer in time, or comes after ``close``.
        """
        return self.each([call])[0]

    def each(self, calls: Iterable[Callable[[], Answer]]) -> list[Answer]:
        """Return the answers of ``calls``, which are made at once; raises as one call does."""
        return [_answer(begun) for begun in [self._begun(call) for call in calls]]

    def close(self) -> None:
        """Make no more calls; those that hang are left behind."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begun(self, call: Callable[[], Answer]) -> Future[Answer]:
        try:
            return self._threads.submit(call)
        except RuntimeError:
            if not self._is_closed:
                raise
            raise TransientError(_CLOSED) from None


def _answer(begun: Future[Answer]) -> Answer:
    try:
        return begun.result(PATIENCE_SECONDS)
    except FutureTimeoutError:
        begun.cancel()
        raise TransientError(f"no answer of the bucket in {PATIENCE_SECONDS:g} s") from None
    except CancelledError:
        raise TransientError(_CLOSED) from None


def alone(name: str, call: Callable[[], Answer]) -> Future[Answer]:
    """Begin ``call`` on a thread of its own, which is left to die with the process if it hangs.

    Raises:
        RuntimeError: No thread is left.
    """
    answer = Future[Answer]()

    def calling() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=calling, name=name, daemon=True).start()
    return answer
