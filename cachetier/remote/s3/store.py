"""``ObjectStore`` over S3: one call of botocore for each method, the rank's digest along.

No body is copied: it goes as a ``ReadableBody``, in pieces. botocore refuses a ``memoryview``, its
signer copies one, and urllib3 sends one whole under the time-out that is meant for connecting.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format import documents
from cachetier_client.bucket_format.at_rest import AS_THE_BUCKET_DOES, AtRest
from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart
from cachetier_client.io.digests import from_base64, to_base64
from cachetier_client.s3_errors import GENERAL_REFUSALS

from cachetier.errors import (
    CopiesRefusedError,
    IntegrityError,
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    SourceChangedError,
    TransientError,
    UploadGoneError,
)
from cachetier.model.concurrency import LARGE_BYTES
from cachetier.model.objects import CONTENT_HEADERS
from cachetier.remote.base import (
    Body,
    Condition,
    CopyRange,
    Headers,
    Into,
    ListedObject,
    ListedPage,
    Listing,
    Metadata,
    ObjectStore,
    deliver,
    room_of,
    size_of,
)
from cachetier.remote.s3.boto_client import HEADERS, connect_to
from cachetier.remote.s3.boto_errors import translated_errors
from cachetier.remote.s3.inquiry import found_style
from cachetier.remote.s3.reconnecting import Renewed
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import ReadableBody, Timeouts, range_of, read_slices
from cachetier.remote.store_clock import StoreClock

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

Verify = Literal["checksum", "readback"]
Answer = dict[str, Any]  # what a botocore call returns
Entries = dict[str, ListedObject | None]  # of a listing: keys, and common prefixes

# What botocore calls the headers of ``AtRest``.
AT_REST = {
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-server-side-encryption-context": "SSEKMSEncryptionContext",
    "x-amz-storage-class": "StorageClass",
}

LISTED_AT_ONCE = 1000  # S3 lists no more
IN_ORDER = 20  # so many keys do not come in order by chance

# S3 may take minutes to put thousands of parts together, and to copy a large one.
LONG_ANSWERS = {"complete_multipart_upload": 10.0, "upload_part_copy": 10.0}


class S3ObjectStore:
    """One bucket of S3, or of a store that speaks its protocol.

    Args:
        clients: The client of its server, as it is made and renewed; buckets may share it.
        verify: ``checksum`` where the store keeps and judges CRC-64/NVME; ``readback`` where it
            does not: then none is sent, and ``head`` reports none.
        conditional_writes: False where the store ignores ``If-None-Match``: a condition is then
            judged by a HEAD just before the put, which two writers can pass at once.
        in_order: Whether listings are sorted, and begin behind any key; None: they show it.
    """

    def __init__(
        self,
        bucket: str,
        clients: Renewed[S3Client],
        *,
        verify: Verify = "checksum",
        conditional_writes: bool = True,
        in_order: bool | None = None,
        timeouts: Timeouts | None = None,
        at_rest: AtRest = AS_THE_BUCKET_DOES,
    ) -> None:
        self._bucket = bucket
        self._at_rest = at_rest
        self._checksums = verify == "checksum"
        self._conditional_writes = conditional_writes
        timeouts = timeouts or Timeouts()
        self._patience_seconds = timeouts.read_seconds
        self._clients = clients
        self._in_order = in_order
        self._stalls = timeouts.stalls

    @property
    def keeps_digests(self) -> bool:
        return self._checksums

    def head(self, key: str) -> ObjectInfo | None:
        mode = {"ChecksumMode": "ENABLED"} if self._checksums else {}
        try:
            answer = self._call("head_object", key, **mode)
        except ObjectMissingError:
            return None
        answer = self._sized(key, answer)
        found = self._info(key, answer["ContentLength"], answer)
        raw = answer["ResponseMetadata"]["HTTPHeaders"]
        headers = {name: raw[name] for name in CONTENT_HEADERS if raw.get(name)}
        modified_at = answer["LastModified"].timestamp() if "LastModified" in answer else None
        return replace(found, headers=headers, modified_at=modified_at)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return self._nothing(key, start)
        answer = self._open(key, start, length)
        data = b"".join(map(bytes, self._pieces(key, answer, answer["ContentLength"])))
        kept = self._kept_digest(answer)
        if kept is not None and start == 0 and length is None and crc64nvme(data) != kept:
            raise RemoteDigestError(f"{key}: the bytes read are not those that were put", key=key)
        return data

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        size_bytes = room_of(into)
        if size_bytes == 0:
            self._nothing(key, start)
            return
        answer = self._open(key, start, size_bytes, etag)
        pieces = self._pieces(key, answer, size_bytes)
        with self._stalls.reading(size_bytes), closing(pieces):
            deliver(pieces, into)

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        options = self._new_object(key, metadata, headers) | self._checksum(digest)
        if condition is not None and self._conditional_writes:
            options |= (
                {"IfNoneMatch": "*"} if condition.absent else {"IfMatch": str(condition.etag)}
            )
        elif condition is not None:
            self._judge_condition(key, condition)
        try:
            answer = self._send("put_object", key, body, **options)
        except ObjectMissingError:
            if condition is None:
                raise
            # S3's answer to If-Match when there is no object at all.
            raise PreconditionFailedError(f"{key}: no object to replace", key=key) from None
        described = answer | {"Metadata": dict(metadata or {})}
        stored = self._stored(key, size_of(body), described, digest)
        return replace(stored, headers=dict(headers or {}))

    def create_upload(
        self, key: str, metadata: Metadata | None = None, headers: Headers | None = None
    ) -> str:
        options = self._new_object(key, metadata, headers)
        if self._checksums:
            options |= {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        return str(_field(self._call("create_multipart_upload", key, **options), "UploadId", key))

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        which = {"UploadId": upload_id, "PartNumber": number}
        answer = self._send("upload_part", key, body, **which, **self._checksum(digest))
        stored = self._stored(key, size_of(body), answer, digest)
        return UploadedPart(number, stored.etag, stored.size_bytes, digest)

    def copy_part(
        self, key: str, upload_id: str, number: int, source: CopyRange, *, digest: int
    ) -> UploadedPart:
        last = source.start + source.size_bytes - 1
        try:
            answer = self._call(
                "upload_part_copy",
                key,
                UploadId=upload_id,
                PartNumber=number,
                CopySource={"Bucket": self._bucket, "Key": source.key},
                CopySourceRange=f"bytes={source.start}-{last}",
                CopySourceIfMatch=source.etag,
            )["CopyPartResult"]
        except (ObjectMissingError, PreconditionFailedError, RemoteDigestError) as error:
            raise SourceChangedError(error.message, key=key) from error
        except RemoteRefusedError as error:
            if _is_general(error):
                raise
            raise CopiesRefusedError(error.message, key=key) from error
        stored = self._stored(key, source.size_bytes, answer, digest)
        if not stored.etag:
            # A store that does not know copies takes the request for a part without a body.
            raise CopiesRefusedError(f"{key}: no copy is in the store's answer", key=key)
        return UploadedPart(number, stored.etag, stored.size_bytes, digest)

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        parts: dict[int, tuple[str, int]] = {}
        more: dict[str, Any] = {}
        while True:
            answer = self._call("list_parts", key, UploadId=upload_id, **more)
            for part in answer.get("Parts", ()):
                parts[part["PartNumber"]] = (_etag(part), part["Size"])
            if not answer.get("IsTruncated"):
                return parts
            more = {"PartNumberMarker": answer["NextPartNumberMarker"]}

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        ordered = sorted(parts, key=lambda part: part.number)
        size_bytes = sum(part.size_bytes for part in ordered)
        entries = [
            {"PartNumber": part.number, "ETag": part.etag, **self._checksum(part.digest)}
            for part in ordered
        ]
        options: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": entries}}
        if self._checksums:
            options |= {"ChecksumType": "FULL_OBJECT", "MpuObjectSize": size_bytes}
            options |= self._checksum(digest)
        answer = self._call("complete_multipart_upload", key, **options)
        return self._stored(key, size_bytes, answer, digest)

    def abort_upload(self, key: str, upload_id: str) -> None:
        try:
            self._call("abort_multipart_upload", key, UploadId=upload_id)
        except UploadGoneError:
            pass  # as wanted

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        more: dict[str, Any] = {}
        while True:
            answer = self._call("list_multipart_uploads", None, Prefix=prefix, **more)
            for upload in answer.get("Uploads", ()):
                yield upload["Key"], upload["UploadId"]
            if not answer.get("IsTruncated"):
                return
            more = {
                "KeyMarker": answer["NextKeyMarker"],
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        keys: list[str] = []
        prefixes: list[str] = []
        more: dict[str, Any] = {"Delimiter": delimiter} if delimiter else {}
        while True:
            answer = self._call("list_objects_v2", None, Prefix=prefix, **more)
            keys.extend(entry["Key"] for entry in answer.get("Contents", ()))
            prefixes.extend(entry["Prefix"] for entry in answer.get("CommonPrefixes", ()))
            if not answer.get("IsTruncated"):
                return Listing(tuple(sorted(keys)), tuple(sorted(prefixes)))
            more["ContinuationToken"] = answer["NextContinuationToken"]

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        options: Answer = {"Prefix": prefix} | ({"Delimiter": delimiter} if delimiter else {})
        if self._lists_in_order():
            # One more, as a store may name the common prefix once more that the last page ended
            # with.
            few = options | {"MaxKeys": min(limit + 1, LISTED_AT_ONCE)}
            found, token = self._listed(after, few | ({"StartAfter": after} if after else {}))
            if self._lists_in_order():
                return _page(found, limit, after, goes_on=bool(token))
        found, token = self._listed(after, options)
        if token and self._lists_in_order():
            return self.list_page(prefix, delimiter, after, limit)
        while token:  # through all of it, of which no more than a page is kept
            more, token = self._listed(after, options | {"ContinuationToken": token})
            found |= more
            found = {name: found[name] for name in heapq.nsmallest(limit + 1, found)}
        return _page(found, limit, after, goes_on=False)

    def _lists_in_order(self) -> bool:
        """Return whether listings are known to be sorted, and to begin behind any key."""
        return self._in_order is True

    def _listed(self, after: str, options: Answer) -> tuple[Entries, str]:
        """Return what is behind ``after`` of an answer, and the token of the next one, if any.

        What the answer shows of the store's order is noted.
        """
        begins_behind = bool(options.get("StartAfter"))
        try:
            answer = self._call("list_objects_v2", None, **options)
        except RemoteRefusedError as error:
            if not begins_behind or _is_general(error):
                raise
            self._in_order = False
            return {}, ""
        found: Entries = {
            each["Key"]: ListedObject(
                each["Key"], each["Size"], _etag(each), each["LastModified"].timestamp()
            )
            for each in answer.get("Contents", ())
        }
        folded = [each["Prefix"] for each in answer.get("CommonPrefixes", ())]
        folded = [each for each in folded if not after.startswith(each)]
        truncated = bool(answer.get("IsTruncated"))
        is_late = begins_behind and any(name <= after for name in (*found, *folded))
        if is_late or [*found] != sorted(found) or folded != sorted(folded):
            self._in_order = False
        elif truncated and len(found) + len(folded) >= IN_ORDER and self._in_order is None:
            self._in_order = True
        behind = {name: found.get(name) for name in (*found, *folded) if name > after}
        return behind, _field(answer, "NextContinuationToken", "keys") if truncated else ""

    def delete(self, key: str, etag: str | None = None) -> None:
        only = {"IfMatch": etag} if etag is not None and self._conditional_writes else {}
        try:
            self._call("delete_object", key, **only)
        except ObjectMissingError:
            pass  # S3 says nothing; some stores do

    def check(self) -> None:
        try:
            self._call("head_bucket", None)
        except ObjectMissingError:
            raise RemoteRefusedError(f"no bucket {self._bucket}", bucket=self._bucket) from None

    def _call(self, operation: str, key: str | None, **options: Any) -> Answer:
        if key is not None:
            options["Key"] = key
        patience_seconds = self._patience_seconds * LONG_ANSWERS.get(operation, 1.0)

        def send(client: S3Client) -> Answer:
            with (
                translated_errors(operation, key),
                self._stalls.call(len(options.get("Body", "")), patience_seconds),
            ):
                answer: Answer = getattr(client, operation)(Bucket=self._bucket, **options)
                return answer

        return self._clients.call(send)

    def _send(self, operation: str, key: str, body: Body, **options: Any) -> Answer:
        """Make a call with a body; what the body raises is raised as it is."""
        with closing(ReadableBody(body)) as content:
            try:
                return self._call(operation, key, Body=content, **options)
            except RemoteError:
                content.raise_failure()
                raise

    def _pieces(self, key: str, answer: Answer, size_bytes: int) -> Generator[bytes | memoryview]:
        """Yield the body of an answer; an error of its consumer is not an error of the store."""
        with translated_errors("get_object", key):
            for piece in read_slices(answer["Body"], size_bytes, self._patience_seconds):
                if size_bytes >= LARGE_BYTES:  # of the others no search for concurrency is to hear
                    self._stalls.received(len(piece))
                yield piece

    def _open(self, key: str, start: int, length: int | None, etag: str | None = None) -> Answer:
        """Begin to read a range, and make sure that it is the one asked for."""
        options: dict[str, Any] = {"IfMatch": etag} if etag is not None else {}
        if start or length is not None:
            last = "" if length is None else start + length - 1
            options["Range"] = f"bytes={start}-{last}"
        elif self._checksums:
            options["ChecksumMode"] = "ENABLED"
        try:
            answer = self._call("get_object", key, **options)
        except PreconditionFailedError as error:
            raise SourceChangedError(error.message, key=key) from error
        if etag is not None and _etag(answer) not in ("", etag):  # some stores ignore If-Match
            answer["Body"].close()
            raise SourceChangedError(
                f"{key}: the store has another version, {_etag(answer)}", key=key
            )
        begins_at, span = range_of(answer.get("ContentRange"))
        if span is not None:
            answer.setdefault("ContentLength", span)
        answer = self._sized(key, answer)
        announced = answer["ContentLength"]
        if begins_at != start or (length is not None and announced != length):
            answer["Body"].close()
            raise RemoteDigestError(
                f"{key}: asked for {length} bytes from {start}, "
                f"the store has {announced} from {begins_at}",
                key=key,
            )
        if length is None:
            try:
                documents.check_size(key, announced)
            except IntegrityError:
                answer["Body"].close()
                raise
        return answer

    def _sized(self, key: str, answer: Answer) -> Answer:
        """Return ``answer`` with its length: a proxy that sends bodies in pieces tells none.

        A range does. So does it where the answer was cut off before its length.
        """
        if "ContentLength" in answer:
            return answer
        only = {"IfMatch": _field(answer, "ETag", key), "Range": "bytes=0-0"}
        try:
            ranged = self._call("get_object", key, **only)
        except RemoteDigestError:  # there is no first byte
            return answer | {"ContentLength": 0}
        except (ObjectMissingError, PreconditionFailedError) as error:
            raise TransientError(f"{key} was replaced while it was read", key=key) from error
        for _ in self._pieces(key, ranged, 1):
            pass
        size_bytes = int(_field(ranged, "ContentRange", key).rpartition("/")[2])
        return answer | {"ContentLength": size_bytes, "Metadata": ranged.get("Metadata", {})}

    def _nothing(self, key: str, start: int) -> bytes:
        """Answer for an empty range, which HTTP cannot ask for."""
        found = self.head(key)
        if found is None:
            raise ObjectMissingError(f"{key}: no such object", key=key)
        if start > found.size_bytes:
            raise RemoteDigestError(f"{key} has {found.size_bytes} bytes, none at {start}", key=key)
        return b""

    def _judge_condition(self, key: str, condition: Condition) -> None:
        found = self.head(key)
        etag = None if found is None else found.etag
        holds = found is None if condition.absent else etag == condition.etag
        if not holds:
            raise PreconditionFailedError(f"{key}: the store has another version, {etag}", key=key)

    def _new_object(
        self, key: str, metadata: Metadata | None, headers: Headers | None
    ) -> dict[str, Any]:
        at_rest = {AT_REST[name]: text for name, text in self._at_rest.headers(key).items()}
        return {"Metadata": dict(metadata or {}), HEADERS: headers or {}} | at_rest

    def _checksum(self, digest: int) -> dict[str, str]:
        return {"ChecksumCRC64NVME": to_base64(digest)} if self._checksums else {}

    def _kept_digest(self, answer: Answer) -> int | None:
        text = answer.get("ChecksumCRC64NVME")
        return from_base64(text) if text and self._checksums else None

    def _stored(self, key: str, size_bytes: int, answer: Answer, digest: int) -> ObjectInfo:
        """Describe what a write has stored, and refuse a store's word that it kept other bytes."""
        info = self._info(key, size_bytes, answer)
        if info.digest not in (None, digest):
            raise RemoteDigestError(f"{key}: the store kept {info.digest:016x}, not {digest:016x}")
        return info

    def _info(self, key: str, size_bytes: int, answer: Answer) -> ObjectInfo:
        metadata = {name.lower(): text for name, text in answer.get("Metadata", {}).items()}
        return ObjectInfo(key, size_bytes, _etag(answer), self._kept_digest(answer), metadata)


