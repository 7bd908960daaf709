"""A proxy that puts distance and trouble between a client and an S3 server on loopback.

::

    python -m cachetier.testing.s3proxy --upstream http://127.0.0.1:8333 --latency-ms 35

Each request waits ``latency`` before it is passed on, on a connection kept alive too; then head and
body pass through a buffer of fixed size, in both directions, with nothing changed: signatures hold.
A thread for each connection keeps this as fast as loopback, far beyond the servers behind it.

The troubles that a ``Troubles`` holds strike requests until they are used up, and are counted when
they do.
"""

from __future__ import annotations

import argparse
import signal
import socket
import struct
import threading
import time
from typing import Self
from urllib.parse import urlsplit

from cachetier.testing.http_wire import Head, Wire, WireError
from cachetier.testing.troubles import Trouble, Troubles

SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


class S3Proxy:
    """Serves on a free port of loopback between ``start`` and ``stop``, or as a context manager.

    ``requests`` counts the requests that came, ``connections`` the connections they came on.
    """

    def __init__(
        self,
        upstream: str,
        *,
        latency_seconds: float = 0.0,
        troubles: Troubles | None = None,
        port: int = 0,
    ) -> None:
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"upstream is an http:// address with a host, not {upstream!r}")
        self.upstream = (parts.hostname, parts.port or 80)
        self.latency_seconds = latency_seconds
        self.troubles = troubles or Troubles()
        self.requests = 0
        self.connections = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="s3proxy-accept", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._acceptor.start()
        return self

    def stop(self) -> None:
        """Stop accepting, and cut every connection."""
        # `shutdown` wakes the thread in `accept`; `close` alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def count_request(self) -> None:
        with self._lock:
            self.requests += 1

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.add(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="s3proxy-connection", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        relay = _Relay(self, Wire(connection))
        try:
            while relay.pass_one():
                pass
        except (OSError, WireError):
            pass  # either side may go away at any time; the other one is told by the close below
        finally:
            relay.close()
            with self._lock:
                self._open.discard(connection)


class _Relay:
    """One connection of a client and, from its first request on, one to the server for it alone."""

    def __init__(self, proxy: S3Proxy, client: Wire) -> None:
        self._proxy = proxy
        self._client = client
        self._server: Wire | None = None

    def pass_one(self) -> bool:
        """Pass one request and its answer; False when the connection is at its end."""
        request = self._client.read_head()
        if request is None:
            return False
        self._proxy.count_request()
        trouble = self._proxy.troubles.strike(request)
        time.sleep(self._proxy.latency_seconds)
        if trouble is Trouble.SLOW_DOWN:
            return self._slow_down(request)
        server = self._connected()
        server.send(request.raw)
        if trouble is Trouble.RESET:
            return self._reset(request, server)
        answer = self._pass_request(request, server)
        if trouble is Trouble.LOST_REPLY:
            server.pass_body(answer.answer_framing(request.method), _drop)
            return False
        self._client.send(answer.raw)
        server.pass_body(answer.answer_framing(request.method), self._client.send)
        refused = request.expects_continue and answer.status >= 400
        return not (request.closes or answer.closes or refused)

    def close(self) -> None:
        for wire in filter(None, (self._client, self._server)):
            wire.socket.close()

    def _connected(self) -> Wire:
        """Return a connection to the server, a new one if the server closed the last while idle."""
        if self._server is not None and _is_idle(self._server.socket):
            return self._server
        if self._server is not None:
            self._server.socket.close()
        self._server = Wire(socket.create_connection(self._proxy.upstream))
        return self._server

    def _pass_request(self, request: Head, server: Wire) -> Head:
        """Pass the body on, and return the head of the final answer."""
        if request.expects_continue:
            answer = _read_answer(server)
            if answer.status != 100:
                return answer  # refused before the body was sent
            self._client.send(answer.raw)
        try:
            self._client.pass_body(request.request_framing, server.send)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a server may answer, and close, before it has read everything
        return _read_answer(server)

    def _slow_down(self, request: Head) -> bool:
        if not request.expects_continue:
            self._client.pass_body(request.request_framing, _drop)
        body = b"" if request.method == "HEAD" else SLOW_DOWN
        closing = "Connection: close\r\n" if request.expects_continue else ""
        head = (
            "HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(body)}\r\n{closing}\r\n"
        )
        self._client.send(head.encode() + body)
        return not (request.closes or request.expects_continue)

    def _reset(self, request: Head, server: Wire) -> bool:
        framing = request.request_framing
        if isinstance(framing, int) and not request.expects_continue:
            self._client.pass_body(framing // 2, server.send)
        for wire in (self._client, server):
            # Lingering for no time at all makes `close` send a reset instead of an orderly end.
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def _read_answer(server: Wire) -> Head:
    answer = server.read_head()
    if answer is None:
        raise WireError("the server closed without an answer")
    return answer


def _is_idle(connection: socket.socket) -> bool:
    """Say whether a connection is open with nothing to read, as it must be between two requests."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed already


def _drop(_: bytes | memoryview) -> None:
    pass


def main() -> None:
    """Print the port, then serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="s3proxy", description="Distance and trouble for S3.")
    parser.add_argument("--upstream", required=True, help="http://host:port of the S3 server")
    parser.add_argument("--port", type=int, default=0, help="port to serve on; a free one if 0")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="wait before each request")
    parser.add_argument("--lose-replies", type=int, default=0, help="lose this many replies")
    parser.add_argument("--resets", type=int, default=0, help="reset this many requests")
    parser.add_argument("--slowdown-rate", type=float, default=0.0, help="requests/s before 503")
    options = parser.parse_args()
    troubles = Troubles(
        lose_replies=options.lose_replies,
        resets=options.resets,
        slowdown_rate=options.slowdown_rate,
    )
    # Blocked before any thread starts, so that the signal waits for `sigwait` below.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    proxy = S3Proxy(
        options.upstream,
        latency_seconds=options.latency_ms / 1000,
        troubles=troubles,
        port=options.port,
    )
    with proxy:
        print(proxy.port, flush=True)  # noqa: T201
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
