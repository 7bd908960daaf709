"""An S3 server of long ago: plain objects, no conditions, no checksums, no uploads in parts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_NOT_KNOWN = b"<Error><Code>NotImplemented</Code><Message>unknown here</Message></Error>"
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>not here</Message></Error>"


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[self.path] = body
        self._answer(200, b"", ETag='"an-etag"')

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if "list-type" in query:
            self._answer(200, self._listing(parts.path, query.get("prefix", [""])[0]))
        elif query:
            self._answer(501, _NOT_KNOWN)
        else:
            self._give(parts.path)

    def do_HEAD(self) -> None:
        self._give(self.path)

    def do_DELETE(self) -> None:
        self.server.objects.pop(self.path, None)
        self._answer(204, b"")

    def do_POST(self) -> None:
        self._answer(501, _NOT_KNOWN)

    def _give(self, path: str) -> None:
        body = self.server.objects.get(path)
        if body is None:
            return self._answer(404, _MISSING)
        wanted = self.headers.get("Range")
        if not wanted:
            return self._answer(200, body, ETag='"an-etag"')
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        where = f"bytes {first}-{last}/{len(body)}"
        return self._answer(206, body[first : last + 1], Content_Range=where)

    def _listing(self, bucket: str, prefix: str) -> bytes:
        start = f"{bucket.rstrip('/')}/"
        keys = [path[len(start) :] for path in self.server.objects if path.startswith(start)]
        entries = "".join(
            f"<Contents><Key>{key}</Key></Contents>" for key in keys if key.startswith(prefix)
        )
        return f"<ListBucketResult>{entries}</ListBucketResult>".encode()

    def _answer(self, status: int, body: bytes, **fields: str) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.server.ahead_seconds, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        for name, text in fields.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, ahead_seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.ahead_seconds = ahead_seconds
        self.objects: dict[str, bytes] = {}


@contextmanager
def old_store(ahead_seconds: float = 0.0) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Serve on a free port of loopback; yields the URL, and what lies there by path.

    Args:
        ahead_seconds: How far its clock is ahead of ours.
    """
    server = _Server(ahead_seconds)
    thread = threading.Thread(target=server.serve_forever, name="old-store", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.objects
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
