"""Frames of the socket protocol: bytes in and out, nothing about what they mean.

Source: docs/protocol.md, "Frames".
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

PROTOCOL = 1
MAGIC = b"CTR1"
PREFIX = struct.Struct("!4sIQ")
HEADER_LIMIT_BYTES = 1 << 20
REPLY_HEADER_LIMIT_BYTES = 16 << 20  # a step may have many shards, a run many steps
BODY_LIMIT_BYTES = 16 << 20
TOGETHER_BYTES = 128 << 10  # so small a frame is read in one call, and its body copied

Header = dict[str, Any]
Buffer = bytes | bytearray | memoryview


class ByteStream(Protocol):
    """What frames need of a socket; `socket.socket` is one."""

    def sendmsg(
        self, buffers: Iterable[Buffer], ancdata: Iterable[tuple[int, int, array.array[int]]], /
    ) -> int: ...

    def sendall(self, data: memoryview, /) -> None: ...

    def recvmsg(
        self, bufsize: int, ancbufsize: int, flags: int, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...


class FrameError(Exception):
    """The peer sent something that is not a frame of this protocol."""


class ConnectionClosedError(FrameError):
    """The peer closed the connection, in or between frames."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; ``descriptor`` belongs to whoever receives the frame, and must be closed."""

    header: Header
    body: bytearray
    descriptor: int | None = None


def send_frame(
    sock: ByteStream, header: Header, body: Buffer = b"", descriptor: int | None = None
) -> None:
    """Send one frame; ``descriptor`` is duplicated into the peer and stays the caller's to close.

    Raises:
        FrameError: Larger than any peer takes; nothing was sent.
    """
    encoded = _encode(header).encode()
    if len(encoded) > REPLY_HEADER_LIMIT_BYTES or len(body) > BODY_LIMIT_BYTES:
        raise FrameError(f"frame too large: header {len(encoded)}, body {len(body)} bytes")
    prefix = PREFIX.pack(MAGIC, len(encoded), len(body))
    ancillary = []
    if descriptor is not None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
    buffers: list[Buffer] = [prefix + encoded]
    if len(body):
        buffers.append(body)
    sent = sock.sendmsg(buffers, ancillary)
    for buffer in buffers:
        if sent < len(buffer):
            sock.sendall(memoryview(buffer)[sent:])
        sent = max(0, sent - len(buffer))


def receive_frame(sock: ByteStream, header_limit_bytes: int = HEADER_LIMIT_BYTES) -> Frame:
    """Read one frame.

    Args:
        sock: Where from.
        header_limit_bytes: ``REPLY_HEADER_LIMIT_BYTES`` where replies are read.

    Raises:
        ConnectionClosedError: The peer is gone.
        FrameError: Not a frame, or one beyond the limits; the connection is unusable.
    """
    prefix, descriptor = _receive_prefix(sock)
    try:
        magic, header_bytes, body_bytes = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise FrameError(f"expected a frame that starts with {MAGIC!r}, got {bytes(magic)!r}")
        if header_bytes > header_limit_bytes or body_bytes > BODY_LIMIT_BYTES:
            raise FrameError(f"frame too large: header {header_bytes}, body {body_bytes} bytes")
        if header_bytes + body_bytes <= TOGETHER_BYTES:
            rest = _receive_exactly(sock, header_bytes + body_bytes)
            return Frame(_decode_header(rest[:header_bytes]), rest[header_bytes:], descriptor)
        header = _decode_header(_receive_exactly(sock, header_bytes))
        return Frame(header, _receive_exactly(sock, body_bytes), descriptor)
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _decode_header(encoded: bytearray) -> Header:
    try:
        header = _decode(str(encoded, "utf-8"))
    except (ValueError, RecursionError) as error:  # hostile nesting is the latter
        raise FrameError(f"the frame's header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FrameError("the frame's header is not a JSON object")
    return header


def _receive_prefix(sock: ByteStream) -> tuple[bytearray, int | None]:
    """Read the prefix with a plain ``recvmsg``: descriptors arrive only with the first byte."""
    data, ancillary, _flags, _address = sock.recvmsg(
        PREFIX.size, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC
    )
    if not data:
        raise ConnectionClosedError("the peer closed the connection")
    descriptor = _first_descriptor(ancillary) if ancillary else None
    prefix = bytearray(data)
    if len(prefix) < PREFIX.size:
        try:
            prefix += _receive_exactly(sock, PREFIX.size - len(prefix))
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
    return prefix, descriptor


def _first_descriptor(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Take the one descriptor a frame may carry, and close any other."""
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    for extra in received[1:]:
        os.close(extra)
    return received[0] if received else None


def _receive_exactly(sock: ByteStream, size_bytes: int) -> bytearray:
    buffer = bytearray(size_bytes)
    view = memoryview(buffer)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise ConnectionClosedError("the peer closed the connection in the middle of a frame")
        view = view[count:]
    return buffer
