"""A uvicorn server in a thread of its own, on a socket bound before it starts.

Connections are accepted here and not by uvicorn: handshakes of TLS are bounded in number and time,
and each begins with the certificate that the files hold then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from importlib import metadata
from typing import Literal

import aiofiles.os
import uvicorn
from starlette.types import ASGIApp

from cachetier.doors.http.front import Describe, Failed
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.problems import problem_response
from cachetier.doors.http.protocol import Entrance, protocol_with
from cachetier.doors.listening import bound
from cachetier.errors import ConfigError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.tls import Tls

log = logging.getLogger(__name__)

UVLOOP_SOUND_FROM = (0, 23)
KEEP_ALIVE_SECONDS = 30
START_SECONDS = 30.0
CUT_OFF_SECONDS = 2.0  # for the loop to end what had its grace time
_NUMBERS = re.compile(r"(\d+)\.(\d+)")


class HttpServer:
    """Serves an application at ``address``; port 0 takes a free one, ``url`` says which."""

    def __init__(
        self,
        setting: str,
        address: tuple[str, int],
        app: ASGIApp,
        *,
        limits: RequestLimits,
        failed: Failed = lambda _door, _code: None,
        describe: Describe = problem_response,
        tls: Tls | None = None,
    ) -> None:
        """Prepare a server; ``setting`` names the address, and the door where it fails."""
        self._setting = setting
        self._address = address
        self._app = app
        self._limits = limits
        self._failed = failed
        self._describe = describe
        self._tls = tls
        self._server: _Server | None = None
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
        listener = bound(self._setting, self._address)
        host, port = listener.getsockname()[:2]
        scheme = "https" if self._tls is not None else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        self._server = _Server(self._config(), listener, self._limits, self._tls)
        self._thread = threading.Thread(target=self._run, name=f"{self._setting}-door", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started and self._thread.is_alive():
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        if not self._server.started:
            raise ConfigError(f"the {self._setting} door at {self.url} did not start; see the log")

    def stop(self, grace_seconds: float) -> None:
        """Take no new connections; close when those in flight end, or at ``grace_seconds``."""
        if self._server is None or self._thread is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self._server.should_exit = True
        self._thread.join(grace_seconds + CUT_OFF_SECONDS)

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._app,
            http=protocol_with(self._setting, self._limits, self._failed, self._describe),
            loop=event_loop(),
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
        try:
            self._server.run([])
        except Exception as error:
            tell(log, events.HTTP_FAILED, door=self._setting, error=error)


def event_loop(version: str | None = None) -> Literal["uvloop", "asyncio"]:
    """Return which loop serves: uvloop, if it gives a socket up that it has closed.

    Older ones leave it to be closed again, perhaps after its number is that of another connection:
    answers then go there. Source: uvloop's issue 645 and pull request 740.
    """
    try:
        found = _NUMBERS.match(version or metadata.version("uvloop"))
    except metadata.PackageNotFoundError:
        return "asyncio"
    numbers = tuple(map(int, found.groups())) if found is not None else (0, 0)
    return "uvloop" if numbers >= UVLOOP_SOUND_FROM else "asyncio"


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        limits: RequestLimits,
        tls: Tls | None,
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._limits = limits
        self._tls = tls
        # The oldest first, and of those that have not begun the connection.
        self._arriving: dict[asyncio.Task[None], socket.socket | None] = {}
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert self._accepting is not None
        self._accepting.cancel()
        self._listener.close()
        for arriving in self._arriving:
            arriving.cancel()
        await super().shutdown(sockets)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _address = await loop.sock_accept(self._listener)
            except OSError as error:
                tell(log, events.ACCEPT_FAILED, error=error)
                await asyncio.sleep(0.1)  # out of descriptors: let some close
                continue
            arriving = asyncio.create_task(self._admit(connection))
            self._arriving[arriving] = connection
            arriving.add_done_callback(self._arrived)
            if len(self._arriving) > self._limits.connections:
                next(iter(self._arriving)).cancel()

    def _arrived(self, task: asyncio.Task[None]) -> None:
        if connection := self._arriving.pop(task):
            connection.close()

    async def _admit(self, connection: socket.socket) -> None:
        """Do the TLS handshake, if TLS is on; hang up on a peer that fails it or is late."""
        task = asyncio.current_task()
        assert task is not None
        self._arriving[task] = None
        context, seconds = None, None
        if self._tls is not None:
            try:
                context = await aiofiles.os.wrap(self._tls.context)()  # the loop waits for no disk
            except BaseException:
                connection.close()
                raise
            seconds = self._limits.header_seconds
        with contextlib.suppress(OSError):  # those of TLS are
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Entrance(self.config, self.server_state, self.lifespan.state),
                connection,
                ssl=context,
                ssl_handshake_timeout=seconds,
            )
