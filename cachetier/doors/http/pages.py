"""The pages for people who come and go: a link is exchanged for a session, and the way out.

They have no script, and a GET changes nothing: what fetches a link ahead of its reader, to show a
preview, neither uses it up nor gets in.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cachetier.access.sessions import SESSION_SECONDS, Sessions
from cachetier.console.rendering import rendered
from cachetier.doors.http.browsers import (
    COOKIE,
    HOME_PATH,
    SECURE_COOKIE,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
    check_csrf,
    session_in,
)
from cachetier.doors.http.console.visit import HEADERS
from cachetier.doors.http.front import address_of
from cachetier.doors.http.queries import Query
from cachetier.errors import UnauthorizedError


def page_routes(sessions: Sessions) -> APIRouter:
    """Return the pages, which find out for themselves who calls."""
    router = APIRouter(include_in_schema=False)

    @router.get(SIGN_IN_PATH)
    async def offer(request: Request) -> Response:
        link = Query(request.scope["query_string"], ("link",)).text("link", "")
        caller = sessions.offered(link)
        if caller is None:
            return _ended()
        return HTMLResponse(rendered("sign_in.html", caller=caller, link=link), headers=HEADERS)

    @router.post(SIGN_IN_PATH)
    async def sign_in(request: Request) -> Response:
        link = Query(await request.body(), ("link",)).text("link", "")
        try:
            secret = sessions.begin(link, address_of(request.scope))
        except UnauthorizedError:
            return _ended()
        schemes = request.url.scheme, request.headers.get("origin", "").partition(":")[0]
        secure = "https" in schemes  # ours, or of a proxy before us
        return _home_with(SECURE_COOKIE if secure else COOKIE, secret, int(SESSION_SECONDS))

    @router.post(SIGN_OUT_PATH)
    async def sign_out(request: Request) -> Response:
        secret = session_in(request.headers) or ""
        check_csrf(secret, Query(await request.body(), ("csrf",)).text("csrf", ""))
        sessions.end(secret)
        secure = f"{SECURE_COOKIE}=" in request.headers.get("cookie", "")
        return _home_with(SECURE_COOKIE if secure else COOKIE, "", 0)

    return router


def _ended() -> Response:
    return HTMLResponse(rendered("link_ended.html"), 410, HEADERS)


def _home_with(cookie: str, value: str, max_age_seconds: int) -> Response:
    answer = RedirectResponse(HOME_PATH, 303)
    answer.set_cookie(
        cookie,
        value,
        max_age_seconds,
        secure=cookie == SECURE_COOKIE,
        httponly=True,
        samesite="strict",
    )
    return answer
