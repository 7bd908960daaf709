"""What the sink knows of S3: objects without their bytes, and uploads of them.

Sizes, ETags, metadata and the CRC-64/NVME are kept as the client *declared* them: nothing is
computed over the bytes, which are gone. Only cachetier's own small documents keep their body, as
readers and publishers read them back; and all objects do where the sink was told to keep them.
Parts may be copied from objects, whether or not their bytes are kept.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

from cachetier.testing.http_wire import WireHead

CHECKSUM = "x-amz-checksum-crc64nvme"
METADATA = "x-amz-meta-"
DOCUMENTS = "/.cachetier/"
LABEL = "content-encoding"
SOURCE = "x-amz-copy-source"

Body = bytes | bytearray | memoryview
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True, slots=True)
class Request:
    """A request by what it wants."""

    method: str
    key: str
    query: dict[str, str]
    fields: Mapping[str, str]

    @classmethod
    def of(cls, head: WireHead) -> Request:
        parts = urlsplit(head.first[1])
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return cls(head.method, key, query, head.fields)

    @property
    def is_part(self) -> bool:
        """Whether it brings bytes of a shard: an object, or a part of one."""
        return self.method == "PUT" and self.key != "" and not self.is_document

    @property
    def is_document(self) -> bool:
        return DOCUMENTS in self.key

    @property
    def name(self) -> tuple[str, str]:
        """Which part it brings, however often it is tried."""
        return self.key, self.query.get("partNumber", "")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the sink says; ``size_bytes`` is announced where there is no body to send."""

    status: int
    fields: dict[str, str] = field(default_factory=dict)
    body: Body = b""
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Object:
    size_bytes: int
    etag: str
    checksum: str
    metadata: dict[str, str]
    body: Body | None = None

    def fields(self) -> dict[str, str]:
        fields = {"ETag": self.etag, **self.metadata}
        if self.checksum:
            fields |= {CHECKSUM: self.checksum, "x-amz-checksum-type": "FULL_OBJECT"}
        return fields


@dataclass(slots=True)
class _Part:
    etag: str
    size_bytes: int
    body: Body


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, _Part] = field(default_factory=dict)

    def body(self, size_bytes: int) -> Body | None:
        """Return the bytes of all parts, if they were kept."""
        whole = b"".join(part.body for _, part in sorted(self.parts.items()))
        return whole if len(whole) == size_bytes else None


