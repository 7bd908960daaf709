"""The front of every application of a door: one request, its answer, and the crowding limit.

Whatever an application raises is answered in the door's own form; an answer that has begun can only
be cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from cachetier_client.trace_context import FIELD as TRACEPARENT
from cachetier_client.trace_context import called_by
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from cachetier.access.access import Access
from cachetier.access.principals import Caller
from cachetier.callers import working_for
from cachetier.doors.http.browsers import with_safe_headers
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.problems import CODE_HEADER, SlowBodyError
from cachetier.doors.http.waiting import PARKED
from cachetier.doors.operations import answerable
from cachetier.errors import BusyError, CachetierError, DeadlineError, StoppingError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

CALLER = "cachetier.caller"  # in the scope: who calls
CONNECTION = "cachetier.connection"  # the extension of the scope that has the socket

_CODE_HEADER = CODE_HEADER.lower().encode()

Failed = Callable[[str, str], None]


def caller_of(scope: Scope) -> Caller:
    caller: Caller = scope[CALLER]
    return caller


def address_of(scope: Scope) -> str:
    """Return the address a request comes from; empty where nobody knows."""
    client = scope.get("client")
    return str(client[0]) if client else ""


class Describe(Protocol):
    """Says an error in the door's own form."""

    def __call__(self, error: CachetierError, *, close: bool) -> Response:
        """Return the answer; ``close`` also ends the connection."""


class Front:
    """The outermost application of a door; what it serves is ``_serve``."""

    def __init__(
        self,
        door: str,
        describe: Describe,
        *,
        access: Access,
        limits: RequestLimits,
        failed: Failed,
    ) -> None:
        self._door = door
        self._describe = describe
        self._access = access
        self._limits = limits
        self._failed = failed
        self._served: Counter[str] = Counter()  # requests, by who they count for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._door, self._describe, scope, receive, send, self._failed)
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                with called_by(Headers(scope=scope).get(TRACEPARENT)):
                    await self._serve(scope, exchange)
        except CachetierError as error:
            await exchange.answer_error(error)
        except TimeoutError:
            await exchange.answer_error(DeadlineError("the request took too long altogether"))
        except (
            asyncio.CancelledError
        ):  # by the server, at the end of the grace time; it has said so
            await exchange.answer_error(StoppingError("the service stopped before it could answer"))
        except Exception as error:
            operation = f"{scope['method']} {scope['path'][:200]}"
            await exchange.answer_error(answerable(error, self._door, operation))

    @contextmanager
    def _counted(self, holder: str, by: int) -> Iterator[None]:
        self._served[holder] += by
        try:
            yield
        finally:
            self._served[holder] -= by
            if not self._served[holder]:
                del self._served[holder]

    @contextmanager
    def _parked(self, holder: str, principal: str, *, whole: bool = True) -> Iterator[None]:
        """Count a request for none that is served; ``whole``: nor for one of its principal."""
        quotas = self._access.quotas
        if whole:
            quotas.disconnect(principal)
        try:
            with self._counted(holder, -1):
                yield
        finally:
            if whole:
                quotas.connect(principal, at_any_rate=True)

    async def _serve(self, scope: Scope, exchange: Exchange) -> None:
        raise NotImplementedError

    @contextmanager
    def _serving(self, scope: Scope, caller: Caller) -> Iterator[None]:
        """Count the request inside as its caller's, and let its work end when they hang up.

        Raises:
            BusyError: Too many are being served, and the caller has its share of them.
        """
        scope[CALLER] = caller
        holder, principal = caller.holder, caller.principal.name
        scope[PARKED] = partial(self._parked, holder, principal)
        connection = scope.get("extensions", {}).get(CONNECTION, {}).get("socket")
        self._access.quotas.connect(principal)
        try:
            with self._counted(holder, 1), working_for(connection, caller):
                self._refuse_if_crowded(holder)
                yield
        finally:
            self._access.quotas.disconnect(principal)

    def _refuse_if_crowded(self, holder: str) -> None:
        """Beyond the limit, take requests only of those who have less than an equal share."""
        limit = self._limits.requests
        if self._served.total() > limit and self._served[holder] * len(self._served) > limit:
            raise BusyError(f"the limit of {limit} requests at once is reached")


class Exchange:
    """One request and its answer: remembers how far they got, for an error to be told."""

    def __init__(
        self,
        door: str,
        describe: Describe,
        scope: Scope,
        receive: Receive,
        send: Send,
        failed: Failed,
    ) -> None:
        self._door = door
        self._describe = describe
        self._failed = failed
        self._scope = scope
        self._receive = receive
        self._send = send
        self._started = False
        self._ended = False
        self._read = False
        self.receive: Receive = receive if not self._expects_continue() else self._first_receive

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._count_error(message)
            message["headers"] = with_safe_headers(message.get("headers", ()))
        self._started = True
        self._ended = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    def _count_error(self, message: Message) -> None:
        for name, value in message.get("headers", ()):
            if name.lower() == _CODE_HEADER:
                self._failed(self._door, value.decode("latin-1"))

    async def _first_receive(self) -> Message:
        self._read = True
        return await self._receive()

    async def answer_error(self, error: CachetierError) -> None:
        """Answer with a problem; an answer that has begun can only be cut off.

        The server cuts it when the application returns before its end, so that nobody takes a part
        for the whole. A reader who was too slow is not waited for any more.
        """
        if self._started:
            if not self._ended:
                self._failed(self._door, error.code)
                tell(log, events.ANSWER_CUT_OFF, reason=error.message, code=error.code)
                if isinstance(error, BusyError):
                    self._scope["extensions"][CONNECTION]["abort"]()
            return
        # Who waits for `100 Continue` will not send its body now, and who is too slow has had its
        # time: the connection cannot go on.
        unsent = self._expects_continue() and not self._read
        close = unsent or isinstance(error, SlowBodyError)
        await self._respond(self._describe(error, close=close))

    async def _respond(self, response: Response) -> None:
        await response(self._scope, self._receive, self.send)

    def _expects_continue(self) -> bool:
        return "expect" in Headers(scope=self._scope)
