"""Find out who signed a request, and how its body will come: whole, in chunks, or as a document."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from cachetier_client.io import digests
from starlette.types import Message, Receive

from cachetier.access.access import Access
from cachetier.access.principals import Caller
from cachetier.doors.http.body import TAP, Body, Feed, Tap
from cachetier.doors.http.direct import LEND
from cachetier.doors.http.front import CONNECTION
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.problems import BodyCutShortError, SlowBodyError
from cachetier.doors.http.queries import size_of
from cachetier.doors.s3.checksums import HEADER, Checksums
from cachetier.doors.s3.chunked import ChunkedBody
from cachetier.doors.s3.documents import DOCUMENT_LIMIT_BYTES
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.requests import S3Request
from cachetier.doors.s3.sigv4 import Payload, RawRequest, SignedRequest, read_signature
from cachetier.errors import CachetierError
from cachetier.model.shard import INLINE_BYTES

OBJECT_LIMIT_BYTES = 5 << 30  # S3's own, of what is put whole, or is a part
_DECODED_LENGTH = "x-amz-decoded-content-length"


@dataclass(slots=True)
class Incoming:
    """A body on its way, and what its client says of it. ``beginning`` has come already."""

    body: Body
    size_bytes: int
    checksums: Checksums
    chunked: ChunkedBody | None = None
    beginning: bytes | None = None

    def finish(self, crc64nvme: int) -> dict[str, str]:
        """Hold what was declared against the body, all of which came.

        Raises:
            CachetierError: As ``Checksums.finish``, and ``ChunkedBody.end``.
        """
        trailers = self.chunked.end() if self.chunked is not None else {}
        return self.checksums.finish(crc64nvme, trailers)


def signed_by(access: Access, request: S3Request) -> tuple[Caller, SignedRequest]:
    """Return who signed a request, and what it says of its body.

    Raises:
        CachetierError: Nobody whom this service knows, or not so.
    """
    scope = request.scope
    raw = RawRequest(request.method, scope["raw_path"], scope["query_string"], scope["headers"])
    signed = read_signature(raw, time.time(), request.headers)
    return access.signed(signed.key_id, signed.is_signed_by, request.address), signed


def incoming_of(
    request: S3Request,
    signed: SignedRequest,
    receive: Receive,
    limits: RequestLimits,
    *,
    of_object: bool = False,
) -> Incoming:
    """Return the body of a put, of which nothing was read yet.

    Args:
        request: The put.
        signed: What its signature says of the body.
        receive: Where the body comes from.
        limits: How slowly it may come.
        of_object: The checksums in headers are those of an object, and not of this body.

    Raises:
        CachetierError: MissingContentLength, EntityTooLarge, or what is declared cannot be read.
    """
    headers, extensions = request.headers, request.scope.get("extensions", {})
    sent_bytes = size_of(headers.get("content-length"))
    if sent_bytes is not None and sent_bytes <= INLINE_BYTES and CONNECTION in extensions:
        extensions[CONNECTION]["go_on"]()  # it comes while the rest of the head is read
    tap, lend = extensions.get(TAP, {}).get("tap"), extensions.get(LEND, {}).get("lend")
    of_body = {k: v for k, v in headers.items() if not (of_object and k.startswith(HEADER))}
    checksums = Checksums(of_body, signed.payload_sha256)
    if not signed.payload.is_chunked:
        size_bytes = _length(headers.get("content-length"))
        return Incoming(Body(receive, limits, tap, lend), size_bytes, checksums)
    size_bytes = _length(headers.get(_DECODED_LENGTH))
    chunked = ChunkedBody(
        size_bytes,
        None if signed.payload is Payload.UNSIGNED_CHUNKS else signed.chunk_signatures(),
        trailers=checksums.trailers,
        signs_trailer=signed.payload is Payload.CHUNKS_AND_TRAILER,
    )
    stream = _DecodedStream(receive, tap, chunked)
    return Incoming(Body(stream.receive, limits, stream.tap), size_bytes, checksums, chunked)


async def document_of(
    request: S3Request,
    signed: SignedRequest,
    receive: Receive,
    limits: RequestLimits,
    *,
    of_object: bool = False,
) -> bytes:
    """Return the whole body of a request that sends a document: bounded in size and time.

    Checksums in headers are judged as ``incoming_of`` does.

    Raises:
        CachetierError: It is too large or too slow, or not what was declared.
    """
    incoming = incoming_of(request, signed, receive, limits, of_object=of_object)
    if incoming.size_bytes > DOCUMENT_LIMIT_BYTES:
        raise refused("MalformedXML", f"a document has up to {DOCUMENT_LIMIT_BYTES} bytes")
    try:
        async with asyncio.timeout(limits.progress_seconds):
            body = await incoming.body.first(DOCUMENT_LIMIT_BYTES)
    except TimeoutError:
        raise SlowBodyError("the document did not come in time") from None
    check_size(incoming, len(body))
    incoming.checksums.update(memoryview(body))
    incoming.finish(digests.digest_of(body))
    return body


def check_size(incoming: Incoming, size_bytes: int) -> None:
    """Refuse a body that is not as long as was declared."""
    if size_bytes != incoming.size_bytes:
        raise refused(
            "IncompleteBody", f"{incoming.size_bytes} bytes were declared, {size_bytes} came"
        )


def _length(text: str | None) -> int:
    size_bytes = size_of(text)
    if size_bytes is None:
        raise refused("MissingContentLength", "the length of the body is not declared")
    if size_bytes > OBJECT_LIMIT_BYTES:
        raise refused("EntityTooLarge", f"up to {OBJECT_LIMIT_BYTES} bytes are put at once")
    return size_bytes


class _DecodedStream:
    """A body of aws-chunked as its decoder gives it, by messages or by the connection's tap."""

    def __init__(self, receive: Receive, tap: Tap | None, chunked: ChunkedBody) -> None:
        self._receive = receive
        self._tap = tap
        self._chunked = chunked
        self._failed: CachetierError | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if self._failed is not None:
            raise self._failed
        if message["type"] == "http.disconnect":
            raise BodyCutShortError("the connection ended before the body did")
        return {**message, "body": self._decoded(message.get("body", b""))}

    def tap(self, feed: Feed) -> bytes | None:
        """Divert the rest to ``feed``; what is wrong with it ``receive`` says."""

        def decoded(piece: bytes | memoryview) -> bool:
            if self._failed is not None:
                return True
            try:
                wants_no_more = [feed(each) for each in self._chunked.feed(memoryview(piece))]
            except CachetierError as error:
                self._failed = error
                return True
            return any(wants_no_more)

        earlier = self._tap(decoded) if self._tap is not None else None
        return None if earlier is None else self._decoded(earlier)

    def _decoded(self, data: bytes) -> bytes:
        return b"".join(self._chunked.feed(memoryview(data)))
