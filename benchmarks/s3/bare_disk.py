"""The least that a door can do with bodies: a thread for each, bytes to O_DIRECT, one sync.

``bare_disk.py DIRECTORY`` prints its port. It takes no digest, looks at no signature, and knows no
catalog. Each body goes into a preallocated file of its own, through one buffer of a thread.
"""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import sys
import threading
from pathlib import Path

BUFFER_BYTES = 4 << 20
ANSWER = b'HTTP/1.1 200 OK\r\nETag: "bare"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'


def serve(connection: socket.socket, path: Path) -> None:
    with connection:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        fields, _, first = head.partition(b"\r\n\r\n")
        size_bytes = int(fields.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            _write(connection, descriptor, first, size_bytes)
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        connection.sendall(ANSWER)


def _write(connection: socket.socket, descriptor: int, first: bytes, size_bytes: int) -> None:
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))
    buffer[: len(first)] = first
    filled, written = len(first), 0
    while written < size_bytes:
        wanted = min(BUFFER_BYTES, size_bytes - written)
        while filled < wanted:
            received = connection.recv_into(buffer[filled:wanted])
            if not received:
                raise ConnectionError("closed within a body")
            filled += received
        whole = -(-filled // mmap.PAGESIZE) * mmap.PAGESIZE
        written += min(os.pwrite(descriptor, buffer[:whole], written), filled)
        filled = 0


def main(directory: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    for number in itertools.count():
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, directory / str(number))).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
