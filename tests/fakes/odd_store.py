"""An S3 server in memory that differs from S3 in one way or another, as an ``Oddity`` says.

It serves one bucket called ``bucket`` and believes every signature. ``asked`` has each request as
``METHOD path?query``, so that a test can prove that its oddity was met.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


@dataclass
class Oddity:
    """In which ways the store is unlike S3.

    Args:
        order: ``hashed``: keys are listed in an order of their own, as Storj and S3 Express do.
        start_after: ``refused``: a listing cannot begin behind a key.
        framing: ``chunked`` or ``until_close``: answers with a body have no Content-Length; with
            the first a HEAD has none either.
        keeps_metadata: False: user metadata is dropped.
        missing: The status of a HEAD for what is not there.
        style: The only one that is taken; ``refusal`` is the code for the other one.
        conditions: What becomes of them.
        paths: ``merged``: double slashes become one; ``decoded``: %2F in a key becomes a slash;
            ``plus``: a plus becomes a space.
        limit_bytes: Larger bodies are 413, judged by their head.
        buffers: Whether it answers only when the whole body is there.
        proto: What it answers as.
        page: The most keys in one page.
        idle_seconds: After how long a connection without a request is closed.
    """

    order: Literal["sorted", "hashed"] = "sorted"
    start_after: Literal["obeyed", "refused", "ignored"] = "obeyed"
    framing: Literal["length", "chunked", "until_close"] = "length"
    keeps_metadata: bool = True
    missing: int = 404
    style: Literal["both", "path", "virtual"] = "both"
    refusal: str = "SecondLevelDomainForbidden"
    conditions: Literal["obeyed", "refused", "denied", "ignored"] = "obeyed"
    paths: Literal["kept", "merged", "decoded", "plus"] = "kept"
    limit_bytes: int = 1 << 40
    buffers: bool = False
    proto: str = "HTTP/1.1"
    page: int = 1000
    idle_seconds: float = 60.0


@dataclass
class Kept:
    body: bytes
    metadata: dict[str, str]
    etag: str = field(init=False)

    def __post_init__(self) -> None:
        self.etag = f'"{hashlib.md5(self.body, usedforsecurity=False).hexdigest()}"'


class OddStore(ThreadingHTTPServer):
    """Serves on a free port of loopback; ``objects`` by key."""

    daemon_threads = True

    def __init__(self, oddity: Oddity) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.oddity = oddity
        self.objects: dict[str, Kept] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.begun: dict[str, dict[str, str]] = {}  # the metadata of uploads
        self.asked: list[str] = []
        self.hosts: list[str] = []
        self.takes_key: Callable[[str], bool] = lambda _: True
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fill(self, *keys: str) -> None:
        for key in keys:
            self.objects[key] = Kept(b"", {})

    def count(self, pattern: str) -> int:
        """Return how many requests ``pattern`` matches."""
        return sum(re.search(pattern, each) is not None for each in self.asked)


@contextmanager
def odd_store(oddity: Oddity) -> Iterator[OddStore]:
    """Serve until the block ends."""
    with OddStore(oddity) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), name="odd-store", daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Exchange(BaseHTTPRequestHandler):
    server: OddStore

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.oddity.idle_seconds)

    query: dict[str, list[str]]
    key: str

    def parse_request(self) -> bool:
        self.protocol_version = self.server.oddity.proto
        return super().parse_request()

    def handle_expect_100(self) -> bool:
        return True  # answered at once, or not at all

    def do_PUT(self) -> None:
        self._served()

    do_GET = do_HEAD = do_DELETE = do_POST = do_PUT  # noqa: N815

    def handle(self) -> None:
        with suppress(ConnectionError):  # whoever begins a request may go
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    # --- one request -----------------------------------------------------------------------------

    def _served(self) -> None:
        odd = self.server.oddity
        length = int(self.headers.get("Content-Length") or 0)
        if length > odd.limit_bytes:
            self.close_connection = True
            return self._answer(413, b"<html>413 Request Entity Too Large</html>")
        if not self.headers.get("Authorization") and not odd.buffers:
            self.close_connection = bool(length)
            return self._refuse(403, "AccessDenied")
        body = self.rfile.read(length)
        if not self.headers.get("Authorization"):
            return self._refuse(403, "AccessDenied")
        self.server.asked.append(f"{self.command} {self.path}")
        if not self.server.takes_key(self._access_key()):
            return self._refuse(400, "ExpiredToken")
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query, keep_blank_values=True)
        path = parts.path
        if not self._takes_style():
            return self._refuse(403, odd.refusal)
        if not self._in_host():
            path = path.removeprefix(f"/{BUCKET}")
        self.key = self._key_of(path.removeprefix("/"))
        with self.server.lock:
            return _CALLS[self.command](self, body)

    def _access_key(self) -> str:
        return self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]

    def _in_host(self) -> bool:
        host = self.headers.get("Host", "")
        self.server.hosts.append(host)
        return host.startswith(f"{BUCKET}.")

    def _takes_style(self) -> bool:
        style = self.server.oddity.style
        return style == "both" or (style == "virtual") == self._in_host()

    def _key_of(self, path: str) -> str:
        match self.server.oddity.paths:
            case "merged":
                path = re.sub("/+", "/", path)
            case "decoded":
                path = unquote(path)
            case "plus":
                path = path.replace("+", " ").replace("%2B", " ")
        return unquote(path)

    # --- the calls -------------------------------------------------------------------------------

    def _put(self, body: bytes) -> None:
        store = self.server
        if "uploadId" in self.query:
            number = int(self.query["partNumber"][0])
            store.uploads[self.query["uploadId"][0]][number] = body
            return self._answer(200, b"", ETag=Kept(body, {}).etag)
        there = store.objects.get(self.key)
        absent, match = self.headers.get("If-None-Match"), self.headers.get("If-Match")
        if absent or match:
            if store.oddity.conditions == "refused":
                return self._refuse(501, "NotImplemented")
            if store.oddity.conditions == "denied":
                return self._refuse(403, "AccessDenied")
            wrong = there is not None if absent else there is None or there.etag != match
            if wrong and store.oddity.conditions == "obeyed":
                return self._refuse(412, "PreconditionFailed")
        store.objects[self.key] = Kept(body, self._metadata())
        return self._answer(200, b"", ETag=store.objects[self.key].etag)

    def _metadata(self) -> dict[str, str]:
        names = [each for each in self.headers if each.lower().startswith("x-amz-meta-")]
        keeps = self.server.oddity.keeps_metadata
        return {name: self.headers[name] for name in names if keeps}

    def _post(self, body: bytes) -> None:
        store = self.server
        if "uploads" in self.query:
            upload = f"u{len(store.uploads)}"
            store.uploads[upload] = {}
            store.begun[upload] = self._metadata()
            xml = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
            return self._xml(f"{xml}</InitiateMultipartUploadResult>")
        parts = store.uploads.pop(self.query["uploadId"][0])
        whole = b"".join(parts[number] for number in sorted(parts))
        store.objects[self.key] = Kept(whole, store.begun[self.query["uploadId"][0]])
        etag = escape(store.objects[self.key].etag)
        xml = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag>"
        return self._xml(f"{xml}</CompleteMultipartUploadResult>")

    def _delete(self, _body: bytes) -> None:
        if "uploadId" in self.query:
            self.server.uploads.pop(self.query["uploadId"][0], None)
        else:
            self.server.objects.pop(self.key, None)
        self._answer(204, b"")

    def _head(self, _body: bytes) -> None:
        there = self.server.objects.get(self.key)
        if there is None and self.key:
            return self._answer(self.server.oddity.missing, b"")
        return self._answer(200, there.body if there else b"", **self._described(there))

    def _get(self, _body: bytes) -> None:
        if "list-type" in self.query:
            return self._list()
        if "uploads" in self.query:
            return self._xml("<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        if self.query:
            return self._refuse(501, "NotImplemented")
        there = self.server.objects.get(self.key)
        if there is None:
            return self._refuse(404, "NoSuchKey")
        wanted = self.headers.get("Range", "")
        if not wanted:
            return self._answer(200, there.body, **self._described(there))
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first)
        end = min(int(last) if last else len(there.body), len(there.body) - 1)
        if start >= len(there.body):
            return self._refuse(416, "InvalidRange")
        where = f"bytes {start}-{end}/{len(there.body)}"
        described = self._described(there)
        return self._answer(206, there.body[start : end + 1], Content_Range=where, **described)

    def _described(self, there: Kept | None) -> dict[str, str]:
        if there is None:
            return {}
        return {"ETag": there.etag, "Last-Modified": formatdate(usegmt=True), **there.metadata}

    def _list(self) -> None:
        odd, asked = self.server.oddity, {name: value[0] for name, value in self.query.items()}
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after = asked.get("start-after", "")
        if after and odd.start_after == "refused":
            return self._refuse(501, "NotImplemented")
        found: dict[str, bool] = {}
        for key in self.server.objects:
            if key.startswith(prefix):
                deeper, mark, _ = key[len(prefix) :].partition(delimiter or "\0")
                folded = bool(delimiter and mark)
                found[f"{prefix}{deeper}{mark}" if folded else key] = folded
        entries = sorted(found, key=_hashed if odd.order == "hashed" else str.encode)
        if after and odd.start_after == "obeyed":
            entries = [each for each in entries if _placed(each, odd) > _placed(after, odd)]
        begin = int(asked.get("continuation-token", 0))
        most = min(int(asked.get("max-keys", 1000)), odd.page)
        page, rest = entries[begin : begin + most], entries[begin + most :]
        xml = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            if found[each]
            else self._entry(each)
            for each in page
        )
        if rest:
            xml += f"<NextContinuationToken>{begin + most}</NextContinuationToken>"
        truncated = str(bool(rest)).lower()
        return self._xml(
            f"<ListBucketResult>{xml}<IsTruncated>{truncated}</IsTruncated></ListBucketResult>"
        )

    def _entry(self, key: str) -> str:
        there = self.server.objects[key]
        about = f"<Size>{len(there.body)}</Size><ETag>{escape(there.etag)}</ETag>"
        when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        return f"<Contents><Key>{escape(key)}</Key>{about}{when}</Contents>"

    # --- the answer ------------------------------------------------------------------------------

    def _xml(self, text: str) -> None:
        self._answer(200, text.encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _answer(self, status: int, body: bytes, **fields: str) -> None:
        framing = self.server.oddity.framing if body or self.command == "HEAD" else "length"
        self.send_response(status)
        for name, text in fields.items():
            self.send_header(name.replace("_", "-"), text)
        if framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif framing == "until_close":
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if framing == "chunked":
            for at in range(0, len(body), 1000):
                piece = body[at : at + 1000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(body)


_CALLS = {
    "PUT": _Exchange._put,
    "POST": _Exchange._post,
    "DELETE": _Exchange._delete,
    "HEAD": _Exchange._head,
    "GET": _Exchange._get,
}


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _placed(key: str, odd: Oddity) -> bytes:
    return _hashed(key) if odd.order == "hashed" else key.encode()
