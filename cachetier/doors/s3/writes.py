"""Puts and deletions, and what their answers wait for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from starlette.responses import Response

from cachetier.access.principals import Caller
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.waiting import in_share
from cachetier.doors.operations import Operations
from cachetier.doors.s3.answers import LEVEL
from cachetier.doors.s3.bodies import Bodies, Taken
from cachetier.doors.s3.checksums import headers_of
from cachetier.doors.s3.conditions import of_deletion, unquoted
from cachetier.doors.s3.errors import refused
from cachetier.doors.s3.heads import head_of
from cachetier.doors.s3.incoming import Incoming
from cachetier.doors.s3.requests import S3Request
from cachetier.errors import InvalidRequestError, ReadOnlyMountError
from cachetier.local.catalog.objects import KeyCondition
from cachetier.model.levels import Level, checked_level, covers
from cachetier.model.objects import Head, Mode, Mount
from cachetier.objects.base import Objects, PutAnswer, PutObject

ACK, TIMEOUT = "x-cachetier-ack", "x-cachetier-timeout"
ORDER = "x-cachetier-order"
LONGEST_WAIT_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The level that the answer to a write waits for, and its deadline on the monotonic clock."""

    level: Level
    ends_at: float

    @property
    def left(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())


def wanted_ack(request: S3Request, mount: Mount, default_seconds: float) -> Acknowledged:
    """Return what the answer to a write waits for.

    Raises:
        CachetierError: InvalidArgument, or the mount takes no writes.
    """
    writable(mount)
    seconds = _seconds(request.headers.get(TIMEOUT), default_seconds)
    try:
        level = checked_level(request.headers.get(ACK, mount.ack))
    except InvalidRequestError as error:
        raise refused("InvalidArgument", error.message) from None
    through = mount.mode is Mode.WRITE_THROUGH
    return Acknowledged(Level.DURABLE if through else level, time.monotonic() + seconds)


def writable(mount: Mount) -> None:
    """Refuse to write to a mount that takes no writes."""
    if mount.mode is Mode.READ_ONLY:
        raise ReadOnlyMountError(f"the mount {mount.name} is read-only")


def _seconds(text: str | None, default: float) -> float:
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST_WAIT_SECONDS:
        raise refused("InvalidArgument", f"{TIMEOUT} is no number of seconds up to a day")
    return seconds


class Writes:
    """Answers what puts and deletes objects."""

    def __init__(
        self,
        node: Operations,
        objects: Objects,
        pools: Pools,
        bodies: Bodies,
        timeout_seconds: float,
    ) -> None:
        self._node = node
        self._objects = objects
        self._pools = pools
        self._bodies = bodies
        self._timeout_seconds = timeout_seconds

    def ack(self, request: S3Request, mount: Mount) -> Acknowledged:
        return wanted_ack(request, mount, self._timeout_seconds)

    async def put(
        self, request: S3Request, mount: Mount, caller: Caller, incoming: Incoming
    ) -> Response:
        ack = self.ack(request, mount)
        head = head_of(request.headers)
        answer, checksums = await self.stored(request, mount, caller, incoming, ack, head)
        headers = {**await self.acknowledged(mount, answer, ack), **headers_of(checksums)}
        return Response(headers={**headers, "etag": f'"{answer.etag}"'})

    async def stored(
        self,
        request: S3Request,
        mount: Mount,
        caller: Caller,
        incoming: Incoming,
        ack: Acknowledged,
        head: Head,
    ) -> tuple[PutAnswer, Mapping[str, str]]:
        """Make a body an object; return also the checksums that were declared of it.

        Raises:
            CachetierError: Nothing was kept.
        """
        put = conditions(request, PutObject(request.key, head, 0))

        async def store(left: float) -> tuple[PutAnswer, Mapping[str, str]]:
            async with self._bodies.taken(incoming, mount, caller.holder, left) as taken:
                kept = replace(head, checksums=taken.checksums)
                now = replace(put, head=kept, md5=taken.md5)
                taken.given = True
                waits = taken.is_small or put.condition.asks  # perhaps the bucket
                pool = self._pools.patient if waits else self._pools.quick
                return await pool(self._commit, mount, now, taken, left), taken.checksums

        return await in_share(self._node, request.scope, ack.left, store)

    def _commit(self, mount: Mount, put: PutObject, taken: Taken, left: float) -> PutAnswer:
        put = replace(put, follows=self._objects.watermark(mount))
        return self._objects.commit(
            mount, put, content=taken.content, bytes_of=taken.bytes_of, timeout_seconds=left
        )

    async def acknowledged(
        self, mount: Mount, answer: PutAnswer, ack: Acknowledged
    ) -> dict[str, str]:
        """Return what an answer says of how safe a write is, once it is as safe as was asked.

        Raises:
            CachetierError: Not in time: the write is safe on this node, and goes on.
        """
        level = answer.level
        if answer.version and not covers(level, ack.level):
            await self._pools.patient(
                self._objects.wait, mount, answer.version, ack.level, ack.left
            )
            level = ack.level
        return {LEVEL: level, ORDER: answer.order}

    async def delete(self, request: S3Request, mount: Mount) -> Response:
        ack = self.ack(request, mount)
        answer = await self.deleted(mount, [request.key], of_deletion(request.headers))
        return Response(status_code=204, headers=await self.acknowledged(mount, answer, ack))

    async def deleted(
        self, mount: Mount, keys: Sequence[str], condition: KeyCondition
    ) -> PutAnswer:
        """Delete keys, under a condition one alone; return the answer that covers all of them."""
        pool = self._pools.patient if condition.asks else self._pools.quick  # it may ask the bucket
        answers = await pool(self._objects.delete, mount, keys, condition)
        return max(answers, key=lambda each: each.version)


def conditions(request: S3Request, put: PutObject) -> PutObject:
    none_match, match = request.headers.get("if-none-match"), request.headers.get("if-match")
    if none_match is not None and none_match.strip() != "*":
        raise refused("NotImplemented", "a put takes If-None-Match only for any object: *")
    return replace(
        put,
        if_absent=none_match is not None,
        if_match=None if match is None else unquoted(match),
    )
