"""CopyObject and UploadPartCopy: a source's verified bytes are put as if a client had sent them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from starlette.responses import Response
from starlette.types import Message, Receive

from cachetier.access.principals import Caller
from cachetier.doors.http.body import Body
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.ranges import ByteRange
from cachetier.doors.s3.answers import Fields, iso_date, xml_answer
from cachetier.doors.s3.checksums import Checksums, fields_of
from cachetier.doors.s3.conditions import COPY_PREFIX, is_unchanged
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.heads import head_of
from cachetier.doors.s3.incoming import OBJECT_LIMIT_BYTES, Incoming
from cachetier.doors.s3.requests import S3Request
from cachetier.doors.s3.sending import Bytes, Sending
from cachetier.doors.s3.uploads import UploadHandlers
from cachetier.doors.s3.writes import Writes
from cachetier.model.objects import Mount
from cachetier.objects.base import FoundObject, Objects

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)
_UNHURRIED = RequestLimits(progress_bytes=0)  # a source that we read is no slow client


class CopyHandlers:
    """Answers what copies objects; nothing of it passes the bucket by itself."""

    def __init__(
        self,
        objects: Objects,
        pools: Pools,
        writes: Writes,
        uploads: UploadHandlers,
        timeout_seconds: float,
    ) -> None:
        self._objects = objects
        self._pools = pools
        self._writes = writes
        self._uploads = uploads
        self._timeout_seconds = timeout_seconds

    async def copy(
        self, request: S3Request, mount: Mount, caller: Caller, source: tuple[Mount, str]
    ) -> Response:
        ack = self._writes.ack(request, mount)
        directive = request.headers.get("x-amz-metadata-directive", "COPY").upper()
        if directive not in ("COPY", "REPLACE"):
            raise refused("InvalidArgument", "x-amz-metadata-directive is COPY or REPLACE")
        if directive == "COPY" and source == (mount, request.key):
            raise refused("InvalidRequest", "an object is copied onto itself, and nothing changed")
        async with self._opened(request, source) as (found, incoming):
            head = head_of(request.headers) if directive == "REPLACE" else found.head
            head = replace(head, checksums={})
            answer, _ = await self._writes.stored(request, mount, caller, incoming, ack, head)
        headers = await self._writes.acknowledged(mount, answer, ack)
        now = await self._pools.patient(self._objects.head, mount, request.key)
        return xml_answer("CopyObjectResult", _result(answer.etag, now.modified_at), headers)

    async def copy_part(
        self, request: S3Request, mount: Mount, caller: Caller, source: tuple[Mount, str]
    ) -> Response:
        async with self._opened(request, source) as (_found, incoming):
            part = await self._uploads.stored_part(request, mount, caller, incoming)
        fields: Fields = [*_result(part.etag, part.put_at), *fields_of(part.checksums)]
        return xml_answer("CopyPartResult", fields)

    @asynccontextmanager
    async def _opened(
        self, request: S3Request, source: tuple[Mount, str]
    ) -> AsyncIterator[tuple[FoundObject, Incoming]]:
        opened = await self._pools.patient(self._objects.open, *source)
        found = opened.found
        if is_unchanged(request.headers, found.etag, found.modified_at, COPY_PREFIX):
            raise refused("PreconditionFailed", "a condition on the source does not hold")
        span = _span(request.headers.get("x-amz-copy-source-range"), found.size_bytes)
        if span.size_bytes > OBJECT_LIMIT_BYTES:
            raise refused("InvalidRequest", f"{span.size_bytes} bytes are too many for one copy")
        sending = Sending(self._objects, opened, self._pools, self._timeout_seconds)
        async with aclosing(sending.blocks(span)) as blocks:
            body = Body(_receiving(blocks), _UNHURRIED)
            yield found, Incoming(body, span.size_bytes, Checksums({}))


def _span(text: str | None, size_bytes: int) -> ByteRange:
    if text is None:
        return ByteRange(0, size_bytes)
    match = _RANGE.fullmatch(text)
    if match is None or not int(match[1]) <= int(match[2]) < size_bytes:
        raise refused("InvalidArgument", f"the range lies outside the source's {size_bytes} bytes")
    return ByteRange(int(match[1]), int(match[2]) + 1)


def _receiving(blocks: AsyncGenerator[Bytes, None]) -> Receive:
    async def receive() -> Message:
        block = await anext(blocks, None)
        body = b"" if block is None else bytes(block)
        return {"type": "http.request", "body": body, "more_body": block is not None}

    return receive


def _result(etag: str, modified_at: float) -> Fields:
    return [("ETag", f'"{etag}"'), ("LastModified", iso_date(modified_at))]
