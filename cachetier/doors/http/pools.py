"""Bounded thread pools for blocking calls: the event loop itself only moves bytes.

Five pools, so that who waits for room or for the drain never holds up a commit, and a commit's
sync never holds up the blocks of another upload, nor people who look what is wrong with the disk.
Of those that commit and those that wait no principal takes the last thread: a call may be as slow
as a bucket.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from cachetier import callers

Result = TypeVar("Result")


class Pools:
    """``disk`` moves blocks and ``wire`` receives; ``quick`` commits, and ``patient`` waits.

    ``look`` shows how the node is, and waits for no sync.
    """

    def __init__(
        self, *, disk: int = 4, wire: int = 12, quick: int = 10, patient: int = 64
    ) -> None:
        self._disk = ThreadPoolExecutor(disk, thread_name_prefix="http-disk")
        self._wire = ThreadPoolExecutor(wire, thread_name_prefix="http-wire")
        self._quick = ThreadPoolExecutor(quick, thread_name_prefix="http-quick")
        self._patient = ThreadPoolExecutor(patient, thread_name_prefix="http-patient")
        self._quick_turns, self._patient_turns = _FairTurns(quick), _FairTurns(patient)
        self._look = ThreadPoolExecutor(2, thread_name_prefix="http-look")

    def disk(self, call: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return _run(self._disk, call, *arguments)

    def wire(self, call: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return _run(self._wire, call, *arguments)

    def quick(self, call: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return self._quick_turns.run(partial(_run, self._quick, call, *arguments))

    def patient(self, call: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return self._patient_turns.run(partial(_run, self._patient, call, *arguments))

    def look(self, call: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return _run(self._look, call, *arguments)

    async def owned(
        self, undo: Callable[[Result], object], call: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Return what ``call`` gives, patiently; where nobody waits any more, ``undo`` gets it."""
        future = self.patient(call, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._undone(done, undo))
            raise

    async def whole(self, future: asyncio.Future[Result]) -> Result:
        """Return what a call gives once it has ended, also for somebody who is cut off meanwhile.

        For calls that use what the caller closes next.
        """
        cut_off = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cut_off = error
        if cut_off is not None:
            if not future.cancelled():
                future.exception()  # looked at, or asyncio would log that nobody did
            raise cut_off
        return future.result()

    def _undone(self, done: asyncio.Future[Result], undo: Callable[[Result], object]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        try:
            self._quick.submit(undo, done.result())
        except RuntimeError:  # the door closes
            undo(done.result())

    def close(self) -> None:
        """Let idle threads go; a call that still blocks ends with the process."""
        for pool in (self._disk, self._wire, self._quick, self._patient, self._look):
            pool.shutdown(wait=False, cancel_futures=True)


def _run(
    pool: ThreadPoolExecutor, call: Callable[..., Result], *arguments: Any
) -> asyncio.Future[Result]:
    """Call it on a thread that knows, as the request does, who called; see ``callers``."""
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(pool, copy_context().run, call, *arguments)


class _FairTurns:
    """Lets calls begin on ``threads`` so that no principal has the last. For one event loop."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._busy: Counter[str | None] = Counter()  # threads, by principal
        self._waiting: list[tuple[str | None, asyncio.Future[None]]] = []

    def run(self, begin: Callable[[], asyncio.Future[Result]]) -> asyncio.Future[Result]:
        """Return what ``begin`` gives, once its principal has a thread for it."""
        return asyncio.ensure_future(self._run(begin))

    async def _run(self, begin: Callable[[], asyncio.Future[Result]]) -> Result:
        who, turn = callers.principal(), asyncio.get_running_loop().create_future()
        self._waiting.append((who, turn))
        self._admit()
        try:
            await turn
            running = begin()
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._ended(who)
            raise
        running.add_done_callback(lambda _running: self._ended(who))  # later than who is cut off
        return await running

    def _ended(self, who: str | None) -> None:
        self._busy[who] -= 1
        self._busy += Counter()  # without those that have none
        self._admit()

    def _admit(self) -> None:
        for waiting in self._waiting[:]:
            who, turn = waiting
            if turn.done() or self._has_thread(who):
                self._waiting.remove(waiting)
                if not turn.done():  # whoever asked is still there
                    self._busy[who] += 1
                    turn.set_result(None)

    def _has_thread(self, who: str | None) -> bool:
        """Return whether there is one; the last quarter is for who has less than a fair share."""
        shares = len(self._busy.keys() | {who, ""})  # one more, for whoever comes next
        is_modest = self._busy[who] * shares < self._threads
        kept = 0 if is_modest else self._threads // 4
        return self._busy.total() < self._threads - kept
