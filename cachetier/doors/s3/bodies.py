"""Take the body of a put: small ones whole, others block by block into a file past the page cache.

The digest of each block is taken once; what the client declared runs along in order, on the threads
that write. Whatever does not match leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Content

from cachetier.doors.http.body import Blocks
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.slots import Slots
from cachetier.doors.http.upload import FileSink
from cachetier.doors.s3.incoming import Incoming, check_size
from cachetier.local.store import Staged
from cachetier.model.objects import Mount
from cachetier.model.shard import INLINE_BYTES
from cachetier.objects.base import Objects


@dataclass(slots=True)
class Taken:
    """A body that came whole: bytes, or a file that nobody has committed yet."""

    content: Content
    bytes_of: Staged | bytes
    md5: str | None
    checksums: dict[str, str]
    given: bool = False

    @property
    def is_small(self) -> bool:
        return isinstance(self.bytes_of, bytes)


class Bodies:
    """Takes bodies in bounded memory; see ``limits``."""

    def __init__(self, objects: Objects, pools: Pools, limits: RequestLimits) -> None:
        self._objects = objects
        self._pools = pools
        self._blocks = Blocks()
        self._uploads = Slots(limits.uploads, "uploads", limits)

    @asynccontextmanager
    async def taken(
        self, incoming: Incoming, mount: Mount, holder: str, timeout_seconds: float
    ) -> AsyncIterator[Taken]:
        """Take a body; a file that is not ``given`` away inside is dropped.

        Raises:
            CachetierError: No room or place in time, or the body is not what was declared.
        """
        if incoming.size_bytes <= INLINE_BYTES:
            yield await self._small(incoming)
            return
        async with self._uploads.hold(holder, incoming.body, timeout_seconds):
            stage = await self._pools.owned(
                self._objects.abort,
                self._objects.begin,
                mount,
                incoming.size_bytes,
                timeout_seconds,
            )
            taken = Taken(Content(0, 0, ()), stage, None, {})
            try:
                await self._large(incoming, stage, taken, timeout_seconds)
                yield taken
            finally:
                if not taken.given:
                    await self._pools.whole(self._pools.quick(self._objects.abort, stage))

    async def _small(self, incoming: Incoming) -> Taken:
        if incoming.beginning is None:
            incoming.beginning = await incoming.body.first(INLINE_BYTES)
            incoming.checksums.update(memoryview(incoming.beginning))
        body = incoming.beginning
        check_size(incoming, len(body))
        content = Content.of_block(body)
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        return Taken(content, body, md5, incoming.finish(content.digest))

    async def _large(
        self, incoming: Incoming, stage: Staged, taken: Taken, timeout_seconds: float
    ) -> None:
        sink = _CheckedSink(incoming, stage, self._objects, self._pools, timeout_seconds)
        body = incoming.body
        await body.into_blocks(self._blocks, self._pools, sink)
        check_size(incoming, body.size_bytes)
        taken.content = sink.content(body.size_bytes)
        taken.checksums = incoming.finish(taken.content.digest)
        taken.md5 = incoming.checksums.declared_md5
        await sink.cut(body.size_bytes)


class _CheckedSink(FileSink):
    """Blocks on their way into a file; what was declared is taken in order on the way."""

    def __init__(
        self,
        incoming: Incoming,
        stage: Staged,
        objects: Objects,
        pools: Pools,
        timeout_seconds: float,
    ) -> None:
        super().__init__(stage, objects.extend, pools, timeout_seconds, self._check_no_more)
        self._incoming = incoming
        self._turn = threading.Condition()
        self._next = 0

    def _check_no_more(self, total_bytes: int) -> None:
        if total_bytes > self._incoming.size_bytes:
            check_size(self._incoming, total_bytes)

    def write(self, block: memoryview, number: int, length: int) -> None:
        """Write and check a block; those before it were handed over earlier, and never wait."""
        try:
            super().write(block, number, length)
        finally:
            with self._turn:
                self._turn.wait_for(lambda: self._next == number)
            self._incoming.checksums.update(block[:length])
            with self._turn:
                self._next += 1
                self._turn.notify_all()
