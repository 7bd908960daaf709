"""Errors as ``application/problem+json``: what a person reads and what a program switches on."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response

from cachetier.errors import (
    CachetierError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
)

MEDIA_TYPE = "application/problem+json"
CODE_HEADER = "Cachetier-Error"  # the answer to a HEAD has no body to say it


class MethodError(InvalidRequestError):
    """The route knows the method not."""

    http_status = 405
    hint = "See docs/http.md for the routes and their methods."


class RouteError(NotFoundError):
    """There is no such route."""

    hint = "See docs/http.md for the routes."


class SchemaError(InvalidRequestError):
    """The JSON body or a query parameter is not what the route takes."""

    http_status = 422
    hint = "See /openapi.json for what the route takes."


class MediaTypeError(InvalidRequestError):
    """The body is not declared to be JSON; so no web page can post to the node by a mere form."""

    http_status = 415
    hint = "Send the header `Content-Type: application/json`."


class MisdirectedError(InvalidRequestError):
    """A browser calls the door by a name that is not its own."""

    http_status = 421
    hint = "Call it by its address or `localhost`, send a token, or add the name to `hosts`."


class CrossSiteError(ForbiddenError):
    """A page that is not the service's had a browser send this."""

    hint = "Open the service itself in the browser: `cachetier console` prints where."


class SlowBodyError(InvalidRequestError):
    """The body came too slowly."""

    http_status = 408
    hint = "Send the body without long pauses. Nothing was kept."


class BodyCutShortError(InvalidRequestError):
    """The connection ended before the body did; nobody may be there to read this."""

    hint = "Send the whole body. Nothing was kept."


class RangeError(InvalidRequestError):
    """No byte of the shard lies in the range."""

    http_status = 416
    hint = "Ask for a range inside the shard; HEAD tells its size."


def problem(error: CachetierError) -> dict[str, Any]:
    """Return the problem object of ``error``."""
    described: dict[str, Any] = {
        "type": f"urn:cachetier:error:{error.code}",
        "title": error.code.replace("_", " "),
        "status": error.http_status,
        "detail": error.message,
        "code": error.code,
        "hint": error.hint,
    }
    described.update({key: value for key, value in error.context.items() if key not in described})
    if error.retry_after_seconds is not None:
        described["retry_after_seconds"] = error.retry_after_seconds
    return described


def problem_body(error: CachetierError) -> bytes:
    return json.dumps(problem(error)).encode()


def problem_response(error: CachetierError, *, close: bool = False) -> Response:
    """Return the answer for ``error``; ``close`` also ends the connection."""
    headers = {CODE_HEADER: error.code}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_seconds))
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    if close:
        headers["Connection"] = "close"
    return Response(
        problem_body(error), status_code=error.http_status, headers=headers, media_type=MEDIA_TYPE
    )
