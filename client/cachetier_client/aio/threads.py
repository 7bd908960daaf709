"""Blocking calls on threads of their own, for coroutines, so that none can be cut off half-way."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError, WaitError

_SLICE_SECONDS = 2.0  # how long a wait holds its thread before it looks whether it is still wanted
_CLOCK = SystemClock()

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Blocking_co = TypeVar("Blocking_co", covariant=True)  # what is called on a thread


class Threads:
    """Runs blocking calls for coroutines, ``calls`` at once; the long waits have as many apart."""

    def __init__(self, calls: int) -> None:
        self.calls = ThreadPoolExecutor(calls, thread_name_prefix="cachetier-call")
        self._waits = ThreadPoolExecutor(calls, thread_name_prefix="cachetier-wait")

    async def run(
        self, call: Callable[Given, Answer], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer:
        """Return what ``call`` gives, on a thread that knows the caller's context."""
        return await self._on(self.calls, functools.partial(call, *args, **kwargs))

    async def wait(self, ask: Callable[[float], Answer], timeout_seconds: float) -> Answer:
        """Return what ``ask`` gives within the time, asking slice by slice, each its seconds.

        An error that comes early in its slice is no matter of time, and raised.
        """
        deadline, began_at = Deadline(timeout_seconds, _CLOCK), 0.0

        def ask_for_a_slice() -> Answer:
            nonlocal began_at
            began_at = _CLOCK.monotonic()
            return ask(min(left, _SLICE_SECONDS))

        while True:
            left = deadline.remaining()
            try:
                return await self._on(self._waits, ask_for_a_slice)
            except WaitError as error:
                early = _CLOCK.monotonic() - began_at < _SLICE_SECONDS / 2
                if left <= _SLICE_SECONDS or early:
                    error.add_note(f"the call was given {timeout_seconds:g} s in all")
                    raise

    def close(self) -> None:
        """Take no more calls; those that have begun end by themselves."""
        for each in (self.calls, self._waits):
            each.shutdown(wait=False, cancel_futures=True)

    async def _on(self, threads: ThreadPoolExecutor, call: Callable[[], Answer]) -> Answer:
        try:
            running = threads.submit(copy_context().run, call)
        except RuntimeError as error:  # shut down
            hint = "Make a new AsyncClient."
            raise InvalidRequestError("the client is closed", hint=hint) from error
        return await _ended(asyncio.wrap_future(running), running.cancel)  # if none has begun it


async def _ended(waiting: asyncio.Future[Answer], cut: Callable[[], object]) -> Answer:
    """Return what a call gives once it has ended, also for somebody who is cut off meanwhile.

    ``cut`` is called then, for what can end early to do so.
    """
    cut_off = None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cut_off = error
            cut()
    if cut_off is not None:
        if not waiting.cancelled():
            waiting.exception()  # looked at, or asyncio would log that nobody did
        raise cut_off
    return waiting.result()


async def in_pieces(copy: Callable[[asyncio.Event], Coroutine[Any, Any, Answer]]) -> Answer:
    """Return what ``copy`` gives; a cancelled caller makes it stop by itself, which it can undo."""
    stop = asyncio.Event()
    return await _ended(asyncio.create_task(copy(stop)), stop.set)


class OnThreads(Generic[Blocking_co]):
    """Something blocking, whose calls are made on threads."""

    def __init__(self, blocking: Blocking_co, threads: Threads) -> None:
        self.blocking = blocking
        self._threads = threads


def awaited(
    method: Callable[Concatenate[Blocking_co, Given], Answer],
) -> Callable[Concatenate[OnThreads[Blocking_co], Given], Coroutine[Any, Any, Answer]]:
    """Return a blocking method as one to await, with its parameters and its docstring."""

    @functools.wraps(method)
    async def call(
        self: OnThreads[Blocking_co], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer:
        return await self._threads.run(method, self.blocking, *args, **kwargs)

    return call


def waited_for(
    method: Callable[Concatenate[Blocking_co, Given], Answer],
) -> Callable[Concatenate[OnThreads[Blocking_co], Given], Coroutine[Any, Any, Answer]]:
    """Return a blocking method that may take long, and takes ``timeout_seconds``, to await."""
    taken, asked = inspect.signature(method), cast("Callable[..., Answer]", method)

    @functools.wraps(method)
    async def call(
        self: OnThreads[Blocking_co], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer:
        given = taken.bind(self.blocking, *args, **kwargs)
        given.apply_defaults()

        def ask(seconds: float) -> Answer:
            given.arguments["timeout_seconds"] = seconds
            return asked(*given.args, **given.kwargs)

        return await self._threads.wait(ask, given.arguments["timeout_seconds"])

    return call
