"""The ASGI guard before every route: browsers, who calls, limits, strict names, error answers.

Everything here is plain ASGI and runs before a body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import aiofiles.os
from cachetier_client.trace_context import FIELD as TRACEPARENT
from cachetier_client.trace_context import called_by
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cachetier.access.access import Access
from cachetier.access.principals import Caller
from cachetier.callers import working_for
from cachetier.doors.http.admitted import CALLER, TARGET, address_of
from cachetier.doors.http.browsers import PAGES, judge, session_in, with_safe_headers
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.paths import target_of
from cachetier.doors.http.problems import (
    CODE_HEADER,
    BodyCutShortError,
    CrossSiteError,
    MediaTypeError,
    MethodError,
    MisdirectedError,
    SlowBodyError,
    internal,
    problem_response,
)
from cachetier.doors.http.waiting import PARKED
from cachetier.errors import (
    BusyError,
    CachetierError,
    DeadlineError,
    InvalidRequestError,
    StoppingError,
)
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/readyz"})
METRICS_PATH = "/metrics"
BODY_METHODS = frozenset({"POST", "PATCH", "PUT", "DELETE"})

CONNECTION = "cachetier.connection"  # the extension of the scope that has the socket

_CODE_HEADER = CODE_HEADER.lower().encode()

Failed = Callable[[str, str], None]
ShardRoute = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """The outermost application: ``shards`` streams bodies, ``routes`` answers everything else."""

    def __init__(
        self,
        routes: ASGIApp,
        shards: ShardRoute,
        *,
        access: Access,
        limits: RequestLimits,
        failed: Failed,
    ) -> None:
        """Stand before ``routes`` and ``shards``; ``failed``: see ``Operations``."""
        self._failed = failed
        self._routes = routes
        self._shards = shards
        self._access = access
        self._limits = limits
        self._served: Counter[str] = Counter()  # requests, by who they count for
        self._strangers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send, self._failed)
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
            tell(log, events.REQUEST_FAILED, door="http", operation=operation, error=error)
            await exchange.answer_error(internal())

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

    async def _serve(self, scope: Scope, exchange: _Exchange) -> None:
        path, address = scope["path"], address_of(scope)
        if path in OPEN_PATHS:
            await self._probe(scope, exchange)
            return
        self._refuse_strangers(scope, address)
        if self._access.tokens.is_due():
            await aiofiles.os.wrap(self._access.tokens.look)()  # the loop waits for no disk
        if path in PAGES:  # they find out for themselves who calls
            await self._page(scope, exchange)
            return
        caller = scope[CALLER] = self._caller(scope, address)
        holder, principal = caller.holder, caller.principal.name
        scope[PARKED] = partial(self._parked, holder, principal)
        connection = scope.get("extensions", {}).get(CONNECTION, {}).get("socket")
        self._access.quotas.connect(principal)
        try:
            with self._counted(holder, 1), working_for(connection, caller):
                self._refuse_if_crowded(holder)
                await self._pass_on(scope, exchange)
        finally:
            self._access.quotas.disconnect(principal)

    async def _probe(self, scope: Scope, exchange: _Exchange) -> None:
        """Answer a probe, whose body nobody waits for."""
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodError(f"{scope['method']} is not taken here")
        await self._routes(scope, _replay(b"", exchange.receive), exchange.send)

    async def _page(self, scope: Scope, exchange: _Exchange) -> None:
        """Serve a page, to strangers too: those who sign in are few, and keep nobody else out."""
        if self._strangers >= self._limits.strangers:
            raise BusyError(f"{self._strangers} are signing in already")
        self._strangers += 1
        try:
            await self._pass_on(scope, exchange)
        finally:
            self._strangers -= 1

    async def _pass_on(self, scope: Scope, exchange: _Exchange) -> None:
        scope[TARGET] = target = target_of(scope["raw_path"])
        if target is not None and target.name is not None:
            await self._shards(scope, exchange.receive, exchange.send)
            return
        body = await self._small_body(scope, exchange.receive)
        if body and scope["path"] not in PAGES and not _is_json(Headers(scope=scope)):
            raise MediaTypeError("the body is not JSON")
        await self._routes(scope, _replay(body, exchange.receive), exchange.send)

    def _refuse_if_crowded(self, holder: str) -> None:
        """Beyond the limit, take requests only of those who have less than an equal share."""
        limit = self._limits.requests
        if self._served.total() > limit and self._served[holder] * len(self._served) > limit:
            raise BusyError(f"{limit} requests are being served already")

    def _refuse_strangers(self, scope: Scope, address: str) -> None:
        """Refuse what a page that is not ours has a browser send, whoever reads it."""
        try:
            judge(scope["method"], scope["path"], Headers(scope=scope), self._access.hosts)
        except (CrossSiteError, MisdirectedError) as error:
            self._access.turned_away(error, address)
            raise

    def _caller(self, scope: Scope, address: str) -> Caller:
        """Find out who calls, before a byte of the body is read; a token counts before a cookie."""
        headers, scrapes = Headers(scope=scope), scope["path"] == METRICS_PATH
        given = headers.get("authorization")
        if given is None:
            session = self._access.sessions.find(session_in(headers), address)
            if session is not None:
                return session
        kind, _, secret = (given or "").partition(" ")
        known = secret if kind == "Bearer" else ""  # of any other kind nobody has one
        return self._access.bearer(None if given is None else known, address, scrapes=scrapes)

    async def _small_body(self, scope: Scope, receive: Receive) -> bytes:
        """Read the body of a request for JSON: bounded in size and time."""
        if scope["method"] not in BODY_METHODS:
            return b""
        body = bytearray()
        limit_bytes = self._limits.json_bytes if CALLER in scope else self._limits.stranger_bytes
        try:
            async with asyncio.timeout(self._limits.progress_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise BodyCutShortError("the connection ended before the body did")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit_bytes:
                        raise InvalidRequestError(f"the body is larger than {limit_bytes} bytes")
        except TimeoutError:
            raise SlowBodyError("the body did not come in time") from None
        return bytes(body)


def _is_json(headers: Headers) -> bool:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json"


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives ``body`` first, and then what the connection says."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


class _Exchange:
    """One request and its answer: remembers how far they got, for an error to be told."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, failed: Failed) -> None:
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
                self._failed("http", value.decode("latin-1"))

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
                self._failed("http", error.code)
                tell(log, events.ANSWER_CUT_OFF, reason=error.message, code=error.code)
                if isinstance(error, BusyError):
                    self._scope["extensions"][CONNECTION]["abort"]()
            return
        # Who waits for `100 Continue` will not send its body now, and who is too slow has had its
        # time: the connection cannot go on.
        unsent = self._expects_continue() and not self._read
        close = unsent or isinstance(error, SlowBodyError)
        await self._respond(problem_response(error, close=close))

    async def _respond(self, response: Response) -> None:
        await response(self._scope, self._receive, self.send)

    def _expects_continue(self) -> bool:
        return "expect" in Headers(scope=self._scope)
