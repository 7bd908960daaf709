"""GetObject and HeadObject."""

from __future__ import annotations

from contextlib import AsyncExitStack

from cachetier_client.io import digests
from starlette.responses import Response
from starlette.types import Send

from cachetier.access.principals import Caller
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.problems import RangeError
from cachetier.doors.http.ranges import ByteRange, span_of
from cachetier.doors.http.sending import SentAnswer
from cachetier.doors.http.slots import Slots
from cachetier.doors.s3.answers import LEVEL
from cachetier.doors.s3.checksums import CRC64NVME, headers_of, is_composite
from cachetier.doors.s3.conditions import http_date, is_unchanged
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.requests import S3Request
from cachetier.doors.s3.sending import Sending, send_bytes
from cachetier.errors import NotFoundError
from cachetier.model.objects import OBJECT_PART_LIMIT, Mount
from cachetier.model.shard import INLINE_BYTES
from cachetier.objects.base import FoundObject, Objects, OpenedObject

LOOKS_AT_MOVING_KEY = 5
_OVERRIDE = "response-"


class ReadHandlers:
    """Answers what asks for one object."""

    def __init__(
        self, objects: Objects, pools: Pools, downloads: Slots, timeout_seconds: float
    ) -> None:
        self._objects = objects
        self._pools = pools
        self._downloads = downloads
        self._timeout_seconds = timeout_seconds

    async def head(self, request: S3Request, mount: Mount) -> Response:
        """Describe an object; one byte of it asked for (``bytes=0-0``) has all of it brought here.

        Node caches know this form: what is small is here with the answer, the rest follows.
        """
        if request.headers.get("range") == "bytes=0-0":
            await self._pools.patient(self._bring, mount, request.key)
        found = await self._pools.patient(self._objects.head, mount, request.key)
        if is_unchanged(request.headers, found.etag, found.modified_at):
            return _unchanged(found)
        span = _span(request, found)
        return Response(status_code=_status(span), headers=_described(request, found, span))

    def _bring(self, mount: Mount, key: str) -> None:
        for piece in self._objects.open(mount, key).pieces:
            with self._objects.open_piece(piece, self._timeout_seconds):
                pass  # whoever opens it begins its restore

    async def get(
        self, request: S3Request, mount: Mount, caller: Caller, send: Send
    ) -> Response | None:
        """Send an object, or return the answer that has none of its bytes.

        One that is replaced before its first bytes were sent is looked up again.
        """
        sent = SentAnswer(request.scope, send)
        for looks_left in reversed(range(LOOKS_AT_MOVING_KEY)):
            opened = await self._pools.patient(self._objects.open, mount, request.key)
            found = opened.found
            if is_unchanged(request.headers, found.etag, found.modified_at):
                return _unchanged(found)
            try:
                await self._send(request, caller, opened, sent)
                break
            except NotFoundError:
                if sent.begun or not looks_left:
                    raise
        return None

    async def _send(
        self, request: S3Request, caller: Caller, opened: OpenedObject, sent: SentAnswer
    ) -> None:
        found = opened.found
        span = _span(request, found)
        headers = Response(headers=_described(request, found, span)).raw_headers
        sending = Sending(self._objects, opened, self._pools, self._timeout_seconds)
        whole = span or ByteRange(0, found.size_bytes)
        async with AsyncExitStack() as held:
            if whole.size_bytes > INLINE_BYTES:
                place = self._downloads.hold(caller.holder, sent, self._timeout_seconds)
                await held.enter_async_context(place)
            await send_bytes(sending.blocks(whole), _status(span), headers, sent)


def _unchanged(found: FoundObject) -> Response:
    named = {"etag": f'"{found.etag}"', "last-modified": http_date(found.modified_at)}
    return Response(status_code=304, headers=named)


def _status(span: ByteRange | None) -> int:
    return 200 if span is None else 206


def _span(request: S3Request, found: FoundObject) -> ByteRange | None:
    """Return which bytes are asked for, by a range or as a part; None for all."""
    ranged = request.headers.get("range")
    if "partNumber" in request.query:
        if ranged is not None:
            raise refused("InvalidRequest", "Range and partNumber exclude each other")
        return _part(request, found)
    try:
        return span_of(ranged, found.size_bytes)
    except RangeError as error:
        raise refused("InvalidRange", error.message) from None


def _part(request: S3Request, found: FoundObject) -> ByteRange | None:
    number = request.number("partNumber", 0, 1, OBJECT_PART_LIMIT + 1)
    sizes = found.part_sizes or (found.size_bytes,)
    if number > len(sizes):
        raise refused("InvalidPartNumber", f"the object has {len(sizes)} parts")
    if not found.size_bytes:
        return None
    start = sum(sizes[: number - 1])
    return ByteRange(start, start + sizes[number - 1])


def _described(request: S3Request, found: FoundObject, span: ByteRange | None) -> dict[str, str]:
    """Return the headers that say what an object is, and which of its bytes come."""
    described = {
        "content-type": "binary/octet-stream",
        **found.head.headers,
        **{f"x-amz-meta-{name}": value for name, value in found.head.metadata.items()},
        "etag": f'"{found.etag}"',
        "last-modified": http_date(found.modified_at),
        "accept-ranges": "bytes",
        "content-length": str(found.size_bytes if span is None else span.size_bytes),
        LEVEL: found.level,
    }
    if span is not None:
        described["content-range"] = f"bytes {span.start}-{span.end - 1}/{found.size_bytes}"
    if "partNumber" in request.query and found.part_sizes:
        described["x-amz-mp-parts-count"] = str(len(found.part_sizes))
    whole = span is None or span.size_bytes == found.size_bytes
    if whole and request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
        described |= _checksums(found)
    for name, value in request.query.items():
        if name.startswith(_OVERRIDE):
            if not (value.isascii() and value.isprintable()):
                raise refused("InvalidArgument", f"{name} is no value of a header")
            described[name.removeprefix(_OVERRIDE)] = value
    return described


def _checksums(found: FoundObject) -> dict[str, str]:
    """Return the checksums of an object: of its bytes, or of its parts' checksums, never both.

    An answer has one type for all, and clients take the first that they know for the one of it.
    """
    known = dict(found.head.checksums)
    if found.digest is not None and not is_composite(known):
        known[CRC64NVME] = digests.to_base64(found.digest)
    return headers_of(known)
