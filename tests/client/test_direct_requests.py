"""Answers of a bucket to the client itself are read no further than a document can be long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cachetier_client.bucket_format import documents
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import IntegrityError
from cachetier_client.fallback.direct.s3.address import S3Address
from cachetier_client.fallback.direct.s3.requests import Requests

BODY = bytes(5000)


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path.endswith("announced"):
            self.send_header("Content-Length", str(len(BODY)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        made = Requests(S3Address(bucket="b", endpoint=url))
        yield made
        made.close()
        server.shutdown()


@pytest.mark.parametrize("key", ["announced", "unannounced"])
def test_a_body_that_is_longer_than_any_document_is_not_collected(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    deadline = Deadline(10.0, SystemClock())
    assert requests.send("GET", key, deadline).body == BODY
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT_BYTES", len(BODY) - 1)

    with pytest.raises(IntegrityError, match="no document of cachetier"):
        requests.send("GET", key, deadline)

    pieces: list[bytes] = []
    requests.send("GET", key, deadline, on_data=pieces.append)
    assert b"".join(pieces) == BODY
