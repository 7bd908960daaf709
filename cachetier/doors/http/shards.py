"""The route of a shard's bytes: plain ASGI, as no framework may ever gather a body of gigabytes."""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.stored import ShardFacts
from cachetier_client.identity.names import SaveIds
from cachetier_client.io import digests
from cachetier_client.results import Receipt
from cachetier_client.transport.base import PutRequest
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cachetier.access.principals import Caller
from cachetier.doors.http.admitted import TARGET, doing
from cachetier.doors.http.body import TAP, Blocks, Body
from cachetier.doors.http.direct import LEND
from cachetier.doors.http.download import Download
from cachetier.doors.http.front import caller_of
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.paths import RequestTarget
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.problems import MethodError
from cachetier.doors.http.queries import Query, digest_of, size_of
from cachetier.doors.http.ranges import ByteRange, span_of
from cachetier.doors.http.sending import SentAnswer
from cachetier.doors.http.slots import Slots
from cachetier.doors.http.upload import HttpPut, put_large, put_small
from cachetier.doors.http.waiting import answered, in_share
from cachetier.doors.operations import Operations
from cachetier.errors import InvalidRequestError
from cachetier.model.levels import Level, checked_level, covers
from cachetier.model.shard import INLINE_BYTES, Shard
from cachetier.restore.restore import Opened, Source

