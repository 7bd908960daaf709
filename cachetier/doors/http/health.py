"""The health door: whether the service lives and is ready, on a port, thread and loop of its own.

However full the HTTP door is, a probe here competes with other probes alone. It says nothing else,
so it needs no token and no TLS.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from cachetier.doors.http.guard import OPEN_PATHS
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.problems import MethodError, RouteError, problem_response
from cachetier.doors.http.routes import NotReady, livez, readyz
from cachetier.doors.http.server import HttpServer

LIMITS = RequestLimits(connections=64, head_bytes=4096, header_seconds=5.0)


class HealthDoor(HttpServer):
    """Serves ``/livez`` and ``/readyz`` at ``address``, and nothing else."""

    def __init__(self, address: tuple[str, int], not_ready: NotReady) -> None:
        super().__init__("health", address, _answering(not_ready), limits=LIMITS)


def _answering(not_ready: NotReady) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS:
            response = problem_response(RouteError("this port serves /livez and /readyz"))
        elif scope["method"] not in ("GET", "HEAD"):
            response = problem_response(MethodError(f"{scope['method']} is not taken here"))
        else:
            response = livez() if scope["path"] == "/livez" else readyz(not_ready)
        await response(scope, receive, send)

    return answer
