"""A bucket in memory, asked as ``direct.requests`` asks S3, that fails as told."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cachetier_client.deadline import Deadline
from cachetier_client.fallback.direct.s3.requests import Answer, Piece
from cachetier_client.io.digests import digest_of

_CHECKSUM = "x-amz-checksum-crc64nvme"


@dataclass
class Stored:
    body: bytes
    metadata: dict[str, str]
    etag: str


@dataclass
class FakeBucket:
    """Keeps objects by key; ``troubles`` answer before anything is done, first come first served.

    A trouble is (method, answer or error); it strikes the next request of that method.
    """

    objects: dict[str, Stored] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    troubles: list[tuple[str, Answer | Exception]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    longest_body: int = 0
    closed: int = 0
    _described: dict[str, dict[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(
        self,
        method: str,
        key: str,
        deadline: Deadline,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Piece] = (),
        on_data: Callable[[bytes], None] | None = None,
    ) -> Answer:
        deadline.require("the exchange")
        query, headers, data = dict(query or {}), dict(headers or {}), b"".join(body)
        with self._lock:
            self.seen[method] += 1
            self.longest_body = max(self.longest_body, len(data))
            for number, (struck, trouble) in enumerate(self.troubles):
                if struck == method:
                    del self.troubles[number]
                    if isinstance(trouble, Exception):
                        raise trouble
                    return trouble
            answer = self._answer(method, key, query, headers, data)
        if on_data is not None and answer.status == 200:
            on_data(answer.body)
            return Answer(200, answer.headers, b"")
        return answer

    def close(self) -> None:
        self.closed += 1

    def _answer(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], data: bytes
    ) -> Answer:
        if "list-type" in query:
            keys = "".join(
                f"<Key>{each}</Key>" for each in self.objects if each.startswith(query["prefix"])
            )
            return Answer(200, {}, f"<List>{keys}</List>".encode())
        if "uploads" in query:
            upload_id = f"upload-{len(self._described)}"
            self.uploads[upload_id], self._described[upload_id] = {}, _metadata(headers)
            return Answer(200, {}, f"<X><UploadId>{upload_id}</UploadId></X>".encode())
        if "uploadId" in query:
            return self._upload(method, key, query, headers, data)
        return self._object(method, key, headers, data)

    def _upload(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], data: bytes
    ) -> Answer:
        upload_id = query["uploadId"]
        if upload_id not in self.uploads:
            return error(404, "NoSuchUpload")
        if method == "PUT":
            if not _is_sound(headers, data):
                return error(400, "BadDigest")
            self.uploads[upload_id][int(query["partNumber"])] = data
            return Answer(200, {"etag": f'"{query["partNumber"]}"'}, b"")
        parts = self.uploads.pop(upload_id)
        if method == "POST":
            whole = b"".join(parts[number] for number in sorted(parts))
            self._keep(key, whole, self._described[upload_id])
        return Answer(200, {}, b"<Done/>")

    def _object(self, method: str, key: str, headers: dict[str, str], data: bytes) -> Answer:
        there = self.objects.get(key)
        if method == "PUT":
            wanted = headers.get("If-Match")
            taken = headers.get("If-None-Match") == "*" and there is not None
            if taken or (wanted is not None and (there is None or there.etag != wanted)):
                return error(412, "PreconditionFailed")
            if not _is_sound(headers, data):
                return error(400, "BadDigest")
            return Answer(200, {"etag": self._keep(key, data, _metadata(headers)).etag}, b"")
        if method == "DELETE":
            self.objects.pop(key, None)
            return Answer(204, {}, b"")
        if there is None:
            return error(404, "NoSuchKey")
        described = {f"x-amz-meta-{name}": value for name, value in there.metadata.items()}
        checksum = base64.b64encode(digest_of(there.body).to_bytes(8, "big")).decode()
        described |= {"etag": there.etag, _CHECKSUM: checksum}
        described |= {"content-length": str(len(there.body))}
        return Answer(200, described, there.body if method == "GET" else b"")

    def _keep(self, key: str, body: bytes, metadata: dict[str, str]) -> Stored:
        kept = Stored(body, metadata, f'"{len(self.objects)}-{digest_of(body):x}"')
        self.objects[key] = kept
        return kept


def error(status: int, code: str, **headers: str) -> Answer:
    """Return an answer as S3 words it."""
    return Answer(status, headers, f"<Error><Code>{code}</Code></Error>".encode())


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    prefix = "x-amz-meta-"
    return {
        name.removeprefix(prefix): value
        for name, value in headers.items()
        if name.startswith(prefix)
    }


def _is_sound(headers: dict[str, str], data: bytes) -> bool:
    said = headers.get(_CHECKSUM)
    return said is None or base64.b64decode(said) == digest_of(data).to_bytes(8, "big")
