"""Frames of the socket protocol: bytes in and out, nothing about what they mean.

Source: docs/protocol.md, "Frames".
"""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from cachetier_client.deadline import Deadline

PROTOCOL = 1
MAGIC = b"CTR1"
PREFIX = struct.Struct("!4sIQ")
HEADER_LIMIT_BYTES = 1 << 20
REPLY_HEADER_LIMIT_BYTES = 16 << 20  # a step may have many shards, a run many steps
BODY_LIMIT_BYTES = 16 << 20
TOGETHER_BYTES = 128 << 10  # so small a frame is read in one call, and its body copied
DESCRIPTOR = struct.Struct("i")
_ONE_DESCRIPTOR = socket.CMSG_LEN(DESCRIPTOR.size)
_LATE_SECONDS = 0.01
_NOTHING = bytearray()

Header = dict[str, Any]
Buffer = bytes | bytearray | memoryview


class FrameError(Exception):
    """The peer sent something that is not a frame of this protocol."""


class ConnectionClosedError(FrameError):
    """The peer closed the connection, in or between frames."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message; ``descriptor`` belongs to the receiver of the frame, which must close it."""

    header: Header
    body: bytearray
    descriptor: int | None = None


def send_frame(
    sock: socket.socket,
    header: Header,
    body: Buffer = b"",
    descriptor: int | None = None,
    *,
    deadline: Deadline | None = None,
) -> None:
    """Send one frame; ``descriptor`` is duplicated into the peer and stays the caller's to close.

    Raises:
        TimeoutError, DeadlineError: Not before ``deadline``; None: the socket's own time-out holds.
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
    sent = _timed(sock, deadline).sendmsg(buffers, ancillary)
    for buffer in buffers:
        if sent < len(buffer):
            _timed(sock, deadline).sendall(memoryview(buffer)[sent:])
        sent = max(0, sent - len(buffer))


def receive_frame(
    sock: socket.socket,
    header_limit_bytes: int = HEADER_LIMIT_BYTES,
    body_limit_bytes: int = BODY_LIMIT_BYTES,
    *,
    deadline: Deadline | None = None,
    begun_seconds: float = float("inf"),
    admit: Callable[[int], object] = lambda _size_bytes: None,
    first_bytes: int = PREFIX.size,
) -> Frame:
    """Read one frame.

    Args:
        sock: Where from.
        header_limit_bytes: ``REPLY_HEADER_LIMIT_BYTES`` where replies are read.
        body_limit_bytes: How large a body is taken.
        deadline: None: the socket's own time-out holds.
        begun_seconds: How long a frame may take from its prefix to its end.
        admit: Called with the size of a frame that is not small, before memory is taken for it.
        first_bytes: How many are read at first: more than the prefix where no other frame follows
            before this one is answered.

    Raises:
        BlockingIOError: The socket's own receive time-out passed before a frame began.
        TimeoutError, DeadlineError: Not before ``deadline``.
        ConnectionClosedError: The peer is gone.
        FrameError: Not a frame, or one beyond the limits, or one that stood still in its middle;
            the connection is unusable.
    """
    first, descriptor = _receive_first(sock, first_bytes, deadline)
    ends_at = time.monotonic() + begun_seconds
    try:
        header_bytes, body_bytes = _announced(first, header_limit_bytes, body_limit_bytes)
        begun, size_bytes = first[PREFIX.size :], header_bytes + body_bytes
        if size_bytes <= TOGETHER_BYTES:
            rest = _receive_exactly(sock, size_bytes, deadline, ends_at, begun)
            return Frame(_decode_header(rest[:header_bytes]), rest[header_bytes:], descriptor)
        admit(size_bytes)
        rest = _receive_exactly(sock, header_bytes, deadline, ends_at, begun[:header_bytes])
        header = _decode_header(rest)
        body = _receive_exactly(sock, body_bytes, deadline, ends_at, begun[header_bytes:])
        return Frame(header, body, descriptor)
    except BaseException:
        if descriptor is not None:
            os.close(descriptor)
        raise


def _announced(first: bytearray, header_limit_bytes: int, body_limit_bytes: int) -> tuple[int, int]:
    """Return the sizes of the header and body that the prefix announces."""
    magic, header_bytes, body_bytes = PREFIX.unpack_from(first)
    if magic != MAGIC:
        raise FrameError(f"expected a frame that starts with {MAGIC!r}, got {bytes(magic)!r}")
    if header_bytes > header_limit_bytes or body_bytes > body_limit_bytes:
        raise FrameError(f"frame too large: header {header_bytes}, body {body_bytes} bytes")
    if len(first) - PREFIX.size > header_bytes + body_bytes:
        raise FrameError("more came than one frame")
    return header_bytes, body_bytes


def whole_frame(data: memoryview) -> tuple[Frame, int]:
    """Return the frame that ``data`` begins with, and its size.

    Raises:
        FrameError: There is none, or not all of it.
    """
    if len(data) < PREFIX.size:
        raise FrameError("the prefix is not whole")
    magic, header_bytes, body_bytes = PREFIX.unpack_from(data)
    body_at = PREFIX.size + header_bytes
    ends_at = body_at + body_bytes
    if magic != MAGIC or ends_at > len(data):
        raise FrameError("the frame is not whole")
    header = _decode_header(data[PREFIX.size : body_at])
    return Frame(header, bytearray(data[body_at:ends_at])), ends_at


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _decode_header(encoded: Buffer) -> Header:
    try:
        header = _decode(str(encoded, "utf-8"))
    except (ValueError, RecursionError) as error:  # hostile nesting is the latter
        raise FrameError(f"the frame's header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise FrameError("the frame's header is not a JSON object")
    return header


def _receive_first(
    sock: socket.socket, limit_bytes: int, deadline: Deadline | None
) -> tuple[bytearray, int | None]:
    """Read the prefix, or more, by a plain ``recvmsg``: descriptors come only with the first byte.

    There is room for one: of more, which no frame may carry, the system passes on the first alone.
    """
    data, ancillary, flags, _address = _timed(sock, deadline).recvmsg(
        limit_bytes, _ONE_DESCRIPTOR, socket.MSG_CMSG_CLOEXEC
    )
    if not data:
        raise ConnectionClosedError("the peer closed the connection")
    descriptor = None
    for level, kind, sent in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            (descriptor,) = DESCRIPTOR.unpack(sent)
    if descriptor is None and flags & socket.MSG_CTRUNC:  # one came, and this process had no room
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    first = bytearray(data)
    if len(first) < PREFIX.size:
        try:
            first = _receive_exactly(sock, PREFIX.size, deadline, begun=first)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
    return first, descriptor


def _receive_exactly(
    sock: socket.socket,
    size_bytes: int,
    deadline: Deadline | None,
    ends_at: float = float("inf"),
    begun: bytearray = _NOTHING,
) -> bytearray:
    """Return ``size_bytes``, of which ``begun`` are there."""
    if len(begun) == size_bytes:
        return begun
    buffer = bytearray(size_bytes)
    buffer[: len(begun)] = begun
    view = memoryview(buffer)[len(begun) :]
    while view:
        try:
            count = _timed(sock, deadline).recv_into(view)
        except BlockingIOError:
            raise FrameError("the rest of a frame did not come") from None
        if not count:
            raise ConnectionClosedError("the peer closed the connection in the middle of a frame")
        view = view[count:]
        if view and time.monotonic() > ends_at:
            raise FrameError("the frame took too long")
    return buffer


def _timed(sock: socket.socket, deadline: Deadline | None) -> socket.socket:
    """Have the next call on ``sock`` take no longer than what is left.

    Its limit is set again only when that has changed by ``_LATE_SECONDS``: an exchange of small
    frames is over before, and setting it costs as much as sending.
    """
    if deadline is not None:
        left, limit = deadline.require("the exchange"), sock.gettimeout()
        if limit is None or not left <= limit <= left + _LATE_SECONDS:
            sock.settimeout(left)
    return sock
