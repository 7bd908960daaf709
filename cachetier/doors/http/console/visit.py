"""One visit of a page: whose it is, and how errors and strangers are answered in pages too."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from cachetier_client.identity import names
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.responses import HTMLResponse, Response

from cachetier import __version__
from cachetier.access.principals import Caller
from cachetier.access.roles import OPERATIONS, Role
from cachetier.access.sessions import csrf_of
from cachetier.console.rendering import POLICY, rendered
from cachetier.doors.http.browsers import session_in
from cachetier.doors.http.front import CALLER, caller_of
from cachetier.doors.http.problems import RouteError, SchemaError
from cachetier.doors.operations import answerable
from cachetier.errors import CachetierError

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",  # with `no-referrer` a form's Origin would be `null`
}
Run = Annotated[str, BeforeValidator(names.checked_run)]
Step = Annotated[int, BeforeValidator(names.parsed_step)]
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class VisitRoute(APIRoute):
    """A route of the console: a stranger reads how to get in, and an error is a page."""

    def get_route_handler(self) -> _Handler:
        handle = super().get_route_handler()

        async def visited(request: Request) -> Response:
            if CALLER not in request.scope:
                return stranger_page(request)
            try:
                return await handle(request)
            except CachetierError as error:
                return error_page(request, error)
            except RequestValidationError:
                return error_page(request, SchemaError("the address has a part that is no number"))
            except Exception as error:
                operation = f"{request.method} {request.url.path[:200]}"
                return error_page(request, answerable(error, "http", operation))

        return visited


def visit_router() -> APIRouter:
    return APIRouter(include_in_schema=False, route_class=VisitRoute)


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """Return a whole page for the caller, or, for htmx, the fragment that a template is."""
    return HTMLResponse(rendered(template, **frame_of(request), **values), status, HEADERS)


def frame_of(request: Request) -> dict[str, Any]:
    """Return what the frame around every page shows."""
    caller = caller_of(request.scope)
    secret = session_in(request.headers) or ""
    return {
        "caller": caller,
        "csrf": csrf_of(secret),
        "version": __version__,
        "path": request.url.path,
        "is_admin": is_admin(caller),
        "host": socket.gethostname(),
        "has_cluster": request.app.state.has_cluster,
    }


def is_admin(caller: Caller) -> bool:
    return caller.principal.role.covers(Role.ADMIN)


def is_fragment(request: Request) -> bool:
    """Return whether htmx asks for a part of a page that is open."""
    return "hx-request" in request.headers


def stranger_page(request: Request) -> Response:
    """Return how to get in; a part of a page that has outlived its session is loaded again."""
    headers = {**HEADERS, "HX-Refresh": "true"} if is_fragment(request) else HEADERS
    return HTMLResponse(rendered("stranger.html"), 401, headers)


def error_page(request: Request, error: CachetierError) -> Response:
    name = "problem.html" if is_fragment(request) else "error.html"
    return page(request, name, error.http_status, error=error)


def missing_page(request: Request) -> Response:
    """Return what a person reads at an address that is none."""
    error = RouteError("there is no such page", hint="The page of the node leads to all others.")
    return error_page(request, error) if CALLER in request.scope else stranger_page(request)


def sees_node(caller: Caller) -> bool:
    """Return whether the figures of the whole node are any of the caller's business."""
    return caller.principal.may(OPERATIONS["status"], None)
