"""Those who wait hold nothing that others need, and nothing at all once they are gone."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from cachetier_client.transport.wire import PROTOCOL, receive_frame, send_frame

from cachetier.doors.http.limits import RequestLimits
from tests.integration.serving import OWNER, SECONDS, Served, serving, shard_path

HTTP_WAITERS, SOCKET_WAITERS = 300, 200
WAIT = f"GET {{path}} HTTP/1.1\r\n{OWNER}\r\n"
FLUSH = (
    f"POST /v1/flush HTTP/1.1\r\n{OWNER}Content-Type: application/json\r\n"
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
    for _ in range(number):
        rank = held.enter_context(greeted(served))
        asked(rank, {"op": "wait", "run": "r", "step": 1, "timeout_seconds": 60_000})
    until(lambda: served.service.operations.waits.callers == number)


@contextmanager
def greeted(served: Served) -> Iterator[socket.socket]:
    """Lend a connection to the socket that has said hello."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rank:
        rank.connect(served.unix_url.removeprefix("unix://"))
        asked(rank, {"op": "hello", "protocol": PROTOCOL})
        assert receive_frame(rank).header["ok"]
        yield rank


def put_of(name: str) -> dict[str, Any]:
    who = {"run": "r", "step": 1, "save_id": "one", "rank": 0, "world_size": 1}
    return {"op": "begin", **who, "name": name, "size_bytes": 800_000, "timeout_seconds": 60_000}


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


@pytest.mark.parametrize("wait", [waiting_over_http, waiting_at_the_socket], ids=["http", "socket"])
def test_to_hang_up_while_waiting_is_no_failure_of_the_service(
    served: Served,
    wait: Callable[[Served, int, ExitStack], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ExitStack() as held:
        wait(served, 2, held)

    until(lambda: served.service.report.service().open_connections == 0, 1.0)
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_ranks_that_hang_up_while_they_wait_for_room_are_forgotten() -> None:
    with serving(capacity="1 MB") as served:
        assert served.put("dirty", bytes(900_000)).status == 201
        with ExitStack() as held:
            for each in range(20):
                rank = held.enter_context(greeted(served))
                asked(rank, put_of(f"of-{each}"))
            head = f"PUT {shard_path('over-http')}?timeout_seconds=60000 HTTP/1.1\r\n"
            for _ in range(10):
                connection = held.enter_context(served.call.raw())
                connection.sendall(f"{head}{OWNER}Content-Length: 800000\r\n\r\n".encode())
                connection.sendall(bytes(100_000))
            space = served.service.store.space
            until(lambda: space.wanted_bytes == 30 * 800_000)

        until(lambda: space.wanted_bytes == 0, 2.0)
        until(lambda: served.service.report.service().open_connections == 0, 1.0)


def test_waiting_callers_take_no_place_of_a_request(served: Served) -> None:
    """300 wait, and the door serves 256 requests at once."""
    with ExitStack() as held:
        waiting_over_http(served, HTTP_WAITERS, held)

        assert served.call("GET", "/v1/runs").status == 200
        assert served.put("b", b"goes on").status == 201


@pytest.mark.parametrize("behind", [b"", WAIT.format(path="/livez").encode() * 3], ids=str)
def test_a_caller_who_sent_more_requests_behind_the_wait_is_noticed_too(
    served: Served, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    waits = served.service.operations.waits
    step = "/v1/runs/r/steps/1/wait?timeout_seconds=60000"
    quick = RequestLimits(progress_seconds=0.6)  # it looks after a quarter of that
    with served.second_door(quick) as (door, caller):
        with caller.raw() as connection:
            connection.sendall(WAIT.format(path=step).encode() + behind)
            until(lambda: waits.callers == 1)
        until(lambda: waits.callers == 0)
        until(lambda: door.connections == 0)
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
