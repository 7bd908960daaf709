"""Wait for an answer without a thread, and for no longer than the caller does."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from starlette.types import Receive, Scope

from cachetier.doors.operations import Operations
from cachetier.errors import CallerGoneError, NotDurableError
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
            raise CallerGoneError("the caller hung up while they waited")
        return answer.result()
    except NotDurableError:
        node.refuse_when_stopping()
        raise
    finally:
        answer.cancel()
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
