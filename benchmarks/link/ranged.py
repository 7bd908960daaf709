"""Ranged GETs of one object into memory: ``ranged.py ENDPOINT BUCKET KEY SIZE_BYTES``.

What a person would write who wants nothing but speed: plain sockets, 8 MiB a request, each read
straight into its place of one buffer that was touched before, no digest. Prints the seconds with
the number of connections that is fastest here.
"""

from __future__ import annotations

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from cachetier_client.io.aligned import aligned_memory

RANGE_BYTES = 8 << 20
CONNECTIONS = (1, 2, 4, 8)


def main(endpoint: str, bucket: str, key: str, size: str) -> None:
    memory = aligned_memory(int(size))[: int(size)]
    memory[:] = bytes(len(memory))
    address = urlsplit(endpoint)
    where = (address.hostname or "", address.port or 0)
    seconds = [read(where, f"/{bucket}/{key}", memory, count) for count in CONNECTIONS]
    print(min(seconds), flush=True)


def read(where: tuple[str, int], path: str, memory: memoryview, connections: int) -> float:
    """Fill ``memory``; return the seconds that took."""
    starts = list(range(0, len(memory), RANGE_BYTES))

    def fill(mine: list[int]) -> None:
        with socket.create_connection(where) as connection:
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
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(4096)
    head, _, body = received.partition(b"\r\n\r\n")
    if b" 206 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(head.decode())
    into[: len(body)] = body
    rest = into[len(body) :]
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise RuntimeError("closed within a body")
        rest = rest[count:]


if __name__ == "__main__":
    main(*sys.argv[1:])
