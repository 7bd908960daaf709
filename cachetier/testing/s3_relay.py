"""One connection of a client through the proxy, and what troubles do to it."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from cachetier.testing.http_wire import BUFFER_BYTES, Sink, Wire, WireError, WireHead
from cachetier.testing.s3_answers import MADE_UP, flawed, flawless, made_up
from cachetier.testing.troubles import Trouble, Troubles

HELD_SECONDS = 3600.0
_FLAWS = (Trouble.WRONG_CHECKSUM, Trouble.WRONG_ETAG, Trouble.BROKEN_XML)


class Surroundings(Protocol):
    """The proxy as a relay sees it."""

    upstream: tuple[str, int]
    troubles: Troubles
    latency_seconds: float
    trickle_seconds: float
    late_seconds: float

    def count_request(self) -> None:
        """Count one request that came."""


class Relay:
    """One connection of a client and, from its first request on, one to the server for it alone."""

    def __init__(self, proxy: Surroundings, client: Wire) -> None:
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
        if trouble in MADE_UP:
            return self._make_up(trouble, request)
        if trouble is Trouble.CLOSED:
            return False
        if trouble is Trouble.STALL:
            _left_within(self._client.socket, HELD_SECONDS)
            return False
        if trouble is Trouble.LATE:
            return self._deliver_late(request)
        server = self._connected()
        server.send(request.raw)
        if trouble is Trouble.RESET:
            return self._reset(request, server)
        sink = _flipping(server.send, request) if trouble is Trouble.CORRUPT else server.send
        answer = self._pass_request(request, server, sink)
        return self._pass_answer(trouble, request, answer, server)

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

    # --- the request -----------------------------------------------------------------------------

    def _pass_request(self, request: WireHead, server: Wire, sink: Sink) -> WireHead:
        """Pass the body on, and return the head of the final answer."""
        if request.expects_continue:
            answer = _read_answer(server)
            if answer.status != 100:
                return answer  # refused before the body was sent
            self._client.send(answer.raw)
        try:
            self._client.pass_body(request.request_framing, sink)
        except (BrokenPipeError, ConnectionResetError):
            pass  # a server may answer, and close, before it has read everything
        return _read_answer(server)

    def _make_up(self, trouble: Trouble, request: WireHead) -> bool:
        if not request.expects_continue:
            self._client.pass_body(request.request_framing, _drop)
        seconds = self._proxy.troubles.retry_after_seconds
        closes = request.expects_continue
        self._client.send(
            made_up(trouble, request.method, closes=closes, retry_after_seconds=seconds)
        )
        return not (request.closes or closes)

    def _reset(self, request: WireHead, server: Wire) -> bool:
        framing = request.request_framing
        if isinstance(framing, int) and not request.expects_continue:
            self._client.pass_body(framing // 2, server.send)
        _reset_on_close(self._client)
        _reset_on_close(server)
        return False

    def _deliver_late(self, request: WireHead) -> bool:
        """Cut the client off once it has sent everything, and pass that on only later."""
        if request.expects_continue:
            self._client.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        self._client.pass_body(request.request_framing, body.extend)
        with suppress(OSError):  # it may have gone by itself
            self._client.socket.shutdown(socket.SHUT_RDWR)
        time.sleep(self._proxy.late_seconds)
        server = self._connected()
        server.send(request.raw + body)
        answer = _read_answer(server)
        while answer.status == 100:
            answer = _read_answer(server)
        server.pass_body(answer.answer_framing(request.method), _drop)
        return False

    # --- the answer ------------------------------------------------------------------------------

    def _pass_answer(
        self, trouble: Trouble | None, request: WireHead, answer: WireHead, server: Wire
    ) -> bool:
        framing = answer.answer_framing(request.method)
        if trouble is Trouble.LOST_REPLY:
            server.pass_body(framing, _drop)
            return False
        if trouble is Trouble.CUT_REPLY:
            return self._cut(request, answer, server)
        if trouble is Trouble.TRICKLE:
            return self._trickle(request, answer, server)
        if trouble in _FLAWS and answer.status < 300:
            self._send_flawed(trouble, request, answer, server)
        else:
            self._client.send(answer.raw)
            server.pass_body(framing, self._client.send)
        refused = request.expects_continue and answer.status >= 400
        return not (request.closes or answer.closes or refused)

    def _cut(self, request: WireHead, answer: WireHead, server: Wire) -> bool:
        """Send half of the body, or of the head where there is none."""
        framing = answer.answer_framing(request.method)
        if framing == 0:
            self._client.send(answer.raw[: len(answer.raw) // 2])
        else:
            self._client.send(answer.raw)
            if isinstance(framing, int):
                server.pass_body(framing // 2, self._client.send)
        _reset_on_close(self._client)
        return False

    def _trickle(self, request: WireHead, answer: WireHead, server: Wire) -> bool:
        """Send the answer byte by byte, until the client has it or goes."""

        def drip(piece: bytes | memoryview) -> None:
            for value in bytes(piece):
                self._client.send(bytes([value]))
                if _left_within(self._client.socket, self._proxy.trickle_seconds):
                    raise WireError("the client left")

        drip(answer.raw)
        server.pass_body(answer.answer_framing(request.method), drip)
        return not (request.closes or answer.closes)

    def _send_flawed(
        self, trouble: Trouble, request: WireHead, answer: WireHead, server: Wire
    ) -> None:
        """Send the answer with its flaw, or as it is where it has no place for one."""
        body = server.read_body(answer.answer_framing(request.method))
        sent = flawed(trouble, answer, body)
        if sent is None:
            self._proxy.troubles.missed(trouble, request)
            sent = flawless(answer, body)
        self._client.send(sent)


def _read_answer(server: Wire) -> WireHead:
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


def _left_within(connection: socket.socket, seconds: float) -> bool:
    """Wait up to ``seconds`` for the peer to close, whatever it sent; return whether it did."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(seconds * 1000))


def _reset_on_close(wire: Wire) -> None:
    # Lingering for no time at all makes `close` send a reset instead of an orderly end.
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _flipping(sink: Sink, request: WireHead) -> Callable[[bytes | memoryview], None]:
    """Return ``sink`` with one bit flipped in the middle of the body."""
    framing = request.request_framing
    missing = framing // 2 if isinstance(framing, int) else BUFFER_BYTES

    def flip(piece: bytes | memoryview) -> None:
        nonlocal missing
        changed = bytearray(piece)
        if 0 <= missing < len(changed):
            changed[missing] ^= 1
        missing -= len(changed)
        sink(memoryview(changed))

    return flip


def _drop(_: bytes | memoryview) -> None:
    pass
