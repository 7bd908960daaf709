"""The least that a second copy costs: writes the body of each PUT into one file, syncs it, answers.

Run as ``bare_server.py HOST FILE``; prints its port.
"""

from __future__ import annotations

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PIECE_BYTES = 1 << 20


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_arguments: object) -> None:
        """Write no log."""

    def do_PUT(self) -> None:
        """Keep the body."""
        left, buffer = int(self.headers["Content-Length"]), memoryview(bytearray(PIECE_BYTES))
        with open(sys.argv[2], "wb", buffering=0) as file:
            while left:
                count = self.rfile.readinto(buffer[:left])
                left -= file.write(buffer[:count])
            os.fsync(file.fileno())
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    server = HTTPServer((sys.argv[1], 0), _Request)
    print(server.server_port, flush=True)
    server.serve_forever()
