"""Those who wait hold nothing that others need, and nothing at all once they are gone."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cachetier_client.transport.wire import PROTOCOL, receive_frame, send_frame

from tests.integration.serving import SECONDS, Served, serving

HTTP_WAITERS, SOCKET_WAITERS = 300, 200
WAIT = "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"
FLUSH = (
    "POST /v1/flush HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    "Content-Length: {length}\r\n\r\n{body}"
)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        served.put("a", b"dirty")  # its drain is idle: it never becomes durable
        yield served


def until(reached: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting_over_http(served: Served, number: int, held: ExitStack) -> None:
    """Open connections that wait, each for another step or for a flush."""
    for each in range(number):
        body = f'{{"run": "r", "timeout_seconds": {60_000 + each}}}'
        step = "/v1/runs/r/steps/1/wait?timeout_seconds=60000"
        request = WAIT.format(path=step) if each % 2 else FLUSH.format(length=len(body), body=body)
        connection = held.enter_context(served.call.raw())
        connection.sendall(request.encode())
    until(lambda: served.service.operations.waits.callers == number)


def waiting_at_the_socket(served: Served, number: int, held: ExitStack) -> None:
    path = served.unix_url.removeprefix("unix://")
    for _ in range(number):
        rank = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        rank.connect(path)
        asked(rank, {"op": "hello", "protocol": PROTOCOL})
        assert receive_frame(rank).header["ok"]
        asked(rank, {"op": "wait", "run": "r", "step": 1, "timeout_seconds": 60_000})
    until(lambda: served.service.operations.waits.callers == number)


def asked(rank: socket.socket, header: dict[str, Any]) -> None:
    send_frame(rank, header)


@pytest.mark.parametrize(
    ("wait", "number"),
    [(waiting_over_http, HTTP_WAITERS), (waiting_at_the_socket, SOCKET_WAITERS)],
    ids=["http", "socket"],
)
def test_callers_who_hang_up_while_they_wait_hold_nothing_a_second_later(
    served: Served, wait: Callable[[Served, int, ExitStack], None], number: int
) -> None:
    with ExitStack() as held:
        wait(served, number, held)

    until(lambda: served.service.operations.waits.callers == 0, 1.0)
    until(lambda: served.service.report.service().open_connections == 0, 1.0)
    assert served.put("b", b"goes on").status == 201


def test_waiting_callers_take_no_place_of_a_request(served: Served) -> None:
    """300 wait, and the door serves 256 requests at once."""
    with ExitStack() as held:
        waiting_over_http(served, HTTP_WAITERS, held)

        assert served.call("GET", "/v1/runs").status == 200
        assert served.put("b", b"goes on").status == 201
