"""The application of the S3 door: who calls, which operation, on which mount, and its answer.

Who calls is settled first, then what they may do; only then a byte of a body is read, or the bucket
asked.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import aiofiles.os
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from cachetier.access.principals import Caller
from cachetier.doors.http.front import Exchange, Front
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.slots import Slots
from cachetier.doors.operations import Operations
from cachetier.doors.s3.answers import (
    Fields,
    error_answer,
    error_fields,
    iso_date,
    request_id,
    resource,
    xml_answer,
)
from cachetier.doors.s3.bodies import Bodies
from cachetier.doors.s3.copies import CopyHandlers
from cachetier.doors.s3.documents import read_deletion, read_parts
from cachetier.doors.s3.errors import refused, s3_code_of
from cachetier.doors.s3.incoming import document_of, incoming_of, signed_by
from cachetier.doors.s3.listing import first_version, second_version
from cachetier.doors.s3.reads import ReadHandlers
from cachetier.doors.s3.requests import (
    S3Request,
    checked_key,
    request_of,
    source_of,
    with_parameters,
)
from cachetier.doors.s3.routes import COPY_SOURCE, Route, route_of
from cachetier.doors.s3.sigv4 import SignedRequest
from cachetier.doors.s3.uploads import UploadHandlers
from cachetier.doors.s3.writes import Writes, writable
from cachetier.errors import (
    CachetierError,
    ForbiddenError,
    InvalidRequestError,
    NoSuchBucketError,
    NoSuchKeyError,
    ReadOnlyMountError,
)
from cachetier.local.catalog.objects import KeyCondition
from cachetier.model.objects import Mount
from cachetier.objects.base import Objects, PutAnswer

log = logging.getLogger(__name__)

WAIT_SECONDS = 50.0  # for room, or the bucket: clients give up after a minute
REQUEST_ID = b"x-amz-request-id"
WRITING = frozenset({"s3_put", "s3_upload", "s3_delete", "s3_delete_objects"})
# What an entry of DeleteObjects is answered with; for all else the client asks again for the whole.
_OF_ONE_KEY = ForbiddenError, InvalidRequestError, NoSuchKeyError, ReadOnlyMountError
UNKNOWN = "unknown"  # the operation of a request that is none

Answered = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that its caller may make; ``mounts`` are those of its bucket that they may see."""

    request: S3Request
    caller: Caller
    signed: SignedRequest
    mounts: tuple[Mount, ...]
    receive: Receive
    send: Send

    @property
    def mount(self) -> Mount:
        """The mount that the key lies in."""
        return self.mounts[0]