class Objects:
    """One bucket. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, _Upload] = {}

    def answer(self, request: Request, size_bytes: int, body: Body) -> Answer:
        """Do what is asked; ``body`` holds the bytes of documents, of others only the size."""
        with self._lock:
            if not request.key:
                return self._about_bucket(request)
            if "uploads" in request.query:
                return self._create_upload(request)
            if "uploadId" in request.query:
                return self._about_upload(request, size_bytes, body)
            match request.method:
                case "PUT":
                    return self._put(request, size_bytes, body)
                case "DELETE":
                    self._objects.pop(request.key, None)
                    return Answer(204)
                case "HEAD" | "GET":
                    return self._get(request)
            return _error(501, "NotImplemented")

    # --- objects ---------------------------------------------------------------------------------

    def _put(self, request: Request, size_bytes: int, body: Body) -> Answer:
        found = self._objects.get(request.key)
        wanted = request.fields.get("if-match")
        if found is not None and request.fields.get("if-none-match") == "*":
            return _error(412, "PreconditionFailed")
        if wanted is not None and (found is None or found.etag.strip('"') != wanted.strip('"')):
            return _error(412, "PreconditionFailed")
        kept = body if len(body) == size_bytes else None
        checksum = request.fields.get(CHECKSUM, "")
        stored = _Object(size_bytes, self._etag(), checksum, _metadata(request), kept)
        self._objects[request.key] = stored
        return Answer(200, stored.fields())

    def _get(self, request: Request) -> Answer:
        found = self._objects.get(request.key)
        if found is None:
            return _error(404, "NoSuchKey")
        if request.method == "HEAD":
            return Answer(200, found.fields(), size_bytes=found.size_bytes)
        if found.body is None:
            return _error(501, "NotImplemented")  # thrown away: this is a sink
        wanted = _RANGE.fullmatch(request.fields.get("range", ""))
        if wanted is None:
            return Answer(200, found.fields(), found.body)
        first, last = int(wanted.group(1)), int(wanted.group(2) or found.size_bytes)
        if first >= found.size_bytes:
            return _error(416, "InvalidRange")
        last = min(last, found.size_bytes - 1)
        fields = {"ETag": found.etag, "Content-Range": f"bytes {first}-{last}/{found.size_bytes}"}
        return Answer(206, fields, memoryview(found.body)[first : last + 1])

    def _about_bucket(self, request: Request) -> Answer:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        if request.method != "GET":
            return Answer(200)
        if "uploads" in request.query:
            uploads = "".join(
                f"<Upload><Key>{escape(upload.key)}</Key><UploadId>{name}</UploadId></Upload>"
                for name, upload in self._uploads.items()
                if upload.key.startswith(prefix)
            )
            return _xml("ListMultipartUploadsResult", uploads + _WHOLE)
        keys, prefixes = [], set()
        for key in sorted(key for key in self._objects if key.startswith(prefix)):
            below, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                prefixes.add(prefix + below + delimiter)
            else:
                keys.append(f"<Contents><Key>{escape(key)}</Key></Contents>")
        common = (
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(prefixes)
        )
        return _xml("ListBucketResult", "".join((*keys, *common)) + _WHOLE)

    # --- uploads ---------------------------------------------------------------------------------

    def _create_upload(self, request: Request) -> Answer:
        name = f"upload-{next(self._numbers)}"
        self._uploads[name] = _Upload(request.key, _metadata(request))
        return _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")

    def _about_upload(self, request: Request, size_bytes: int, body: Body) -> Answer:
        name = request.query["uploadId"]
        upload = self._uploads.get(name)
        if upload is None or upload.key != request.key:
            return _error(404, "NoSuchUpload")
        match request.method:
            case "PUT" if SOURCE in request.fields:
                return self._copy(request, upload)
            case "PUT":
                etag = self._etag()
                upload.parts[int(request.query["partNumber"])] = _Part(etag, size_bytes, body)
                checksum = request.fields.get(CHECKSUM)
                return Answer(200, {"ETag": etag} | ({CHECKSUM: checksum} if checksum else {}))
            case "GET":
                parts = "".join(
                    f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag>"
                    f"<Size>{part.size_bytes}</Size></Part>"
                    for number, part in sorted(upload.parts.items())
                )
                return _xml("ListPartsResult", parts + _WHOLE)
            case "DELETE":
                del self._uploads[name]
                return Answer(204)
        del self._uploads[name]
        checksum = request.fields.get(CHECKSUM, "")
        size_bytes = sum(part.size_bytes for part in upload.parts.values())
        whole = upload.body(size_bytes)
        stored = _Object(size_bytes, self._etag(), checksum, upload.metadata, whole)
        self._objects[request.key] = stored
        inside = f"<ETag>{escape(stored.etag)}</ETag>"
        if checksum:
            inside += f"<ChecksumCRC64NVME>{checksum}</ChecksumCRC64NVME>"
        return _xml("CompleteMultipartUploadResult", inside)

    def _copy(self, request: Request, upload: _Upload) -> Answer:
        """Take a part from an object that is here."""
        _, _, key = unquote(request.fields[SOURCE]).lstrip("/").partition("/")
        found = self._objects.get(key)
        wanted = request.fields.get("x-amz-copy-source-if-match")
        span = _RANGE.fullmatch(request.fields.get("x-amz-copy-source-range", ""))
        if found is None:
            return _error(404, "NoSuchKey")
        if wanted is not None and found.etag.strip('"') != wanted.strip('"'):
            return _error(412, "PreconditionFailed")
        if span is None or not span.group(2) or int(span.group(2)) >= found.size_bytes:
            return _error(400, "InvalidArgument")
        first, end = int(span.group(1)), int(span.group(2)) + 1
        body = memoryview(found.body or b"")[first:end]
        part = _Part(self._etag(), end - first, body)
        upload.parts[int(request.query["partNumber"])] = part
        return _xml("CopyPartResult", f"<ETag>{escape(part.etag)}</ETag>")

    def _etag(self) -> str:
        return f'"{next(self._numbers):032x}"'


_WHOLE = "<IsTruncated>false</IsTruncated>"


def _metadata(request: Request) -> dict[str, str]:
    return {name: text for name, text in request.fields.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    """Say whether a field of a put is told again by HEAD and GET."""
    return name.startswith(METADATA) or name == LABEL


def _xml(name: str, inside: str) -> Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{inside}</{name}>'
    return Answer(200, {"Content-Type": "application/xml"}, body.encode())


def _error(status: int, code: str) -> Answer:
    error = _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>")
    return Answer(status, error.fields, error.body)


SLOW_DOWN = _error(503, "SlowDown")
