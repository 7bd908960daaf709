"""Each answer goes to the connection that asked, however fast descriptors are used again.

uvloop before 0.23 could close a socket that it had closed before, when its number was already that
of another connection. So who hangs up, crowds and is cut off here must cost nobody a wrong answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.types import Receive, Scope, Send

from cachetier.doors.http import server
from cachetier.doors.http.front import CONNECTION
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.server import HttpServer, event_loop

CALLERS, ROUNDS = 12, 120
RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: a close is a reset, and no port is kept
CROWDED = RequestLimits(connections=8)  # less than the callers: the door itself cuts some off


class Echo:
    """Answers with the path and the digest of the body, after some turns of the loop."""

    def __init__(self) -> None:
        self.port = 0
        self.served: Counter[int] = Counter()  # requests, by the number of their descriptor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served[scope["extensions"][CONNECTION]["socket"].fileno()] += 1
        digest, more = hashlib.sha256(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            digest.update(message.get("body", b""))
            more = message.get("more_body", False)
        for _ in range(len(scope["path"]) % 5):
            await asyncio.sleep(0)
        body = answer_to(scope["path"], digest.hexdigest())
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


def answer_to(path: str, digest: str) -> bytes:
    return f"{path} {digest}\n".encode()


@pytest.fixture(params=["uvloop", "asyncio"])
def echo(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Echo]:
    monkeypatch.setattr(server, "event_loop", lambda: request.param)
    echo = Echo()
    door = HttpServer("http", ("127.0.0.1", 0), echo, limits=CROWDED)
    door.start()
    echo.port = int(door.url.rsplit(":", 1)[1])
    yield echo
    door.stop(1.0)


def asked(port: int, name: str, draw: random.Random) -> int:
    """Ask over one connection, some of the time without waiting; return how many answers came."""
    came = 0
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        try:
            for number in range(draw.randrange(1, 4)):
                path, body = f"/{name}-{number}", draw.randbytes(draw.choice((0, 5, 40_000)))
                head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                sent = head.encode() + body
                how = draw.random()
                if how < 0.3:
                    connection.sendall(sent[: draw.randrange(len(sent))])
                    return came
                connection.sendall(sent)
                if how < 0.5:
                    return came
                wanted = answer_to(path, hashlib.sha256(body).hexdigest())
                found = b""
                while not found.partition(b"\r\n\r\n")[2].endswith(b"\n"):
                    piece = connection.recv(65536)
                    if not piece:
                        return came
                    found += piece
                assert found.partition(b"\r\n\r\n")[2] == wanted
                came += 1
        except ConnectionError:
            pass  # the door is crowded: whoever is cut off gets no answer, and never a wrong one
    return came


def test_each_answer_goes_to_whoever_asked(echo: Echo) -> None:
    def call(caller: int) -> int:
        draw = random.Random(caller)
        return sum(asked(echo.port, f"{caller}-{number}", draw) for number in range(ROUNDS))

    with ThreadPoolExecutor(CALLERS) as pool:
        came = sum(pool.map(call, range(CALLERS)))

    assert came > CALLERS
    assert max(echo.served.values()) > 10, "no descriptor was used again"


@pytest.mark.parametrize(
    ("version", "loop"),
    [
        ("0.21.0", "asyncio"),
        ("0.22.1", "asyncio"),
        ("0.23.0", "uvloop"),
        ("0.23.0rc1", "uvloop"),
        ("1.0", "uvloop"),
        ("unknown", "asyncio"),
    ],
)
def test_a_uvloop_without_the_fix_is_not_used(version: str, loop: str) -> None:
    assert event_loop(version) == loop
