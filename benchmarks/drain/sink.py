"""A stand-in for S3 that swallows bodies as fast as loopback brings them, and keeps none.

::

    python -m benchmarks.drain.sink

Prints its port, then takes commands from its input, one line of JSON each, and answers with one:
``{"rate": 25}`` throttles parts to so many a second (0: no limit), ``{"down": true}`` resets every
connection until further notice, ``{"forget": true}`` drops objects and counts, ``{"link": 5e7}``
lets so many bytes a second through, of all connections together, ``{"shape": {"each": 8e6,
"latency": 0.035}}`` so many of each connection, and answers late (see ``Shape``), ``{"keep":
true}`` keeps bodies, and each command is answered with the counts. It ends with its input.

A thread for each connection; the kernel drops the bodies (``MSG_TRUNC``), unless they are kept, so
that not a byte of them is copied into this process. What it answers for checksums is what the
client declared.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
import time
from http import HTTPStatus
from typing import Any

from benchmarks.drain.link import Link, Shape
from benchmarks.drain.objects import SLOW_DOWN, Answer, Body, Objects, Request
from cachetier.simulate.store import TokenBucket
from cachetier.testing.http_wire import WireError, WireHead

RECEIVE_BYTES = 1 << 20
SOCKET_BYTES = 4 << 20
LIMITED_SOCKET_BYTES = 128 << 10  # what lies in buffers has not been through the link
HEAD_BYTES = 64 << 10


class Tally:
    """Counts what came. Thread-safe.

    A part's latency runs from its first try until it is accepted, as the sink sees it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._counts = dict.fromkeys(
                (
                    "requests",
                    "arrived_bytes",
                    "bytes",
                    "read_bytes",
                    "accepted",
                    "rejected",
                    "repeated",
                    "knocks",
                ),
                0,
            )
            self._tried_at: dict[tuple[str, str], float] = {}
            self._latencies: dict[tuple[str, str], float] = {}

    def add(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def part(self, name: tuple[str, str], *, accepted: bool) -> None:
        now = time.monotonic()
        with self._lock:
            first = self._tried_at.setdefault(name, now)
            if not accepted:
                self._counts["rejected"] += 1
            elif name in self._latencies:
                self._counts["repeated"] += 1
            else:
                self._counts["accepted"] += 1
                self._latencies[name] = now - first

    def as_json(self) -> dict[str, Any]:
        with self._lock:
            latencies = sorted(self._latencies.values())
            last = latencies[int(0.99 * (len(latencies) - 1))] if latencies else 0.0
            return {**self._counts, "p99_seconds": last, "at": time.monotonic()}


class Sink:
    """Serves on a free port of ``host`` until the process ends."""

    def __init__(self, host: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.tally = Tally()
        self._objects = Objects()
        self._bucket: TokenBucket | None = None
        self._bucket_lock = threading.Lock()
        self._down = False
        self._keep = False
        self._link = Link()
        self._shape = Shape()
        self._at_work = AtWork()
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        self._listener = socket.create_server((host, 0), backlog=256)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a command says, and return the counts."""
        if "rate" in command:
            rate = float(command["rate"])
            now = time.monotonic()
            self._bucket = TokenBucket(rate, max(1.0, rate), now=now) if rate else None
        self._keep = bool(command.get("keep", self._keep))
        if "link" in command or "shape" in command:
            self._shape = Shape(**command.get("shape", {}))
            total = float(command.get("link", 0.0))
            self._link = Link(total, halves_after=self._shape.halves_after)
            limited = (command.get("link") or self._shape.each) and not self._shape.ahead
            size = LIMITED_SOCKET_BYTES if limited else SOCKET_BYTES
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        if command.get("forget"):
            self._objects = Objects()
            self.tally.clear()
        if "down" in command:
            self._down = bool(command["down"])
            with self._open_lock:
                for connection in self._open if self._down else ():
                    _reset(connection)
        return self.tally.as_json()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._down:
                self.tally.add(knocks=1)
                _reset(connection)
                connection.close()
                continue
            with self._open_lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted = connection
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            reader = _Reader(connection)
            while (head := reader.head()) is not None:
                self._answer_one(connection, reader, head)
        except (OSError, WireError):
            pass  # the client went away, or we are down
        finally:
            with self._open_lock:
                self._open.discard(accepted)
            connection.close()

    def _answer_one(self, connection: socket.socket, reader: _Reader, head: WireHead) -> None:
        request = Request.of(head)
        accepted = self._has_room() if request.is_part else True
        answer, size_bytes = SLOW_DOWN, 0
        body: Body = b""
        way = Way(self._link, self._shape, self._at_work, self.tally)
        if head.expects_continue and accepted:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if accepted or not head.expects_continue:
            keep = request.is_document or (self._keep and request.is_part)
            with self._at_work:
                body, size_bytes = reader.body(head, way, keep=keep)
                way.finish()
        if accepted:
            size = int(head.fields.get("x-amz-decoded-content-length", size_bytes))
            answer = self._objects.answer(request, size, body)
        if request.is_part:
            self.tally.part(request.name, accepted=accepted)
        sent = len(answer.body) if request.method == "GET" else 0
        self.tally.add(requests=1, bytes=size_bytes if accepted else 0, read_bytes=sent)
        self._shape.wait()
        connection.sendall(_head_of(answer))
        if request.method != "HEAD":
            with self._at_work:
                _send_along(connection, answer.body, way)

    def _has_room(self) -> bool:
        with self._bucket_lock:
            return self._bucket is None or self._bucket.take(time.monotonic())


class AtWork:
    """How many bodies are on their way; a context for each of them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.number = 0

    def __enter__(self) -> None:
        with self._lock:
            self.number += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.number -= 1


class Way:
    """What one request goes through: the link of all, and its own connection."""

    def __init__(self, shared: Link, shape: Shape, at_work: AtWork, tally: Tally) -> None:
        self._shared, self._own = shared, shape.way()
        self._shape, self._at_work, self._tally = shape, at_work, tally
        self.piece_bytes = min(self._own.piece_bytes, shared.piece_bytes)

    def carry(self, size_bytes: int, ahead_bytes: float = 0.0) -> None:
        """Return once so many bytes more are through, but for what a buffer takes ahead."""
        self._shared.carry(size_bytes)
        slower = self._shape.slower(self._at_work.number)
        self._own.carry(size_bytes, ahead_bytes, slower)

    def take(self, size_bytes: int) -> None:
        """Return once so many bytes more of a body are taken."""
        self.carry(size_bytes, self._shape.ahead)
        self._tally.add(arrived_bytes=size_bytes)

    def finish(self) -> None:
        """Return once the buffer is worked through."""
        self._own.carry(0)


def _send_along(connection: socket.socket, body: Body, way: Way) -> None:
    rest = memoryview(body)
    while rest:
        connection.sendall(rest[: way.piece_bytes])
        way.carry(len(rest[: way.piece_bytes]))
        rest = rest[way.piece_bytes :]


class _Reader:
    """Reads heads, and drops bodies without looking at them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = b""
        self._buffer = bytearray(RECEIVE_BYTES)
        encrypted = isinstance(connection, ssl.SSLSocket)  # the kernel cannot drop that
        self._flags = 0 if encrypted else socket.MSG_TRUNC

    def head(self) -> WireHead | None:
        while b"\r\n\r\n" not in self._pending:
            received = self._connection.recv(HEAD_BYTES)
            if not received:
                return None
            self._pending += received
        raw, _, self._pending = self._pending.partition(b"\r\n\r\n")
        return WireHead.parse(raw + b"\r\n\r\n")

    def body(self, head: WireHead, link: Way, *, keep: bool) -> tuple[Body, int]:
        """Return the body if it is to be kept, and its size; it comes as fast as ``link`` is."""
        framing = head.request_framing
        if not isinstance(framing, int):
            raise WireError("the sink wants a Content-Length")
        if keep:
            return self._kept(framing, link), framing
        left = framing - len(self._pending[:framing])
        self._pending = self._pending[framing:]
        while left:
            dropped = self._connection.recv_into(
                self._buffer, min(left, link.piece_bytes, RECEIVE_BYTES), self._flags
            )
            if not dropped:
                raise WireError("closed within a body")
            left -= dropped
            link.take(dropped)
        return b"", framing

    def _kept(self, size_bytes: int, link: Way) -> bytearray:
        body = bytearray(size_bytes)
        done = len(self._pending[:size_bytes])
        body[:done], self._pending = self._pending[:size_bytes], self._pending[size_bytes:]
        view = memoryview(body)
        while done < size_bytes:
            received = self._connection.recv_into(view[done : done + link.piece_bytes])
            if not received:
                raise WireError("closed within a body")
            done += received
            link.take(received)
        return body


def _head_of(answer: Answer) -> bytes:
    size = len(answer.body) if answer.size_bytes is None else answer.size_bytes
    fields = {"Content-Length": str(size), **answer.fields} if answer.status != 204 else {}
    lines = [
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        *(f"{name}: {text}" for name, text in fields.items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _reset(connection: socket.socket) -> None:
    """End a connection as a host that is gone does: with a reset."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # closed already


def main(host: str, *certificate_and_key: str) -> None:
    tls = None
    if certificate_and_key:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate_and_key)
    sink = Sink(host, tls)
    print(sink.port, flush=True)
    for line in sys.stdin:
        print(json.dumps(sink.obey(json.loads(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
