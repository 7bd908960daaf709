"""Wait for an answer without a thread, and for no longer than the caller does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive, Scope

from cachetier.callers import LOOK_SECONDS, refuse_if_gone
from cachetier.doors.operations import Operations
from cachetier.errors import CallerGoneError, NotDurableError
from cachetier.ingest.shares import ShareAwaitedError
from cachetier.steps.waits import Question

Answer = TypeVar("Answer")

PARKED = "cachetier.parked"  # in the scope: while entered, the request counts as none being served


async def answered(
    node: Operations,
    scope: Scope,
    receive: Receive,
    question: Question[Answer],
    timeout_seconds: float,
) -> Answer:
    """Return the answer to ``question``; raises what it does.

    Raises:
        CallerGoneError: Whoever asked has hung up.
    """
    answer = asyncio.wrap_future(node.waits.ask(question, timeout_seconds))
    gone = asyncio.ensure_future(_gone(receive))
    try:
        with scope[PARKED]():
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise CallerGoneError("the caller closed the connection while it waited")
        return answer.result()
    except NotDurableError:
        node.refuse_when_stopping()
        raise
    finally:
        answer.cancel()
        gone.cancel()


async def in_share(
    node: Operations,
    scope: Scope,
    timeout_seconds: float,
    put: Callable[[float], Awaitable[Answer]],
) -> Answer:
    """Return what ``put`` does with the seconds left, once its share has room for it.

    The request takes neither thread nor place meanwhile, but counts as one of its principal. Its
    body lies unread, so that only the socket tells whether the caller is there.
    """
    ends_at = time.monotonic() + timeout_seconds
    while True:
        try:
            return await put(max(0.0, ends_at - time.monotonic()))
        except ShareAwaitedError as awaited:
            left = max(0.0, ends_at - time.monotonic())
            answer = asyncio.wrap_future(node.waits.ask(awaited.room, left))
        try:
            with scope[PARKED](whole=False):
                while not answer.done():
                    await asyncio.wait((answer,), timeout=LOOK_SECONDS)
                    refuse_if_gone()
            answer.result()
        finally:
            answer.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
