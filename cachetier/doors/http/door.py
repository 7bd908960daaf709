"""The HTTP door: a uvicorn server in a thread of its own, on a socket bound before it starts."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from cachetier.doors.http.app import build
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.protocol import protocol_with
from cachetier.doors.http.routes import NotReady
from cachetier.doors.operations import Operations
from cachetier.errors import ConfigError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 30
START_SECONDS = 30.0
CUT_OFF_SECONDS = 2.0  # for the loop to end what had its grace time


class HttpDoor:
    """Serves HTTP at ``address``; port 0 takes a free one, ``url`` says which."""

    def __init__(
        self,
        address: tuple[str, int],
        operations: Operations,
        *,
        not_ready: NotReady = lambda: None,
        exposition: Callable[[], bytes] = lambda: b"",
        limits: RequestLimits | None = None,
    ) -> None:
        self._address = address
        self._operations = operations
        self._not_ready = not_ready
        self._exposition = exposition
        self._limits = limits or RequestLimits()
        self._pools = Pools()
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.url = ""

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._server.server_state.connections) if self._server is not None else 0

    def start(self) -> None:
        """Listen, and return when requests are served.

        Raises:
            ConfigError: The address cannot be bound.
        """
        self._socket = _bound(self._address)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._server = uvicorn.Server(self._config())
        self._thread = threading.Thread(target=self._run, name="http-door", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive():
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        if not self._server.started:
            raise ConfigError(f"the HTTP door at {self.url} did not start; see the log")

    def stop(self, grace_seconds: float) -> None:
        """Take no new connections; close when those in flight end, or at ``grace_seconds``."""
        if self._server is None or self._thread is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self._server.should_exit = True
        self._thread.join(grace_seconds + CUT_OFF_SECONDS)
        self._pools.close()

    def _config(self) -> uvicorn.Config:
        app = build(
            self._operations,
            self._pools,
            not_ready=self._not_ready,
            exposition=self._exposition,
            limits=self._limits,
        )
        return uvicorn.Config(
            app,
            http=protocol_with(self._limits, self._operations.failed),
            loop="uvloop",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )

    def _run(self) -> None:
        assert self._server is not None
        assert self._socket is not None
        try:
            self._server.run([self._socket])
        except Exception as error:
            tell(log, events.HTTP_FAILED, error=error)


def _bound(address: tuple[str, int]) -> socket.socket:
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on http {host}:{port}: {error.strerror or error}",
            hint="Choose another `http` address, port 0 for a free one, or an empty one for none.",
        ) from error
    return bound
