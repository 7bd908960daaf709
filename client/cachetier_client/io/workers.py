"""Threads that write and read blocks beside their caller, and the memory they do it with.

The caller works too, so a shard of one block starts and wakes nobody, and a call that finds all
threads busy still goes on. What one call uses is bounded by ``threads``, whoever else is calling.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from cachetier_client import forks
from cachetier_client.io.aligned import BlockPool

_this_thread = threading.local()


class Workers:
    """A few threads, started at first use and kept until ``close``. Thread-safe and fork-safe.

    ``blocks`` keeps one for each thread, for whoever works.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.blocks = BlockPool(threads)
        self._lock = threading.RLock()
        self._starter: int | None = None
        self._executor: ThreadPoolExecutor | None = None
        forks.own(self)

    def run(self, work: Callable[[], None], shares: int) -> None:
        """Run ``work`` in up to ``shares`` threads at once, and return when all have ended.

        ``work`` divides the job itself: it returns when nothing is left to take. If any raises, the
        first failure is raised here, after all have ended.
        """
        helpers = [self.start(work) for _ in range(min(shares, self.threads) - 1)]
        try:
            work()
        finally:
            running = [helper for helper in helpers if helper is not None and not helper.cancel()]
            failures = [helper.exception() for helper in running]
        for failure in failures:
            if failure is not None:
                raise failure

    def for_each(self, count: int, work: Callable[[int], None]) -> None:
        """Do ``work`` for each number below ``count``; after a failure no thread takes another."""
        numbers = itertools.count()  # one C call takes a number: no two threads get the same
        failed = False

        def share() -> None:
            nonlocal failed
            try:
                while not failed and (number := next(numbers)) < count:
                    work(number)
            except BaseException:  # an interrupt too
                failed = True
                raise

        self.run(share, min(self.threads, count))

    def start(self, work: Callable[[], None]) -> Future[None] | None:
        """Start ``work`` on a thread; None when none can be had, as while the interpreter exits.

        Nor can one in a signal handler that interrupted this very call: the executor has locks that
        the handler would wait for.
        """
        if self.threads < 2 or self._starter == threading.get_ident():
            return None
        with self._lock:
            self._starter = threading.get_ident()
            try:
                if self._executor is None:
                    name = "cachetier-blocks"
                    self._executor = ThreadPoolExecutor(self.threads - 1, name, _note_worker)
                return self._executor.submit(work)
            except RuntimeError:
                return None
            finally:
                self._starter = None

    @staticmethod
    def is_at_work() -> bool:
        """Return whether this is one of these threads: it must not wait for what they do."""
        return getattr(_this_thread, "is_worker", False)

    def close(self) -> None:
        """Let the threads go once they are idle."""
        with self._lock:
            executor, self._executor = self._executor, None
        forks.disown(self)
        if executor is not None:
            executor.shutdown(wait=False)
        self.blocks.clear()

    def abandon(self) -> None:
        """Forget the parent's threads: a child has none of them."""
        self._lock, self._starter = threading.RLock(), None
        self._executor = None
        forks.own(self)


def _note_worker() -> None:
    _this_thread.is_worker = True
