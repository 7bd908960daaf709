"""Multipart uploads: begun, filled in any order, listed, completed, or given up."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from starlette.responses import Response

from cachetier.access.principals import Caller
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.waiting import in_share
from cachetier.doors.operations import Operations
from cachetier.doors.s3.answers import Fields, iso_date, xml_answer
from cachetier.doors.s3.bodies import Bodies
from cachetier.doors.s3.checksums import HEADER, fields_of, headers_of, kind_of_upload
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.heads import head_of
from cachetier.doors.s3.incoming import Incoming
from cachetier.doors.s3.listing import PAGE_LIMIT, KeyEncoding
from cachetier.doors.s3.requests import S3Request
from cachetier.doors.s3.upload_listing import checksum_of, initiator_of, page_of_uploads
from cachetier.doors.s3.wholes import begun_with, checksum_of_whole
from cachetier.doors.s3.writes import Writes, conditions
from cachetier.errors import NoSuchUploadError
from cachetier.model.objects import NO_HEAD, OBJECT_PART_LIMIT, Mount
from cachetier.objects.base import (
    DeclaredPart,
    Objects,
    PutAnswer,
    PutObject,
    StoredPart,
)


class UploadHandlers:
    """Answers what is about uploads."""

    def __init__(
        self, node: Operations, objects: Objects, pools: Pools, bodies: Bodies, writes: Writes
    ) -> None:
        self._node = node
        self._objects = objects
        self._pools = pools
        self._bodies = bodies
        self._writes = writes

    async def create(self, request: S3Request, mount: Mount, caller: Caller) -> Response:
        self._writes.ack(request, mount)  # it takes writes, and understands what it will be asked
        algorithm, kind = kind_of_upload(request.headers)
        begun = {algorithm: kind} if algorithm and kind else {}
        named = ("algorithm", algorithm), ("type", kind)
        head = head_of(request.headers, begun)
        upload_id = await self._pools.quick(
            self._objects.create_upload, mount, request.key, head, caller.principal.name
        )
        return xml_answer(
            "InitiateMultipartUploadResult",
            [("Bucket", request.bucket), ("Key", request.key), ("UploadId", upload_id)],
            {f"{HEADER}{name}": value for name, value in named if value is not None},
        )

    async def part(
        self, request: S3Request, mount: Mount, caller: Caller, incoming: Incoming
    ) -> Response:
        part = await self.stored_part(request, mount, caller, incoming)
        headers = {"etag": f'"{part.etag}"', **headers_of(part.checksums)}
        headers.pop(f"{HEADER}type", None)
        return Response(headers=headers)

    async def stored_part(
        self, request: S3Request, mount: Mount, caller: Caller, incoming: Incoming
    ) -> StoredPart:
        """Make a body a part of an upload.

        Raises:
            CachetierError: Nothing was kept.
        """
        ack = self._writes.ack(request, mount)
        number = request.number("partNumber", 0, 1, OBJECT_PART_LIMIT + 1)
        if not 1 <= number <= OBJECT_PART_LIMIT:
            raise refused("InvalidArgument", f"part numbers go from 1 to {OBJECT_PART_LIMIT}")
        where = mount, request.key, request.query["uploadId"]
        upload = await self._pools.quick(self._objects.upload, *where)  # before a byte is taken
        algorithm, _ = begun_with(upload.head)
        if algorithm is not None:
            incoming.checksums.take(algorithm)

        async def store(left: float) -> StoredPart:
            async with self._bodies.taken(incoming, mount, caller.holder, left) as taken:
                taken.given = True
                commit = partial(
                    self._objects.commit_part,
                    *where,
                    number,
                    content=taken.content,
                    bytes_of=taken.bytes_of,
                    md5=taken.md5,
                    checksums=taken.checksums,
                )
                return await self._pools.quick(commit)

        return await in_share(self._node, request.scope, ack.left, store)

    async def complete(
        self, request: S3Request, mount: Mount, parts: list[DeclaredPart]
    ) -> Response:
        ack = self._writes.ack(request, mount)
        put = conditions(request, PutObject(request.key, NO_HEAD, 0))
        asks = put.condition.asks  # perhaps the bucket
        pool = self._pools.patient if asks else self._pools.quick
        answer = await pool(self._complete, request, mount, put, parts)
        headers = await self._writes.acknowledged(mount, answer, ack)
        fields: Fields = [
            ("Location", request.resource),
            ("Bucket", request.bucket),
            ("Key", request.key),
            ("ETag", f'"{answer.etag}"'),
            *fields_of(answer.checksums, typed=True),
        ]
        return xml_answer("CompleteMultipartUploadResult", fields, headers)

    def _complete(
        self, request: S3Request, mount: Mount, put: PutObject, parts: list[DeclaredPart]
    ) -> PutAnswer:
        upload_id, checksums = request.query["uploadId"], {}
        # One that was completed is answered as then, by whoever remembers it.
        with suppress(NoSuchUploadError):
            upload, stored = self._objects.parts(mount, request.key, upload_id)
            checksums = checksum_of_whole(request.headers, upload, stored, parts)
        head = replace(put.head, checksums=checksums)
        put = replace(put, head=head, follows=self._objects.watermark(mount))
        return self._objects.complete_upload(mount, put, upload_id, parts)

    async def abort(self, request: S3Request, mount: Mount) -> Response:
        upload_id = request.query["uploadId"]
        await self._pools.quick(self._objects.abort_upload, mount, request.key, upload_id)
        return Response(status_code=204)

    async def list_uploads(self, request: S3Request, mounts: Sequence[Mount]) -> Response:
        prefix, found = request.query.get("prefix", ""), []
        for mount in mounts:
            found += await self._pools.quick(self._objects.uploads, mount, prefix)
        return xml_answer("ListMultipartUploadsResult", page_of_uploads(request, found))

    async def list_parts(self, request: S3Request, mount: Mount) -> Response:
        upload_id, encoded = request.query["uploadId"], KeyEncoding(request)
        limit = request.number("max-parts", PAGE_LIMIT, 0, PAGE_LIMIT)
        after = request.number("part-number-marker", 0, 0, OBJECT_PART_LIMIT)
        upload, parts = await self._pools.quick(self._objects.parts, mount, request.key, upload_id)
        left = [part for part in parts if part.number > after]
        page = left[:limit]
        fields: Fields = [
            ("Bucket", request.bucket),
            ("Key", encoded(request.key)),
            ("UploadId", upload_id),
            *initiator_of(upload),
            *checksum_of(upload),
            ("PartNumberMarker", str(after)),
            *([("NextPartNumberMarker", str(page[-1].number))] if page else []),
            ("MaxParts", str(limit)),
            *encoded.fields,
            ("IsTruncated", "true" if len(left) > limit else "false"),
            *(("Part", _part(part)) for part in page),
        ]
        return xml_answer("ListPartsResult", fields)


def _part(part: StoredPart) -> Fields:
    return [
        ("PartNumber", str(part.number)),
        ("LastModified", iso_date(part.put_at)),
        ("ETag", f'"{part.etag}"'),
        ("Size", str(part.size_bytes)),
        *fields_of(part.checksums),
    ]
