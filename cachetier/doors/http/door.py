"""The HTTP door, which serves the node's operations, and the health door, for probes alone."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from cachetier.console.cluster import Cluster
from cachetier.doors.http.app import build
from cachetier.doors.http.guard import OPEN_PATHS
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.problems import MethodError, RouteError, problem_response
from cachetier.doors.http.routes import NotReady, livez, readyz
from cachetier.doors.http.server import HttpServer
from cachetier.doors.operations import Operations
from cachetier.errors import ConfigError
from cachetier.parsers import why_not_open
from cachetier.tls import Tls

HEALTH_LIMITS = RequestLimits(connections=64, head_bytes=4096, header_seconds=5.0)


class HttpDoor(HttpServer):
    """Serves the node's operations by HTTP."""

    def __init__(
        self,
        address: tuple[str, int],
        operations: Operations,
        *,
        tls: Tls | None = None,
        clear_text: bool = False,
        cluster: Cluster | None = None,
        not_ready: NotReady = lambda: None,
        exposition: Callable[[], bytes] = lambda: b"",
        limits: RequestLimits | None = None,
    ) -> None:
        """Prepare the door; ``clear_text`` lets it speak without ``tls`` beyond loopback.

        ``cluster`` are the nodes that the console shows beside each other.

        Raises:
            ConfigError: The address is beyond loopback, and there is no TLS.
        """
        why_not = why_not_open(address, is_private=clear_text or tls is not None)
        if why_not is not None:
            raise ConfigError(why_not)
        limits = limits or RequestLimits()
        self._pools = Pools(patient=limits.requests)
        app = build(
            operations,
            self._pools,
            not_ready=not_ready,
            exposition=exposition,
            limits=limits,
            cluster=cluster or Cluster(),
        )
        super().__init__("http", address, app, limits=limits, failed=operations.failed, tls=tls)

    def stop(self, grace_seconds: float) -> None:
        """Take no new connections; close when those in flight end, or at ``grace_seconds``."""
        super().stop(grace_seconds)
        self._pools.close()


class HealthDoor(HttpServer):
    """Serves ``/livez`` and ``/readyz`` at ``address``, on a port, thread and loop of its own.

    However full the HTTP door is, a probe here competes with other probes alone. Nothing else is
    said, so it needs no token and no TLS.
    """

    def __init__(self, address: tuple[str, int], not_ready: NotReady) -> None:
        super().__init__("health", address, _answering(not_ready), limits=HEALTH_LIMITS)


def _answering(not_ready: NotReady) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS:
            response = problem_response(RouteError("this port serves /livez and /readyz"))
        elif scope["method"] not in ("GET", "HEAD"):
            response = problem_response(MethodError(f"{scope['method']} is not allowed here"))
        else:
            response = livez() if scope["path"] == "/livez" else readyz(not_ready)
        await response(scope, receive, send)

    return answer
