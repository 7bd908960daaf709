"""Build the HTTP application: FastAPI for JSON, plain ASGI for bytes, a guard before both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cachetier import __version__
from cachetier.console.cluster import Cluster
from cachetier.console.history import History
from cachetier.doors.http.console.routes import console_routes
from cachetier.doors.http.console.sections import Live
from cachetier.doors.http.console.visit import missing_page
from cachetier.doors.http.guard import Guard
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.openapi import describe_shards
from cachetier.doors.http.pages import page_routes
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.problems import (
    MethodError,
    RouteError,
    SchemaError,
    problem_response,
)
from cachetier.doors.http.routes import (
    NotReady,
    changing_routes,
    client_routes,
    keeping_routes,
    looking_routes,
    operation_routes,
    own_routes,
    token_routes,
)
from cachetier.doors.http.shards import Shards
from cachetier.doors.operations import Operations, internal
from cachetier.errors import CachetierError, machine_failure
from cachetier.status.rates import Status


def build(
    operations: Operations,
    pools: Pools,
    *,
    not_ready: NotReady,
    exposition: Callable[[], bytes],
    limits: RequestLimits,
    cluster: Cluster,
) -> Guard:
    """Return the whole application."""
    app = FastAPI(
        title="cachetier",
        version=__version__,
        summary="Node-local write-back cache for checkpoints",
        docs_url=None,  # the pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(looking_routes(operations, pools))
    app.include_router(changing_routes(operations, pools))
    app.include_router(client_routes(operations, pools))
    app.include_router(keeping_routes(operations, pools))
    app.include_router(operation_routes(operations, pools, exposition))
    app.include_router(token_routes(operations, pools))
    app.include_router(own_routes(operations, pools, not_ready))
    app.include_router(page_routes(operations.access.sessions))
    app.state.has_cluster = bool(cluster.urls)
    for router in console_routes(operations, _live(operations, pools), cluster):
        app.include_router(router)
    _answer_with_problems(app)
    describe_shards(app)
    shards = Shards(operations, pools, limits)
    return Guard(app, shards, access=operations.access, limits=limits, failed=operations.failed)


def _live(operations: Operations, pools: Pools) -> Live:
    async def ask() -> Status:
        return await pools.look(operations.status)

    return Live(operations, pools, History(ask, time.time, time.monotonic))


def _answer_with_problems(app: FastAPI) -> None:
    @app.exception_handler(CachetierError)
    async def ours(_request: Request, error: CachetierError) -> Response:
        return problem_response(error)

    @app.exception_handler(Exception)
    async def defect(_request: Request, error: Exception) -> Response:
        failure = machine_failure(error, "the service")
        return problem_response(failure or internal())  # the guard logs what it was

    @app.exception_handler(RequestValidationError)
    async def schema(_request: Request, error: RequestValidationError) -> Response:
        return problem_response(SchemaError(_first_cause(error.errors())))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            response = problem_response(MethodError(f"{request.method} is not allowed here"))
            response.headers.update(error.headers or {})
            return response
        if error.status_code == 404:
            if "text/html" in request.headers.get("accept", ""):
                return missing_page(request)
            return problem_response(RouteError("there is no such route"))
        if 400 <= error.status_code < 500:
            return problem_response(SchemaError(str(error.detail)))
        return problem_response(internal())


def _first_cause(errors: Any) -> str:
    """Say what is wrong with the first field that is, without echoing the value."""
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"
