"""The ASGI guard before every route: browsers, who calls, limits, strict names, error answers.

Everything here is plain ASGI and runs before a body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import aiofiles.os
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cachetier.access.access import Access
from cachetier.access.principals import Caller
from cachetier.doors.http.admitted import TARGET
from cachetier.doors.http.browsers import is_page, judge, session_in
from cachetier.doors.http.front import CALLER, Exchange, Failed, Front, address_of
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.paths import target_of
from cachetier.doors.http.problems import (
    BodyCutShortError,
    CrossSiteError,
    MediaTypeError,
    MethodError,
    MisdirectedError,
    SlowBodyError,
    problem_response,
)
from cachetier.errors import (
    BusyError,
    InvalidRequestError,
)

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/livez", "/readyz"})
METRICS_PATH = "/metrics"
BODY_METHODS = frozenset({"POST", "PATCH", "PUT", "DELETE"})

ShardRoute = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard(Front):
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
        super().__init__("http", problem_response, access=access, limits=limits, failed=failed)
        self._routes = routes
        self._shards = shards
        self._strangers = 0

    async def _serve(self, scope: Scope, exchange: Exchange) -> None:
        path, address = scope["path"], address_of(scope)
        if path in OPEN_PATHS:
            await self._probe(scope, exchange)
            return
        self._refuse_strangers(scope, address)
        if self._access.tokens.is_due():
            await aiofiles.os.wrap(self._access.tokens.look)()  # the loop waits for no disk
        if is_page(path):
            session = self._access.sessions.find(session_in(Headers(scope=scope)), address)
            if session is None:
                await self._page(scope, exchange)
                return
            caller = session
        else:
            caller = self._caller(scope, address)
        with self._serving(scope, caller):
            await self._pass_on(scope, exchange)

    async def _probe(self, scope: Scope, exchange: Exchange) -> None:
        """Answer a probe, whose body nobody waits for."""
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodError(f"{scope['method']} is not allowed here")
        await self._routes(scope, _replay(b"", exchange.receive), exchange.send)

    async def _page(self, scope: Scope, exchange: Exchange) -> None:
        """Serve a page to a stranger: those who sign in are few, and keep nobody else out."""
        if self._strangers >= self._limits.strangers:
            raise BusyError(f"{self._strangers} sign-ins are in progress already")
        self._strangers += 1
        try:
            await self._pass_on(scope, exchange)
        finally:
            self._strangers -= 1

    async def _pass_on(self, scope: Scope, exchange: Exchange) -> None:
        scope[TARGET] = target = target_of(scope["raw_path"])
        if target is not None and target.name is not None:
            await self._shards(scope, exchange.receive, exchange.send)
            return
        body = await self._small_body(scope, exchange.receive)
        if body and not is_page(scope["path"]) and not _is_json(Headers(scope=scope)):
            raise MediaTypeError("the body is not JSON")
        await self._routes(scope, _replay(body, exchange.receive), exchange.send)

    def _refuse_strangers(self, scope: Scope, address: str) -> None:
        """Refuse requests that a page of another site has a browser send."""
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
