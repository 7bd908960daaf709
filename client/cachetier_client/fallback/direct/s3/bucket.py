"""The bucket of a direct save at S3: calls are judged by their code.

The service has the same in ``remote/s3``, over botocore.
"""

from __future__ import annotations

import html
import http.client
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    DeadlineError,
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteRefusedError,
    RemoteUnavailableError,
    UploadGoneError,
)
from cachetier_client.fallback.direct.s3.requests import Answer, Piece, Requests
from cachetier_client.io.digests import digest_of, from_base64, to_base64
from cachetier_client.s3_errors import ErrorKind, kind_of_answer, retry_after_seconds

if TYPE_CHECKING:
    from cachetier_client.fallback.direct.s3.address import S3Address

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
_CHECKSUM = "x-amz-checksum-crc64nvme"
_META = "x-amz-meta-"


class S3Bucket:
    """A ``DirectBucket`` of S3."""

    def __init__(
        self,
        address: S3Address,
        clock: Clock,
        *,
        jitter: Callable[[], float] = random.random,
        requests: Requests | None = None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect nothing yet.

        Args:
            jitter: Returns the part of the longest pause to sleep, from 0 to 1.
            requests: Connections to share.
            gives_up: Asked before a call is repeated.
        """
        self.address = address
        self.keeps_digests = address.verify == "checksum"
        self.requests = requests or Requests(address)
        self._gives_up = gives_up
        self._clock = clock
        self._jitter = jitter

    def giving_up(self, gives_up: Callable[[], bool]) -> S3Bucket:
        return S3Bucket(self.address, self._clock, requests=self.requests, gives_up=gives_up)

    def head(self, key: str, deadline: Deadline) -> ObjectInfo | None:
        mode = {"x-amz-checksum-mode": "ENABLED"} if self.keeps_digests else {}
        try:
            answer = self._call("HEAD", key, deadline, ObjectMissingError, headers=mode)
        except ObjectMissingError:
            return None
        headers = answer.headers
        metadata = {
            name.removeprefix(_META): value
            for name, value in headers.items()
            if name.startswith(_META)
        }
        kept = headers.get(_CHECKSUM) if self.keeps_digests else None
        digest = from_base64(kept) if kept else None
        length = headers.get("content-length")
        if length is None:  # a proxy sends bodies in pieces: a range says how long they are
            ranged = self._call("GET", key, deadline, headers={"Range": "bytes=0-0"})
            length = ranged.headers["content-range"].rpartition("/")[2]
        return ObjectInfo(key, int(length), headers.get("etag", ""), digest, metadata)

    def get(self, key: str, deadline: Deadline) -> tuple[bytes, str] | None:
        try:
            answer = self._call("GET", key, deadline, ObjectMissingError)
        except ObjectMissingError:
            return None
        return answer.body, answer.headers.get("etag", "")

    def digest_read_back(self, key: str, deadline: Deadline) -> int | None:
        digest = 0

        def take(data: bytes) -> None:
            nonlocal digest
            digest = digest_of(data, digest)

        def attempt() -> Answer:
            nonlocal digest
            digest = 0
            return self.requests.send("GET", key, deadline, on_data=take)

        try:
            self._repeat(attempt, f"GET {key}", deadline, ObjectMissingError)
        except ObjectMissingError:
            return None
        return digest

    def put(
        self,
        key: str,
        body: Sequence[Piece],
        deadline: Deadline,
        *,
        digest: int,
        metadata: Mapping[str, str] | None = None,
        over: str | None = None,
    ) -> str:
        headers = self._described(key, metadata) | self._checksum(digest)
        if self.address.conditional_writes:
            headers |= {"If-None-Match": "*"} if over is None else {"If-Match": over}
        else:
            found = self.head(key, deadline)
            if (None if found is None else found.etag) != over:
                raise PreconditionFailedError(key)
        # If-Match may be answered so where there is nothing at all.
        missing = PreconditionFailedError
        answer = self._call("PUT", key, deadline, missing, headers=headers, body=body)
        return answer.headers.get("etag", "")

    def create_upload(self, key: str, metadata: Mapping[str, str], deadline: Deadline) -> str:
        headers = self._described(key, metadata)
        if self.keeps_digests:
            headers |= {"x-amz-checksum-algorithm": "CRC64NVME"}
            headers |= {"x-amz-checksum-type": "FULL_OBJECT"}
        answer = self._call("POST", key, deadline, query={"uploads": ""}, headers=headers)
        return _only(answer, "UploadId")

    def upload_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        body: Sequence[Piece],
        deadline: Deadline,
        *,
        digest: int,
    ) -> str:
        query = {"partNumber": str(number), "uploadId": upload_id}
        headers = self._checksum(digest)
        answer = self._call(
            "PUT", key, deadline, UploadGoneError, query=query, headers=headers, body=body
        )
        return answer.headers.get("etag", "")

    def complete_upload(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[tuple[str, int]],
        deadline: Deadline,
        *,
        digest: int,
        size_bytes: int,
    ) -> None:
        entries = []
        for number, (etag, part_digest) in enumerate(parts, 1):
            checksum = f"<ChecksumCRC64NVME>{to_base64(part_digest)}</ChecksumCRC64NVME>"
            entries.append(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{html.escape(etag)}</ETag>"
                f"{checksum if self.keeps_digests else ''}</Part>"
            )
        document = (
            '<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"{''.join(entries)}</CompleteMultipartUpload>"
        )
        headers = self._checksum(digest)
        if self.keeps_digests:
            headers |= {"x-amz-checksum-type": "FULL_OBJECT"}
            headers |= {"x-amz-mp-object-size": str(size_bytes)}
        query = {"uploadId": upload_id}
        body = [document.encode()]
        self._call("POST", key, deadline, UploadGoneError, query=query, headers=headers, body=body)

    def abort_upload(self, key: str, upload_id: str, deadline: Deadline) -> None:
        with suppress(UploadGoneError):
            self._call("DELETE", key, deadline, UploadGoneError, query={"uploadId": upload_id})

    def delete(self, key: str, deadline: Deadline) -> None:
        with suppress(ObjectMissingError):
            self._call("DELETE", key, deadline, ObjectMissingError)

    def list(self, prefix: str, deadline: Deadline) -> list[str]:
        keys: list[str] = []
        query = {"list-type": "2", "prefix": prefix}
        while True:
            answer = self._call("GET", "", deadline, query=query)
            text = answer.body.decode()
            keys += [html.unescape(key) for key in re.findall(r"<Key>(.*?)</Key>", text, re.DOTALL)]
            more = re.search(r"<NextContinuationToken>(.*?)</NextContinuationToken>", text)
            if more is None:
                return keys
            query["continuation-token"] = html.unescape(more.group(1))

    def close(self) -> None:
        self.requests.close()

    # --- repeating -------------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        key: str,
        deadline: Deadline,
        missing: ErrorKind = RemoteRefusedError,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Piece] = (),
    ) -> Answer:
        def attempt() -> Answer:
            return self.requests.send(
                method, key, deadline, query=query, headers=headers, body=body
            )

        return self._repeat(attempt, f"{method} {key}", deadline, missing)

    def _repeat(
        self, attempt: Callable[[], Answer], what: str, deadline: Deadline, missing: ErrorKind
    ) -> Answer:
        """Return the answer if it is good; repeat what may pass.

        Args:
            attempt: Makes the call once.
            what: The call, in words.
            deadline: Until when.
            missing: The error that it is if the object is missing.

        Raises:
            PreconditionFailedError, UploadGoneError: The store says so.
        """
        attempts = 0
        cause: Exception | None = None
        while True:
            attempts += 1
            after_seconds = 0.0
            try:
                answer = attempt()
            except DeadlineError as error:
                raise _unavailable(self.address, what, "no answer in time") from (cause or error)
            except (OSError, http.client.HTTPException) as error:
                cause, answered = error, f"{type(error).__name__}"
            else:
                code = _code(answer)
                if answer.status < 300 and code is None:
                    return answer
                answered = f"{code or 'an answer without a code'}, {answer.status}"
                kind = kind_of_answer(code or "", answer.status)
                self._check_passes(missing if kind is ObjectMissingError else kind, what, answered)
                header, now = answer.headers.get("retry-after"), self._clock.now()
                after_seconds = retry_after_seconds(header, now) or 0.0
            longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(attempts, 10))
            pause = max(self._jitter() * longest, after_seconds)
            if pause >= deadline.remaining() or self._gives_up():
                raise _unavailable(self.address, what, answered) from cause
            self._clock.sleep(pause)

    def _check_passes(self, kind: ErrorKind, what: str, answered: str) -> None:
        """Return if a call that was answered so is worth repeating."""
        if issubclass(kind, RemoteUnavailableError | RemoteDigestError):  # damaged on the way, too
            return
        if issubclass(kind, ObjectMissingError | PreconditionFailedError | UploadGoneError):
            raise kind(f"{what} ({answered})")
        raise RemoteRefusedError(
            f"{self.address.url} refuses {what} ({answered})",
            hint="Correct the bucket, its policy or this process's AWS credentials.",
        )

    def _checksum(self, digest: int) -> dict[str, str]:
        return {_CHECKSUM: to_base64(digest)} if self.keeps_digests else {}

    def _described(self, key: str, metadata: Mapping[str, str] | None) -> dict[str, str]:
        described = {f"{_META}{name}": value for name, value in (metadata or {}).items()}
        return described | self.address.at_rest.headers(key)


def _code(answer: Answer) -> str | None:
    """Return the code of an error, which may come in the body of a 200 too."""
    if answer.status < 300 and b"<Error>" not in answer.body[:512]:
        return None
    found = re.search(rb"<Code>(.*?)</Code>", answer.body)
    return found.group(1).decode(errors="replace") if found else None


def _only(answer: Answer, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", answer.body.decode(errors="replace"))
    if found is None:
        raise RemoteRefusedError(f"the store's answer names no {tag}")
    return html.unescape(found.group(1))


def _unavailable(address: S3Address, what: str, answered: str) -> RemoteUnavailableError:
    return RemoteUnavailableError(f"{address.url} does not take {what} ({answered})")
