"""A client of S3 in tests: botocore signs its requests, and bodies are cut into chunks here.

botocore signs no chunks, so that is done after AWS's description, whose own examples the tests of
it begin with.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from cachetier.doors.s3.sigv4 import RawRequest

KEY_ID, SECRET = "CTS3AAAAAAAAAAAAAAAA", "a-secret-that-is-derived-from-it"
HOST = "http://127.0.0.1:7071"


def signed(
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    secret: str = SECRET,
    region: str = "us-east-1",
    service: str = "s3",
) -> RawRequest:
    """Return a request with botocore's signature in its header; ``path`` may have a query."""
    request = AWSRequest(method, HOST + path, headers=dict(headers or {}), data=body)
    S3SigV4Auth(Credentials(KEY_ID, secret), service, region).add_auth(request)
    return raw(request)


def presigned(
    method: str, path: str, *, expires: int = 60, headers: Mapping[str, str] | None = None
) -> RawRequest:
    """Return a request whose URL has botocore's signature."""
    request = AWSRequest(method, HOST + path, headers=dict(headers or {}))
    signer = S3SigV4QueryAuth(Credentials(KEY_ID, SECRET), "s3", "us-east-1", expires=expires)
    signer.add_auth(request)
    return raw(request)


def raw(request: Any) -> RawRequest:
    """Return a request of botocore as a server reads it."""
    parts = urlsplit(request.url)
    pairs = [("host", parts.netloc), *request.headers.items()]
    headers = [
        (name.lower().encode(), value if isinstance(value, bytes) else str(value).encode())
        for name, value in pairs
    ]
    return RawRequest(request.method, parts.path.encode(), parts.query.encode(), headers)


def date_of(request: RawRequest) -> float:
    """Return when a request was signed."""
    found = (
        dict(request.headers).get(b"x-amz-date")
        or request.raw_query.partition(b"X-Amz-Date=")[2].partition(b"&")[0]
    )
    return datetime.strptime(found.decode(), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()


@dataclass
class ChunkSigner:
    """Signs chunks, one after the other."""

    secret: str
    stamp: str
    region: str
    previous: str

    @property
    def _scope(self) -> str:
        return f"{self.stamp[:8]}/{self.region}/s3/aws4_request"

    def _sign(self, kind: str, *hashes: str) -> str:
        key = f"AWS4{self.secret}".encode()
        for part in self._scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        head = (f"AWS4-HMAC-SHA256-{kind}", self.stamp, self._scope, self.previous)
        self.previous = hmac.digest(key, "\n".join((*head, *hashes)).encode(), "sha256").hex()
        return self.previous

    def chunk(self, data: bytes) -> str:
        nothing, these = hashlib.sha256(b"").hexdigest(), hashlib.sha256(data).hexdigest()
        return self._sign("PAYLOAD", nothing, these)

    def trailer(self, lines: bytes) -> str:
        return self._sign("TRAILER", hashlib.sha256(lines).hexdigest())


def chunked(
    chunks: Iterable[bytes],
    signer: ChunkSigner | None = None,
    *,
    trailers: Sequence[tuple[str, str]] = (),
    signs_trailer: bool = False,
) -> bytes:
    """Return a body as clients send it in aws-chunked."""
    wire: list[bytes] = []
    for chunk in [*chunks, b""]:
        signature = f";chunk-signature={signer.chunk(chunk)}" if signer else ""
        wire += [f"{len(chunk):x}{signature}\r\n".encode(), chunk, b"\r\n" if chunk else b""]
    wire += [f"{name}:{value}\r\n".encode() for name, value in trailers]
    if signs_trailer and signer is not None:
        lines = "".join(f"{name}:{value}\n" for name, value in trailers)
        wire.append(f"x-amz-trailer-signature:{signer.trailer(lines.encode())}\r\n".encode())
    return b"".join([*wire, b"\r\n"])
