"""Frames: bytes in and out, and what is no frame."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from cachetier_client.transport.wire import (
    BODY_LIMIT_BYTES,
    HEADER_LIMIT_BYTES,
    MAGIC,
    PREFIX,
    REPLY_HEADER_LIMIT_BYTES,
    ConnectionClosedError,
    FrameError,
    receive_frame,
    send_frame,
    whole_frame,
)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def raw(header: bytes, body: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, len(header), len(body)) + header + body


def test_a_frame_arrives_as_it_was_sent(pair: Pair) -> None:
    send_frame(pair[0], {"op": "put", "n": 2**53, "s": "ä"}, b"body")

    frame = receive_frame(pair[1])

    assert frame.header == {"op": "put", "n": 2**53, "s": "ä"}
    assert frame.body == b"body"
    assert frame.descriptor is None


def test_a_descriptor_travels_with_its_frame(pair: Pair) -> None:
    reader, writer = os.pipe()
    send_frame(pair[0], {}, b"", writer)
    os.close(writer)

    frame = receive_frame(pair[1])

    assert frame.descriptor is not None
    assert not os.get_inheritable(frame.descriptor)
    os.write(frame.descriptor, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(frame.descriptor)
    os.close(reader)


def test_a_descriptor_with_a_broken_frame_does_not_leak(pair: Pair) -> None:
    reader, writer = os.pipe()
    socket.send_fds(pair[0], [raw(b"no json")], [writer])
    os.close(writer)

    with pytest.raises(FrameError):
        receive_frame(pair[1])

    assert os.read(reader, 1) == b""  # nobody holds the other end any more
    os.close(reader)


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        PREFIX.pack(MAGIC, HEADER_LIMIT_BYTES + 1, 0),
        PREFIX.pack(MAGIC, 2, BODY_LIMIT_BYTES + 1),
        raw(b""),
        raw(b"[]"),
        raw(b"{"),
        raw(b'{"a": NaN}'),
        raw(b'"\xff"'),
        raw('{"a": 1}'.encode("utf-16")),
        raw(b"[" * 100_000),
    ],
)
def test_what_is_no_frame_is_refused(pair: Pair, sent: bytes) -> None:
    pair[0].sendall(sent)

    with pytest.raises(FrameError) as caught:
        receive_frame(pair[1])

    assert not isinstance(caught.value, ConnectionClosedError)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 20, 25])
def test_a_frame_cut_off_anywhere_is_a_closed_connection(pair: Pair, length: int) -> None:
    whole = raw(b'{"op": 1}', b"body")
    pair[0].sendall(whole[:length])
    pair[0].close()

    with pytest.raises(ConnectionClosedError):
        receive_frame(pair[1])


def test_a_reply_may_have_a_longer_header_than_a_request(pair: Pair) -> None:
    header = b'{"a": "%s"}' % (b"x" * (2 << 20))
    pair[0].settimeout(5)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    with pytest.raises(FrameError, match="too large"):
        pair[0].sendall(PREFIX.pack(MAGIC, len(header), 0))
        receive_frame(pair[1])

    pair[0].sendall(PREFIX.pack(MAGIC, REPLY_HEADER_LIMIT_BYTES + 1, 0))
    with pytest.raises(FrameError, match="too large"):
        receive_frame(pair[1], REPLY_HEADER_LIMIT_BYTES)


def test_what_no_peer_would_take_is_not_sent(pair: Pair) -> None:
    with pytest.raises(FrameError, match="too large"):
        send_frame(pair[0], {"a": "x" * REPLY_HEADER_LIMIT_BYTES})
    with pytest.raises(FrameError, match="too large"):
        send_frame(pair[0], {}, bytes(BODY_LIMIT_BYTES + 1))

    pair[0].close()
    with pytest.raises(ConnectionClosedError):
        receive_frame(pair[1])


def test_a_frame_in_memory_is_read_as_one_from_a_socket() -> None:
    left, right = socket.socketpair()
    with left, right:
        send_frame(left, {"op": "put"}, b"abc")
        data = memoryview(right.recv(1000))

    frame, size_bytes = whole_frame(memoryview(bytes(data) + b"more"))

    assert (frame.header, bytes(frame.body), size_bytes) == ({"op": "put"}, b"abc", len(data))


def test_a_frame_that_is_not_all_in_memory_is_none_yet() -> None:
    whole = PREFIX.pack(MAGIC, 2, 3) + b"{}abc"

    for count in range(len(whole)):
        with pytest.raises(FrameError):
            whole_frame(memoryview(whole)[:count])
    with pytest.raises(FrameError):
        whole_frame(memoryview(b"HTTP" + whole[4:]))
