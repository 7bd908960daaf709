"""Plain sockets; also ranged GETs of one object: ``ranged.py ENDPOINT BUCKET KEY SIZE_BYTES``.

What a person would write who wants nothing but speed: plain sockets, 8 MiB a request, each read
straight into its place of one buffer that was touched before, no digest. Prints the seconds with
the number of connections that is fastest here.
"""

from __future__ import annotations

import re
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from cachetier_client.io.aligned import aligned_memory

RANGE_BYTES = 8 << 20
CONNECTIONS = (1, 2, 4, 8)


def main(endpoint: str, bucket: str, key: str, size: str) -> None:
    memory = aligned_memory(int(size))[: int(size)]
    memory[:] = bytes(len(memory))
    address = urlsplit(endpoint)
    server = Server(address.hostname or "", address.port or 0)
    seconds = [read(server, f"/{bucket}/{key}", memory, count) for count in CONNECTIONS]
    print(min(seconds), flush=True)


class Server(NamedTuple):
    """Where the sink is, and what its certificate is checked with."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Yield a connection."""
        with socket.create_connection((self.host, self.port)) as connection:
            if self.tls is None:
                yield connection
            else:
                with self.tls.wrap_socket(connection, server_hostname=self.host) as encrypted:
                    yield encrypted


def write(server: Server, path: str, body: bytes) -> None:
    """Send one object whole."""
    with server.connected() as connection:
        asked = f"PUT {path} HTTP/1.1\r\nHost: sink\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(asked.encode())
        connection.sendall(body)
        _head(connection, "200")


def size_of(server: Server, path: str) -> int:
    """Return the size of an object."""
    with server.connected() as connection:
        connection.sendall(f"HEAD {path} HTTP/1.1\r\nHost: sink\r\n\r\n".encode())
        head, _ = _head(connection, "200")
    (size,) = re.findall(rb"(?i)content-length: (\d+)", head)
    return int(size)


def read(server: Server, path: str, memory: memoryview, connections: int) -> float:
    """Fill ``memory``; return the seconds that took."""
    starts = list(range(0, len(memory), RANGE_BYTES))

    def fill(mine: list[int]) -> None:
        with server.connected() as connection:
            for start in mine:
                _range(connection, path, memory[start : start + RANGE_BYTES], start)

    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as pool:
        list(pool.map(fill, [starts[number::connections] for number in range(connections)]))
    return time.perf_counter() - began


def _range(connection: socket.socket, path: str, into: memoryview, start: int) -> None:
    last = start + len(into) - 1
    asked = f"GET {path} HTTP/1.1\r\nHost: sink\r\nRange: bytes={start}-{last}\r\n\r\n"
    connection.sendall(asked.encode())
    _, body = _head(connection, "206")
    into[: len(body)] = body
    rest = into[len(body) :]
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise RuntimeError("closed within a body")
        rest = rest[count:]


def _head(connection: socket.socket, status: str) -> tuple[bytes, bytes]:
    """Return the head of an answer, and what has come of its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(4096)
    head, _, body = received.partition(b"\r\n\r\n")
    if f" {status} ".encode() not in head.split(b"\r\n")[0]:
        raise RuntimeError(head.decode())
    return head, body


if __name__ == "__main__":
    main(*sys.argv[1:])
