"""The pages for people: a link is exchanged for a session, who one is, the way out.

They have no script, and a GET changes nothing: what fetches a link ahead of its reader, to show a
preview, neither uses it up nor gets in.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cachetier.access.principals import Caller
from cachetier.access.sessions import LINK_ENDED, SESSION_SECONDS, Sessions, csrf_of
from cachetier.doors.http.browsers import (
    COOKIE,
    HOME_PATH,
    SECURE_COOKIE,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
    check_csrf,
    session_in,
)
from cachetier.doors.http.front import address_of
from cachetier.doors.http.queries import Query
from cachetier.errors import UnauthorizedError

_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem}"
    "h1{font-size:1.25rem}code{background:#eee;padding:.1rem .3rem}"
    "button{font:inherit;padding:.4rem 1.25rem;border:0;border-radius:.3rem;color:#fff;"
    "background:#0b5cad}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",  # with `no-referrer` a form's Origin would be `null`
}
_ASK = "<p>Run <code>cachetier link</code> on the node, and open what it prints.</p>"
_ENDED = f"<p>{LINK_ENDED.capitalize()}.</p>{_ASK}"
_WARNING = (
    "<p>If you did not ask for this link with <code>cachetier link</code>, close the page: what "
    "you do here would be done as whoever made it.</p>"
)


def page_routes(sessions: Sessions) -> APIRouter:
    """Return the pages, which find out for themselves who calls."""
    router = APIRouter(include_in_schema=False)

    @router.get(HOME_PATH)
    async def home(request: Request) -> Response:
        secret = session_in(request.headers)
        caller = sessions.find(secret, address_of(request.scope))
        if secret is None or caller is None:
            return _page("Not signed in to cachetier", _ASK, 401)
        form = _form(SIGN_OUT_PATH, "csrf", csrf_of(secret), "Sign out")
        return _page("Signed in to cachetier", f"<p>As {_shown(caller)}.</p>{form}")

    @router.get(SIGN_IN_PATH)
    async def offer(request: Request) -> Response:
        link = Query(request.scope["query_string"], ("link",)).text("link", "")
        caller = sessions.offered(link)
        if caller is None:
            return _page("This link to cachetier has ended", _ENDED, 410)
        form = _form(SIGN_IN_PATH, "link", link, "Sign in")
        return _page("Sign in to cachetier?", f"<p>As {_shown(caller)}.</p>{form}{_WARNING}")

    @router.post(SIGN_IN_PATH)
    async def sign_in(request: Request) -> Response:
        link = Query(await request.body(), ("link",)).text("link", "")
        try:
            secret = sessions.begin(link, address_of(request.scope))
        except UnauthorizedError:
            return _page("This link to cachetier has ended", _ENDED, 410)
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


def _page(title: str, body: str, status: int = 200) -> Response:
    """Return a page; ``body`` is markup, in which values went through ``escape``."""
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{_STYLE}</style><h1>{title}</h1>{body}"
    )
    return HTMLResponse(page, status, _HEADERS)


def _form(action: str, name: str, value: str, label: str) -> str:
    field = f'<input type="hidden" name="{name}" value="{escape(value)}">'
    return f'<form method="post" action="{action}">{field}<button>{label}</button></form>'


def _shown(caller: Caller) -> str:
    who = caller.principal
    runs = "all runs" if who.sees_all else f"the runs {', '.join(who.runs)}"
    return f"<b>{escape(who.name)}</b>, with the role {who.role} on {escape(runs)}"


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
