"""Bodies that come packet by packet are received in few pieces, and to their last byte."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse

import pytest

from cachetier.remote.s3 import boto_client
from cachetier.remote.s3.boto_client import WINDOW_BYTES

PACKET_BYTES, PACKETS = 20 << 10, 128
BODY = os.urandom(PACKET_BYTES * PACKETS + 77)
PAUSE_SECONDS = 0.0002
PATIENCE_SECONDS = 5.0


@contextmanager
def sent(*answers: list[bytes]) -> Iterator[Callable[[], HTTPResponse]]:
    """Have a server send each of ``answers`` in packets with pauses; yield what receives the next.

    None begins before the one before is received.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), PATIENCE_SECONDS)
        theirs, _ = listener.accept()
    wanted = threading.Semaphore(0)

    def serve() -> None:
        theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for answer in answers:
            wanted.acquire()
            for packet in answer:
                theirs.sendall(packet)
                time.sleep(PAUSE_SECONDS)

    def received() -> HTTPResponse:
        wanted.release()
        answer = boto_client._answer(ours, method="GET")
        answer.begin()
        return answer

    server = threading.Thread(target=serve)
    server.start()
    with ours, theirs:
        yield received
        server.join()


def packets(body: bytes) -> list[bytes]:
    return [body[at : at + PACKET_BYTES] for at in range(0, len(body), PACKET_BYTES)]


def headed(body: bytes) -> list[bytes]:
    return [f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode(), *packets(body)]


def pieces_of(answer: HTTPResponse) -> list[bytes]:
    """Read as bodies are read here; a piece lasts until the next one."""
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < len(BODY):
        pieces.append(bytes(answer.read1(1 << 20)))
        assert pieces[-1]
    return pieces


def test_packets_come_together_to_the_last_byte() -> None:
    with sent(headed(BODY)) as received:
        pieces = pieces_of(received())
    assert b"".join(pieces) == BODY
    assert len(pieces) < PACKETS / 4
    assert max(map(len, pieces)) >= WINDOW_BYTES / 4


def test_what_comes_next_over_the_connection_may_be_small() -> None:
    with sent(headed(BODY), headed(b"ok")) as received:
        assert b"".join(pieces_of(received())) == BODY
        assert received().read() == b"ok"


@pytest.mark.parametrize("size_bytes", [1, 8_192, 16_384, 24_575, 24_576, 24_577, 30_000, 700_000])
@pytest.mark.parametrize("together", [1, 100, 8_000], ids="{} with the head".format)
def test_a_body_of_any_size_comes_to_its_end(size_bytes: int, together: int) -> None:
    head, *_ = headed(BODY[:size_bytes])
    rest = packets(BODY[together:size_bytes])
    with sent([head + BODY[: min(together, size_bytes)], *rest]) as received:
        answer, got = received(), b""
        while len(got) < size_bytes:
            got += answer.read1(size_bytes - len(got))
    assert got == BODY[:size_bytes]


def test_a_body_in_chunks_comes_to_its_end() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [f"{len(packet):x}\r\n".encode() + packet + b"\r\n" for packet in packets(BODY)]
    with sent([head, *chunks, b"0\r\n\r\n"]) as received:
        answer = received()
        assert b"".join(pieces_of(answer)) == BODY
        assert answer.read() == b""
