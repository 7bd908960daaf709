"""What the HTTP door keeps of requests before it knows from whom they are: little, in all."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.protocol import PIPELINED, READ_BYTES_UNASKED
from cachetier.doors.http.server import HttpServer
from tests.integration.serving import Caller, Served, received, serving, shard_path

CALLERS = 20
TOKEN = "kT7-pzQ2.mXw9_bLrV4s"
PUT = f"PUT {shard_path('x')} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 90000000\r\n"


async def never_asks(_scope: Scope, _receive: Receive, _send: Send) -> None:
    await asyncio.sleep(3600)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    opened = HttpServer("http", ("127.0.0.1", 0), never_asks, limits=RequestLimits())
    opened.start()
    yield opened
    opened.stop(0.0)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    with serving(token=TOKEN) as served:
        yield served


def connections_of(server: HttpServer | None) -> list[Any]:
    assert server is not None
    assert server._server is not None
    return list(server._server.server_state.connections)


@contextmanager
def flooding(server: HttpServer | None, data: bytes) -> Iterator[list[socket.socket]]:
    """Send as much of ``data`` as goes, on each of some connections."""
    assert server is not None
    caller = Caller(int(server.url.rsplit(":", 1)[1]))
    with ExitStack() as held:
        callers = [held.enter_context(caller.raw()) for _ in range(CALLERS)]
        for each in callers:
            each.settimeout(0.1)
            try:
                each.sendall(data)
            except OSError:
                pass
        time.sleep(0.2)
        yield callers


def test_a_body_that_nobody_asked_for_stays_with_the_kernel(server: HttpServer) -> None:
    with flooding(server, f"{PUT}\r\n".encode() + bytes(1 << 20)):
        ends_at = time.monotonic() + 60
        while sum(each.cycle is not None for each in connections_of(server)) < CALLERS:
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        kept = [len(each.cycle.body) for each in connections_of(server)]
        assert max(kept) <= READ_BYTES_UNASKED


def test_few_requests_wait_for_the_one_before(server: HttpServer) -> None:
    with flooding(server, b"GET / HTTP/1.1\r\n\r\n" * 2000) as callers:
        assert all(received(each, 5).startswith(b"HTTP/1.1 400") for each in callers)


def test_some_requests_at_once_are_answered_in_order(guarded: Served) -> None:
    answers = guarded.call.send_raw(
        b"GET /livez HTTP/1.1\r\n\r\n" * (PIPELINED - 1)
        + b"GET /readyz HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    assert answers.count(b"HTTP/1.1 200 OK") == PIPELINED
    assert answers.rpartition(b"\r\n\r\n")[2] == b'{"state":"ready"}'


def test_a_head_that_never_ends_is_refused_early(server: HttpServer) -> None:
    head = b"GET / HTTP/1.1\r\nX: " + b"y" * (RequestLimits().head_bytes + READ_BYTES_UNASKED)
    with flooding(server, head) as callers:
        assert all(received(each, 5).startswith(b"HTTP/1.1 400") for each in callers)


def test_of_a_refused_body_nothing_is_kept(guarded: Served) -> None:
    with flooding(guarded.service._http, f"{PUT}\r\n".encode() + bytes(1 << 20)) as callers:
        assert all(each.recv(4096).startswith(b"HTTP/1.1 401") for each in callers)
        assert sum(len(each.cycle.body) for each in connections_of(guarded.service._http)) == 0


def test_who_expects_to_be_asked_is_asked_once_the_token_was_right(guarded: Served) -> None:
    head = f"PUT {shard_path('asked')} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n"
    right = f"Authorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\n"
    with guarded.call.raw() as connection:
        connection.sendall(f"{head}{right}".encode())
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hello")
        assert connection.recv(4096).startswith(b"HTTP/1.1 201")
    answer = guarded.call.send_raw(f"{head}Content-Length: 5\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 401")
