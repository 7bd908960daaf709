"""The HTTP door: the application before the node's operations, and the server that serves it."""

from __future__ import annotations

from collections.abc import Callable

from cachetier.console.cluster import Cluster
from cachetier.doors.http.app import build
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.routes import NotReady
from cachetier.doors.http.server import HttpServer
from cachetier.doors.operations import Operations
from cachetier.errors import ConfigError
from cachetier.parsers import why_not_open
from cachetier.tls import Tls


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
