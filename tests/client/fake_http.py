"""A service in a thread that speaks HTTP, and fails as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cachetier_client.io import digests


@dataclass
class Answer:
    """What to answer instead of doing the operation."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def problem(cls, status: int, code: str, **more: Any) -> Answer:
        described = {"code": code, "detail": "as told", "hint": f"hint of {code}", **more}
        headers = {"Content-Type": "application/problem+json"}
        return cls(status, json.dumps(described).encode(), headers)

    @classmethod
    def document(cls, **fields: Any) -> Answer:
        return cls(200, json.dumps(fields).encode(), {"Content-Type": "application/json"})


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeHttpService:
    """Keeps shards by path; ``answers`` go first, by method and path."""

    shards: dict[str, bytes] = field(default_factory=dict)
    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    hang_ups: int = 0
    incidents: list[dict[str, Any]] = field(default_factory=list)
    damage: Callable[[bytes], bytes] = bytes  # of bytes on their way out
    on_the_way_in: Callable[[bytes], bytes] = bytes
    closes_each: bool = False
    url: str = ""

    @contextmanager
    def running(self) -> Iterator[FakeHttpService]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self.door())
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join(60)
            server.server_close()

    def door(self) -> type[Door]:
        return type("BoundDoor", (Door,), {"service": self})

    def answer(self, seen: Seen) -> Answer:
        """Return what to answer."""
        told = self.answers.get((seen.method, seen.path))
        if told:
            return told.pop(0)
        if seen.path == "/v1/incidents":
            found, self.incidents = self.incidents, []
            return Answer.document(incidents=found)
        if seen.method == "PUT":
            return self._put(seen)
        if seen.method == "DELETE":
            self.shards.pop(seen.path, None)
            return Answer(204)
        if seen.path not in self.shards:
            unknown = Answer.problem(404, "not_found")
            return Answer(404, b"", unknown.headers) if seen.method == "HEAD" else unknown
        return self._get(seen, self.shards[seen.path])

    def _put(self, seen: Seen) -> Answer:
        body = self.on_the_way_in(seen.body)
        digest = digests.to_hex(digests.digest_of(body))
        if seen.headers.get("Cachetier-Digest", digest) != digest:
            return Answer.problem(422, "digest_mismatch")
        self.shards[seen.path] = body
        _, _, _, run, _, step, _, *name = seen.path.split("/")
        receipt = {
            "run": run,
            "step": int(step),
            "name": "/".join(name),
            "save_id": seen.query["save_id"],
            "size_bytes": len(body),
            "digest": digest,
            "level": "local",
        }
        return Answer(201, json.dumps(receipt).encode())

    def _get(self, seen: Seen, content: bytes) -> Answer:
        headers = {"Cachetier-Digest": digests.to_hex(digests.digest_of(content))}
        if seen.method == "HEAD":
            return Answer(200, b"", {**headers, "Content-Length": str(len(content))})
        if "Range" not in seen.headers:
            return Answer(200, self.damage(content), headers)
        first, _, last = seen.headers["Range"].removeprefix("bytes=").partition("-")
        return Answer(206, content[int(first) : int(last) + 1], headers)


class Door(BaseHTTPRequestHandler):
    """Speaks for ``service``."""

    protocol_version = "HTTP/1.1"
    service: FakeHttpService

    def setup(self) -> None:
        self.service.connections += 1
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def respond(self) -> None:
        split = urlsplit(self.path)
        query, headers = dict(parse_qsl(split.query)), dict(self.headers.items())
        seen = Seen(self.command, split.path, query, headers, self._body())
        if self.service.hang_ups:
            self.service.hang_ups -= 1
            self.close_connection = True
            return
        self.service.seen.append(seen)
        self._send(self.service.answer(seen))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        if self.service.incidents:
            headers["Cachetier-Incidents"] = str(len(self.service.incidents))
        if self.service.closes_each:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
