"""Just enough HTTP/1.1 for a proxy: where a head ends, and how long its body is."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

HEAD_LIMIT_BYTES = 256 << 10
BUFFER_BYTES = 256 << 10

Framing = int | Literal["chunked", "until_close"]
Sink = Callable[[bytes | memoryview], object]


class WireError(Exception):
    """The peer went away, or does not speak HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class WireHead:
    """The head of a request or of an answer, as it came."""

    raw: bytes
    first: tuple[str, ...]
    fields: dict[str, str]

    @classmethod
    def parse(cls, raw: bytes) -> WireHead:
        lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":")[::2] for line in lines[1:])
        first = tuple(lines[0].split(" ", 2))
        if len(first) < 2:
            raise WireError(f"not a line of HTTP: {lines[0]!r}")
        return cls(raw, first, {name.strip().lower(): value.strip() for name, value in pairs})

    @property
    def method(self) -> str:
        return self.first[0]

    @property
    def status(self) -> int:
        return int(self.first[1])

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this message."""
        connection = self.fields.get("connection", "").lower()
        if "HTTP/1.0" in self.first:
            return "keep-alive" not in connection
        return "close" in connection

    @property
    def expects_continue(self) -> bool:
        return self.fields.get("expect", "").lower() == "100-continue"

    @property
    def request_framing(self) -> Framing:
        if "chunked" in self.fields.get("transfer-encoding", "").lower():
            return "chunked"
        return int(self.fields.get("content-length", 0))

    def answer_framing(self, method: str) -> Framing:
        """Return the framing of this answer to a request with ``method``."""
        if method == "HEAD" or self.status in (204, 304) or self.status < 200:
            return 0
        if "chunked" in self.fields.get("transfer-encoding", "").lower():
            return "chunked"
        length = self.fields.get("content-length")
        return "until_close" if length is None else int(length)


class Wire:
    """One TCP connection, read by heads and bodies through a buffer of fixed size."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self._pending = b""
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def send(self, data: bytes | memoryview) -> None:
        self.socket.sendall(data)

    def read_head(self) -> WireHead | None:
        """Return the next head, or None when the peer closed between two messages."""
        raw = self._read_through(b"\r\n\r\n")
        return WireHead.parse(raw) if raw else None

    def pass_body(self, framing: Framing, sink: Sink) -> None:
        """Hand the body that comes next to ``sink``, in its framing, piece by piece."""
        if framing == "chunked":
            self._pass_chunks(sink)
        elif framing == "until_close":
            while piece := self._piece(BUFFER_BYTES):
                sink(piece)
        else:
            self._pass_exactly(framing, sink)

    def read_body(self, framing: Framing) -> bytes:
        """Return the body that comes next, out of its framing."""
        body = bytearray()
        if framing != "chunked":
            self.pass_body(framing, body.extend)
            return bytes(body)
        while size := int(self._read_through(b"\r\n").split(b";")[0], 16):
            self._pass_exactly(size, body.extend)
            self._read_through(b"\r\n")
        while self._read_through(b"\r\n") != b"\r\n":
            pass
        return bytes(body)

    def _pass_exactly(self, missing: int, sink: Sink) -> None:
        while missing:
            piece = self._piece(missing)
            if not piece:
                raise WireError(f"closed {missing} bytes before the end of a body")
            sink(piece)
            missing -= len(piece)

    def _pass_chunks(self, sink: Sink) -> None:
        size = -1
        while size:
            line = self._read_through(b"\r\n")
            sink(line)
            size = int(line.split(b";")[0], 16)
            self._pass_exactly(size + 2 if size else 0, sink)
        while (trailer := self._read_through(b"\r\n")) != b"\r\n":
            sink(trailer)
        sink(b"\r\n")

    def _piece(self, most: int) -> bytes | memoryview:
        if self._pending:
            piece, self._pending = self._pending[:most], self._pending[most:]
            return piece
        return self._buffer[: self.socket.recv_into(self._buffer[: min(most, BUFFER_BYTES)])]

    def _read_through(self, mark: bytes) -> bytes:
        """Return the bytes up to and with ``mark``; none when the peer closed before the first."""
        while mark not in self._pending:
            received = self.socket.recv(BUFFER_BYTES)
            if not received and not self._pending:
                return b""
            if not received or len(self._pending) > HEAD_LIMIT_BYTES:
                raise WireError("closed, or too much, before the end of a head")
            self._pending += received
        found, _, self._pending = self._pending.partition(mark)
        return found + mark
