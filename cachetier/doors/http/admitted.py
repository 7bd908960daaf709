"""Routes that are done only for those who may; the guard has found out who calls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Scope

from cachetier.access.access import Access
from cachetier.access.roles import OPERATIONS
from cachetier.doors.http.front import caller_of
from cachetier.doors.http.paths import RequestTarget

TARGET = "cachetier.target"  # in the scope: what the path names under /v1/runs/, or None

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def doing(access: Access, scope: Scope, operation: str) -> AbstractContextManager[None]:
    """Allow the caller ``operation`` on the thing that the path names; see ``Access.doing``."""
    target: RequestTarget | None = scope[TARGET]
    if target is None:
        return access.doing(caller_of(scope), operation)
    what = {"step": target.step, "name": target.name}
    return access.doing(caller_of(scope), operation, target.run, **what)


def admitted_router(access: Access, tag: str) -> APIRouter:
    """Return a router whose every route is an operation of the table, by the name of its function.

    One that is not in the table cannot be added.
    """

    class AdmittedRoute(APIRoute):
        def get_route_handler(self) -> _Handler:
            handle, operation = super().get_route_handler(), self.name
            assert operation in OPERATIONS, operation

            async def admitted(request: Request) -> Response:
                with doing(access, request.scope, operation):
                    return await handle(request)

            return admitted

    return APIRouter(tags=[tag], route_class=AdmittedRoute)