class S3App(Front):
    """Serves the operations of ``routes``; ``answered`` hears of each, and its code."""

    def __init__(
        self,
        node: Operations,
        objects: Objects,
        pools: Pools,
        *,
        hosts: Collection[str],
        limits: RequestLimits,
        answered: Answered = lambda _operation, _code: None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        super().__init__("s3", error_answer, access=node.access, limits=limits, failed=node.failed)
        self._node = node
        self._objects = objects
        self._pools = pools
        self._hosts = tuple(hosts)
        self._answered = answered
        bodies = Bodies(objects, pools, limits)
        downloads = Slots(limits.downloads, "downloads", limits)
        self._reads = ReadHandlers(objects, pools, downloads, wait_seconds)
        self._writes = Writes(node, objects, pools, bodies, wait_seconds)
        self._uploads = UploadHandlers(node, objects, pools, bodies, self._writes)
        self._copies = CopyHandlers(objects, pools, self._writes, self._uploads, wait_seconds)
        self._serve_by: dict[str, Callable[[Call], Awaitable[Response | None]]] = {
            "ListBuckets": self._list_buckets,
            "HeadBucket": self._head_bucket,
            "CreateBucket": self._create_bucket,
            "GetBucketLocation": self._location,
            "ListObjects": self._list,
            "ListObjectsV2": self._list,
            "ListMultipartUploads": self._list_uploads,
            "DeleteObjects": self._delete_objects,
            "GetObject": lambda c: self._reads.get(c.request, c.mount, c.caller, c.send),
            "HeadObject": lambda c: self._reads.head(c.request, c.mount),
            "PutObject": self._put,
            "CopyObject": self._copy,
            "DeleteObject": lambda c: self._writes.delete(c.request, c.mount),
            "CreateMultipartUpload": lambda c: self._uploads.create(c.request, c.mount, c.caller),
            "UploadPart": self._part,
            "UploadPartCopy": self._copy,
            "CompleteMultipartUpload": self._complete,
            "AbortMultipartUpload": lambda c: self._uploads.abort(c.request, c.mount),
            "ListParts": lambda c: self._uploads.list_parts(c.request, c.mount),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = secrets.token_hex(8).upper()
        request_id.set(name)
        resource.set(scope["path"][:200])

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, name.encode())]
            await send(message)

        await super().__call__(scope, receive, named)

    async def _serve(self, scope: Scope, exchange: Exchange) -> None:
        operation, code = UNKNOWN, "InternalError"
        try:
            request = request_of(scope, self._hosts)
            if self._access.tokens.is_due():
                await aiofiles.os.wrap(self._access.tokens.look)()  # the loop waits for no disk
            caller, signed = signed_by(self._access, request)
            request = with_parameters(request)
            with self._serving(scope, caller):
                route = route_of(request)
                operation = route.name
                await self._do(route, request, caller, signed, exchange)
            code = "ok"
        except CachetierError as error:
            code = s3_code_of(error)
            raise
        finally:
            self._answered(operation, code)

    async def _do(
        self,
        route: Route,
        request: S3Request,
        caller: Caller,
        signed: SignedRequest,
        exchange: Exchange,
    ) -> None:
        mounts = self._mounts_of(request, caller)
        call = Call(request, caller, signed, mounts, exchange.receive, exchange.send)
        with ExitStack() as doing:
            named = {"name": request.key} if request.key else {}
            for mount in mounts or (None,):
                run = None if mount is None else mount.name
                doing.enter_context(self._access.doing(caller, route.right, run, **named))
            if route.right in WRITING:
                doing.enter_context(self._node.putting())
            answer = await self._serve_by[route.name](call)
            if answer is not None:
                await answer(request.scope, exchange.receive, exchange.send)

    def _mounts_of(self, request: S3Request, caller: Caller) -> tuple[Mount, ...]:
        """Return the mounts that a request is about: the key's, or all of its bucket.

        Raises:
            CachetierError: There is no such bucket, or none of its mounts has the key.
        """
        if not request.bucket:
            return ()
        of_bucket = [each for each in self._objects.mounts if each.bucket == request.bucket]
        if not of_bucket:
            raise NoSuchBucketError("there is no such bucket at this door")
        if request.key:
            return (self._mount(request.bucket, request.key),)
        prefix = request.query.get("prefix", "")
        near = [each for each in of_bucket if _meets(each, prefix)]
        if not near:
            raise refused("AccessDenied", "no mount of this bucket has keys that begin so")
        seen = [each for each in near if caller.principal.sees(each.name)]
        return tuple(seen or near[:1])  # who may see none is refused on the first

    def _mount(self, bucket: str, key: str) -> Mount:
        for mount in self._objects.mounts:
            if mount.covers(bucket, key):
                return mount
        if any(each.bucket == bucket for each in self._objects.mounts):
            raise refused("AccessDenied", "no mount of this bucket has such keys")
        raise NoSuchBucketError("there is no such bucket at this door")

    # --- buckets ---------------------------------------------------------------------------------

    async def _list_buckets(self, call: Call) -> Response:
        sees = call.caller.principal.sees
        names = sorted({each.bucket for each in self._objects.mounts if sees(each.name)})
        owner: Fields = [("ID", call.caller.principal.name)]
        created = iso_date(self._node.s3.created_at)
        buckets: Fields = [
            ("Bucket", [("Name", name), ("CreationDate", created)]) for name in names
        ]
        return xml_answer("ListAllMyBucketsResult", [("Owner", owner), ("Buckets", buckets)])

    async def _head_bucket(self, _call: Call) -> Response:
        return Response(headers={"x-amz-bucket-region": self._node.s3.region})

    async def _create_bucket(self, _call: Call) -> Response:
        """Say that a bucket is there: rclone, for one, asks so before its first put."""
        raise refused("BucketAlreadyOwnedByYou", "the bucket is there; this door makes none")

    async def _location(self, _call: Call) -> Response:
        return xml_answer("LocationConstraint", self._node.s3.region)

    async def _list(self, call: Call) -> Response:
        made_by = second_version if "list-type" in call.request.query else first_version
        of_call = call.request, self._objects, call.mounts, call.caller.principal.name
        return xml_answer("ListBucketResult", await self._pools.patient(made_by, *of_call))

    async def _list_uploads(self, call: Call) -> Response:
        return await self._uploads.list_uploads(call.request, call.mounts)

    # --- bodies ----------------------------------------------------------------------------------

    async def _put(self, call: Call) -> Response:
        incoming = incoming_of(call.request, call.signed, call.receive, self._limits)
        return await self._writes.put(call.request, call.mount, call.caller, incoming)

    async def _part(self, call: Call) -> Response:
        incoming = incoming_of(call.request, call.signed, call.receive, self._limits)
        return await self._uploads.part(call.request, call.mount, call.caller, incoming)

    async def _copy(self, call: Call) -> Response:
        bucket, key = source_of(call.request.headers[COPY_SOURCE])
        source = self._mount(bucket, key)
        with self._access.doing(call.caller, "s3_get", source.name, name=key):
            made_by = (
                self._copies.copy_part if "uploadId" in call.request.query else self._copies.copy
            )
            return await made_by(call.request, call.mount, call.caller, (source, key))

    async def _complete(self, call: Call) -> Response:
        body = await document_of(
            call.request, call.signed, call.receive, self._limits, of_object=True
        )
        return await self._uploads.complete(call.request, call.mount, read_parts(body))

    async def _delete_objects(self, call: Call) -> Response:
        """Delete keys of any mounts of the bucket; what is refused of them is answered for each."""
        wanted = read_deletion(
            await document_of(call.request, call.signed, call.receive, self._limits)
        )
        groups: dict[tuple[str, str], tuple[Mount, list[str]]] = {}
        refusals: dict[str, CachetierError] = {}
        for key, condition in wanted.keys.items():
            try:
                mount = self._mount(call.request.bucket, checked_key(key))
            except CachetierError as error:
                refusals[key] = error
                continue
            alone = key if condition.asks else ""  # the others go together
            groups.setdefault((mount.name, alone), (mount, []))[1].append(key)
        last: dict[str, tuple[Mount, PutAnswer]] = {}
        for mount, keys in groups.values():
            try:
                last[mount.name] = mount, await self._deleted(call, mount, keys, wanted.keys)
            except _OF_ONE_KEY as error:
                refusals |= dict.fromkeys(keys, error)
        headers: dict[str, str] = {}
        for mount, answer in last.values():
            ack = self._writes.ack(call.request, mount)
            headers = await self._writes.acknowledged(mount, answer, ack)
        gone = [] if wanted.quiet else [key for key in wanted.keys if key not in refusals]
        fields: Fields = [("Deleted", [("Key", key)]) for key in gone]
        fields += [
            ("Error", [("Key", key), *error_fields(error)]) for key, error in refusals.items()
        ]
        return xml_answer("DeleteResult", fields, headers)

    async def _deleted(
        self, call: Call, mount: Mount, keys: Sequence[str], wanted: Mapping[str, KeyCondition]
    ) -> PutAnswer:
        """Delete keys of one mount, which all have one condition, or none; the audit names each."""
        with ExitStack() as doing:
            for key in reversed(keys):  # the lines stand in the order of the document
                of_key = self._access.doing(call.caller, "s3_delete", mount.name, name=key)
                doing.enter_context(of_key)
            writable(mount)
            return await self._writes.deleted(mount, keys, wanted[keys[0]])


def _meets(mount: Mount, prefix: str) -> bool:
    """Return whether keys of a mount can begin so."""
    return mount.prefix.startswith(prefix) or prefix.startswith(mount.prefix)