PUT_PARAMETERS = (
    "rank",
    "world_size",
    "save_id",
    "overwrite",
    "ack",
    "timeout_seconds",
    "client_id",
)
METHODS = ("PUT", "GET", "HEAD", "DELETE")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The part of a shard that is asked for (the header ``Range``).

    ``counts``: towards all of it.
    """

    range: str | None
    counts: bool


class Shards:
    """Serves ``/v1/runs/{run}/steps/{step}/shards/{name}``."""

    def __init__(self, operations: Operations, pools: Pools, limits: RequestLimits) -> None:
        self._node = operations
        self._pools = pools
        self._limits = limits
        self._blocks = Blocks()
        self._uploads = Slots(limits.uploads, "uploads", limits)
        self._downloads = Slots(limits.downloads, "downloads", limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        target: RequestTarget = scope[TARGET]
        operation, serve = {
            "PUT": ("put", self._put),
            "GET": ("open", self._get),
            "HEAD": ("open", self._head),
            "DELETE": ("delete_shard", self._delete),
        }.get(scope["method"], ("", None))
        if serve is None:
            raise MethodError(f"a shard takes {', '.join(METHODS)}")
        with doing(self._node.access, scope, operation):
            await serve(target, scope, receive, send)

    # --- PUT -------------------------------------------------------------------------------------

    async def _put(self, target: RequestTarget, scope: Scope, receive: Receive, send: Send) -> None:
        self._node.refuse_when_leaving()
        query, headers = Query(scope["query_string"], PUT_PARAMETERS), Headers(scope=scope)
        ack = checked_level(query.text("ack", Level.LOCAL))
        started_at = time.monotonic()
        put = _put_of(target, query, headers)
        client_id = self._listen(caller_of(scope), query, target.run)
        extensions = scope.get("extensions", {})
        tap, lend = extensions.get(TAP, {}).get("tap"), extensions.get(LEND, {}).get("lend")
        receipt = await self._take(put, Body(receive, self._limits, tap, lend), scope)
        if not covers(Level(receipt.level), ack):
            left = max(0.0, put.timeout_seconds - (time.monotonic() - started_at))
            reached = self._node.checkpoints.level_reached(
                receipt.run, receipt.step, receipt.name, ack
            )
            await answered(self._node, scope, receive, reached, left)
            receipt = replace(receipt, level=ack)
        answer = JSONResponse(receipt.as_reply(), status_code=201)
        waiting = self._node.incidents.pending(client_id)
        if waiting:
            answer.headers["Cachetier-Incidents"] = str(waiting)
        await answer(scope, receive, send)

    async def _take(self, put: HttpPut, body: Body, scope: Scope) -> Receipt:
        ingest, beginning = self._node.ingest, None
        size_bytes = put.shard.size_bytes
        if size_bytes is None or size_bytes <= INLINE_BYTES:
            beginning = await body.first(INLINE_BYTES)
        is_small = beginning is not None and body.ended and len(beginning) <= INLINE_BYTES

        async def taken(left: float) -> Receipt:
            now = replace(put, timeout_seconds=left)
            if beginning is not None and is_small:
                return await put_small(now, beginning, ingest, self._pools)
            async with self._uploads.hold(caller_of(scope).holder, body, left):
                return await put_large(now, body, ingest, self._pools, self._blocks)

        return await in_share(self._node, scope, put.timeout_seconds, taken)

    def _listen(self, caller: Caller, query: Query, run: str) -> str:
        """Remember who uses the run, so that ``/v1/incidents`` tells it of what befalls it."""
        client_id = query.text("client_id", "")
        if len(client_id) > 64:
            raise InvalidRequestError("client_id has more than 64 characters")
        if client_id:
            client_id = caller.own(client_id)
            self._node.incidents.listen(client_id, time.time())
            self._node.incidents.used(client_id, run)
        return client_id

    # --- GET, HEAD, DELETE -----------------------------------------------------------------------

    async def _get(self, target: RequestTarget, scope: Scope, receive: Receive, send: Send) -> None:
        query = Query(scope["query_string"], ("timeout_seconds", "restore"))
        timeout_seconds, ids = query.seconds(), _ids(target)
        part = None if query.flag("restore") else Headers(scope=scope).get("range")
        wanted = _Wanted(part, counts=query.optional("restore") != "false")
        sending = SentAnswer(scope, send)
        async with AsyncExitStack() as held:
            opened = await self._pools.owned(
                _close, self._opened_small, ids, wanted, timeout_seconds
            )
            if opened is None:
                place = self._downloads.hold(caller_of(scope).holder, sending, timeout_seconds)
                await held.enter_async_context(place)
                opened = await self._pools.owned(_close, self._opened, ids, wanted, timeout_seconds)
            download = Download(
                opened, self._node.restore, self._pools, self._blocks, timeout_seconds
            )
            held.callback(download.close)
            await self._answer(download, scope, receive, sending)

    def _opened_small(
        self, ids: tuple[str, int, str], wanted: _Wanted, timeout_seconds: float
    ) -> Opened | None:
        """Open a shard that needs no place among the downloads; return None if it does."""
        shard, _source = self._node.restore.look(*ids)
        if shard.content.size_bytes > INLINE_BYTES:
            return None
        return self._opened(ids, wanted, timeout_seconds)

    def _opened(self, ids: tuple[str, int, str], wanted: _Wanted, timeout_seconds: float) -> Opened:
        """Open a shard: whole, or as much of it as is wanted."""
        restore = self._node.restore
        if wanted.range is not None:
            shard, source = restore.look(*ids)
            span = span_of(wanted.range, shard.content.size_bytes)
            if source == "remote" and span is not None:
                blocks = len(span.blocks) if wanted.counts else 0
                return restore.open_part(*ids, blocks, timeout_seconds, restore.follow)
        return restore.follow(*ids, timeout_seconds)

    async def _answer(
        self, download: Download, scope: Scope, receive: Receive, send: SentAnswer
    ) -> None:
        shard, headers = download.opened.shard, Headers(scope=scope)
        described = _headers(shard, download.opened.source)
        if (stale := download.opened.stale) is not None:
            described["Cachetier-Checked-At"] = str(stale.checked_at or "never")
        if _matches(headers.get("if-none-match"), described["ETag"]):
            await Response(status_code=304, headers=described)(scope, receive, send)
            return
        size_bytes = shard.content.size_bytes
        wanted = headers.get("range")
        if headers.get("if-range", described["ETag"]) != described["ETag"]:
            wanted = None
        span = span_of(wanted, size_bytes)
        if span is not None:
            described["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{size_bytes}"
        whole = ByteRange(0, size_bytes)
        described["Content-Length"] = str((span or whole).size_bytes)
        status = 200 if span is None else 206
        await _stream(download, span or whole, status, described, send)

    async def _head(
        self, target: RequestTarget, scope: Scope, receive: Receive, send: Send
    ) -> None:
        Query(scope["query_string"], ("timeout_seconds", "restore"))
        run, step, name = _ids(target)
        shard, source = await self._pools.patient(self._node.restore.look, run, step, name)
        described = _headers(shard, source)
        described["Content-Length"] = str(shard.content.size_bytes)
        await Response(status_code=200, headers=described)(scope, receive, send)

    async def _delete(
        self, target: RequestTarget, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self._node.refuse_when_stopping()
        Query(scope["query_string"], ())
        await self._pools.quick(self._node.checkpoints.delete_shard, *_ids(target))
        await Response(status_code=204)(scope, receive, send)


async def _stream(
    download: Download, span: ByteRange, status: int, headers: dict[str, str], send: Send
) -> None:
    """Send the head with the first verified bytes: a damaged shard is an error, not a stump."""
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    start = {"type": "http.response.start", "status": status, "headers": raw}
    begun = False
    async with aclosing(download.pieces(span)) as pieces:
        async for piece in pieces:
            if not begun:
                await send(start)
                begun = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    if not begun:
        await send(start)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _close(opened: Opened | None) -> None:
    """Let go of what was opened for somebody who is gone."""
    if opened is not None and opened.descriptor is not None:
        os.close(opened.descriptor)


def _put_of(target: RequestTarget, query: Query, headers: Headers) -> HttpPut:
    if "content-range" in headers:
        raise InvalidRequestError("a shard is put whole: Content-Range is not supported")
    run, step, name = _ids(target)
    ids = SaveIds(
        run=run,
        step=step,
        save_id=query.text("save_id", "http"),
        rank=query.count("rank", 0),
        world_size=query.count("world_size", 1),
        overwrite=query.flag("overwrite"),
    )
    size_bytes = size_of(headers.get("content-length"))
    digest = digest_of(headers.get("cachetier-digest"))
    memory = query.text("ack", "") == Level.MEMORY
    shard = PutRequest(ids, name, size_bytes, ShardFacts.of_headers(headers), memory)
    return HttpPut(shard, digest, query.seconds())


def _ids(target: RequestTarget) -> tuple[str, int, str]:
    assert target.step is not None
    assert target.name is not None
    return target.run, target.step, target.name


def _headers(shard: Shard, source: Source) -> dict[str, str]:
    digest = digests.to_hex(shard.content.digest)
    return {
        "Content-Type": "application/octet-stream",
        "Accept-Ranges": "bytes",
        "ETag": f'"{digest}"',
        "Cachetier-Digest": digest,
        "Cachetier-Save": shard.save_id,
        "Cachetier-Source": source,
    }


def _matches(text: str | None, etag: str) -> bool:
    """Say whether ``If-None-Match`` names ``etag``."""
    if text is None:
        return False
    return text.strip() == "*" or etag in [
        tag.strip().removeprefix("W/") for tag in text.split(",")
    ]
