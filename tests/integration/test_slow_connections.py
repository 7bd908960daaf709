"""Five hundred connections that send next to nothing, against a service as it is installed."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from benchmarks.node import Node, node
from tests.fakes.access import TOKEN
from tests.faults.counting import count
from tests.faults.slices import everything
from tests.integration.serving import OWNER, Caller, shard_path

CONNECTIONS = 500
PATIENCE_SECONDS = 90.0
DRIP_SECONDS = 1.0
HEALTHY = 200
BODY = f"PUT {shard_path('slow')} HTTP/1.1\r\n{OWNER}Content-Length: 50000\r\n\r\nsome"
# What each kind sends at first, and then again every second.
KINDS = {
    "silent": (b"", b""),
    "a head that never ends": (b"GET /livez HTTP/1.1\r\n", b"X: y\r\n"),
    "half a head": (b"GET /livez HT", b""),
    "resting after an answer": (b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n", b""),
    "a body that drips": (BODY.encode(), b"x"),
}

pytestmark = pytest.mark.skipif(not everything(), reason="half a minute: make faults PART=hostile")


class Slow:
    """Connections that a thread of this test keeps slow until the service closes them."""

    def __init__(self, port: int) -> None:
        self.began = time.monotonic()
        self.closed: dict[int, tuple[str, float]] = {}  # their kind, and after how long
        self._selector = selectors.DefaultSelector()
        self._drips: dict[socket.socket, tuple[str, bytes]] = {}
        for number in range(CONNECTIONS):
            kind = list(KINDS)[number % len(KINDS)]
            connection = socket.create_connection(("127.0.0.1", port), timeout=20)
            connection.sendall(KINDS[kind][0])
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, (number, kind))
            self._drips[connection] = (kind, KINDS[kind][1])
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        drip_at = time.monotonic() + DRIP_SECONDS
        while self._drips and time.monotonic() < self.began + PATIENCE_SECONDS:
            for key, _ in self._selector.select(max(0.0, drip_at - time.monotonic())):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                self._read(connection, *key.data)
            if time.monotonic() >= drip_at:
                self._drip()
                drip_at += DRIP_SECONDS
        for connection in self._drips:
            connection.close()

    def _read(self, connection: socket.socket, number: int, kind: str) -> None:
        try:
            if connection.recv(65536):
                return
        except ConnectionError:
            pass
        self.closed[number] = (kind, time.monotonic() - self.began)
        self._selector.unregister(connection)
        del self._drips[connection]
        connection.close()

    def _drip(self) -> None:
        for connection, (_, drip) in self._drips.items():
            try:
                connection.send(drip)
            except OSError:
                pass  # it was closed: reading says so


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "cache", settings={"token": TOKEN}) as started:
        with Client(f"http://127.0.0.1:{started.http_port}") as client:
            client.runs()  # it opens this door last: the client waits for it
        yield started


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[-1 - len(seconds) // 100]


def seconds_of_requests(
    call: Caller, number: int, enough: Callable[[], bool] = lambda: False
) -> list[float]:
    """Return how long each of some requests of somebody healthy takes, until it is ``enough``."""
    taken = list[float]()
    while len(taken) < number and not enough():
        began = time.perf_counter()
        assert call("GET", "/v1/runs").status == 200
        taken.append(time.perf_counter() - began)
    return taken


def test_five_hundred_slow_connections_are_closed_in_time_and_harm_nobody(
    service: Node, request: pytest.FixtureRequest
) -> None:
    call = Caller(service.http_port)
    before = seconds_of_requests(call, HEALTHY)
    slow = Slow(service.http_port)
    beside = seconds_of_requests(call, HEALTHY, lambda: bool(slow.closed))
    assert beside, "they were not slow at the same time"
    while slow.thread.is_alive():
        assert call("PUT", shard_path("healthy"), b"x" * 100_000).status == 201
        beside += seconds_of_requests(call, 20)
        slow.thread.join(0.5)
    last = {kind: max(at for name, at in slow.closed.values() if name == kind) for kind in KINDS}
    print(
        f"p99 of the healthy: {p99(before):.4f} s, beside the slow ones {p99(beside):.4f} s; {last}"
    )
    assert len(slow.closed) == CONNECTIONS
    count(request, "slow connections closed", CONNECTIONS)