class S3Server(Renewed["S3Client"]):
    """A server of S3 with one client for all its buckets, as each takes 10 MB and more."""

    def __init__(
        self,
        remote: RemoteSettings,
        store_clock: StoreClock | None,
        *,
        max_connections: int,
        timeouts: Timeouts | None,
    ) -> None:
        super().__init__(
            lambda: connect_to(
                remote,
                found_style(remote),
                max_connections=max_connections,
                timeouts=timeouts,
                store_clock=store_clock,
            )
        )

    def bucket(self, remote: RemoteSettings, timeouts: Timeouts) -> ObjectStore:
        return S3ObjectStore(
            remote.bucket,
            self,
            verify=remote.verify,
            conditional_writes=remote.conditional_writes,
            in_order=remote.in_order,
            timeouts=timeouts,
            at_rest=remote.at_rest,
        )


def _etag(answer: Answer) -> str:
    """Return an ETag in its quotes, which some stores leave out; empty if there is none."""
    bare = str(answer.get("ETag", "")).strip('"')
    return f'"{bare}"' if bare else ""


def _field(answer: Answer, name: str, key: str) -> Any:
    """Return what an answer says, of which some has come: what was cut off botocore leaves out."""
    if name not in answer:
        raise TransientError(f"an answer about {key} was cut short before its {name}", key=key)
    return answer[name]


def _is_general(error: RemoteError) -> bool:
    """Return whether other calls would have met it as well; without a code nothing was sent."""
    return error.context.get("remote_code") in {None, *GENERAL_REFUSALS}


def _page(found: Entries, limit: int, after: str, *, goes_on: bool) -> ListedPage:
    """Return the first ``limit`` of ``found``."""
    kept = sorted(found)[:limit]
    objects = (each for name in kept if (each := found[name]) is not None)
    prefixes = tuple(name for name in kept if found[name] is None)
    last = kept[-1] if kept else after
    return ListedPage(tuple(objects), prefixes, last if goes_on or len(found) > limit else None)
