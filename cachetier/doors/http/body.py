"""Gather a request's body into aligned blocks, in bounded memory.

The loop's thread only copies what the network brought into a block; digests and writes happen in
other threads while the next block fills. An upload never holds more than ``BLOCKS_EACH`` blocks.
"""

from __future__ import annotations

import asyncio
import math
import mmap
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from cachetier_client.io.digests import BLOCK_BYTES
from starlette.types import Receive

from cachetier.doors.http.direct import DirectStream, Lend
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.problems import BodyCutShortError, SlowBodyError

BLOCKS_EACH = 3
BLOCKS_KEPT = 12
TAP = "cachetier.tap"  # the connection's extension of the scope


class BodySink(Protocol):
    """Where blocks go. ``depth`` says how many may be on their way at once."""

    depth: int

    async def expect(self, total_bytes: int) -> None:
        """Make ready for the next block, the body then having ``total_bytes``; called in order."""

    def write(self, block: memoryview, number: int, length: int) -> None:
        """Take a block, blocking; ``block`` is free again when this returns."""


# Takes a piece of the body as soon as it is parsed; returns True when it wants no more for now.
Feed = Callable[[bytes | memoryview], bool]
# Diverts the rest of the body to a feed; returns what had come before, or None if it cannot.
Tap = Callable[[Feed], bytes | None]


class Blocks:
    """A pool of page-aligned blocks, made when first needed; a few are kept. For one thread."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        return self._free.pop() if self._free else memoryview(mmap.mmap(-1, BLOCK_BYTES))

    def give_back(self, block: memoryview) -> None:
        if len(self._free) < BLOCKS_KEPT:
            self._free.append(block)


class Body:
    """One request's body. ``size_bytes`` counts what has come.

    With a ``tap`` the connection copies into blocks itself, which saves two copies and a task
    switch for each piece; ``receive`` then only says when a block is full, or the body ends. With
    ``lend`` a thread receives into the blocks, past the loop, where the connection allows it.
    """

    def __init__(
        self,
        receive: Receive,
        limits: RequestLimits,
        tap: Tap | None = None,
        lend: Lend | None = None,
    ) -> None:
        self._receive = receive
        self._limits = limits
        self._tap = tap
        self._lend = lend
        self._more = True
        self._held = b""
        self._waiting = False
        self._excused_at = -math.inf
        self.size_bytes = 0

    async def first(self, least_bytes: int) -> bytes:
        """Return the body's beginning: all of it, or more than ``least_bytes``.

        What is returned comes again from ``into_blocks``.
        """
        beginning = bytearray()
        async with self._watched():
            while self._more and len(beginning) <= least_bytes:
                beginning += await self._next()
        self._held = bytes(beginning)
        return self._held

    @property
    def moved_bytes(self) -> int:
        return self.size_bytes

    def waits_for_peer(self, since: float) -> bool:
        """Whether it stands still because of its sender, and did not because of us ``since``."""
        return self._waiting and self._excused_at <= since

    @property
    def ended(self) -> bool:
        """Whether everything came already."""
        return not self._more

    async def into_blocks(self, blocks: Blocks, pools: Pools, sink: BodySink) -> None:
        """Hand the whole body to ``sink`` in blocks, the next one filling meanwhile.

        On any error every write that began has ended before this returns.
        """
        filling = _BodyFilling(blocks, pools, sink, self._excuse)
        self._excuse()
        try:
            async with self._watched():
                filling.feed(self._held)
                self._held = b""
                await filling.relieve()
                stream = self._lend() if self._lend is not None and self._more else None
                if stream is not None:
                    await self._receive_directly(stream, filling, pools)
                else:
                    self._divert(filling)
                while self._more:
                    await filling.relieve()
                    filling.feed(await self._next())
                await filling.relieve()
            await filling.finish()
        finally:
            await filling.settle()

    async def _receive_directly(
        self, stream: DirectStream, filling: _BodyFilling, pools: Pools
    ) -> None:
        """Let a thread receive what is left straight into blocks."""
        try:
            self.size_bytes += len(stream.earlier)
            filling.feed(stream.earlier)
            while stream.left_bytes:
                await filling.relieve()
                coming = pools.wire(stream.fill, filling.room, self._moved)
                self._waiting = True
                try:
                    await asyncio.wait([coming])
                finally:
                    self._waiting = False
                    if not coming.done():
                        stream.stop()
                        with suppress(Exception):  # why it is stopped says more
                            await pools.whole(coming)
                filling.grow(coming.result())
            self._more = False
        finally:
            stream.close()

    def _moved(self, count: int) -> None:
        self.size_bytes += count

    def _divert(self, filling: _BodyFilling) -> None:
        if self._tap is None or not self._more:
            return

        def feed(piece: bytes | memoryview) -> bool:
            self.size_bytes += len(piece)
            return filling.feed(piece)

        earlier = self._tap(feed)
        if earlier:
            feed(earlier)

    async def _next(self) -> bytes:
        self._waiting = True
        message = await self._receive()
        self._waiting = False
        if message["type"] == "http.disconnect":
            raise BodyCutShortError("the connection ended before the body did")
        self._more = message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        self.size_bytes += len(chunk)
        return chunk

    def _excuse(self) -> None:
        """Say that until now the body stood still because of us."""
        self._excused_at = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Fail when the sender stalls, or drips; waits of our own are not the sender's fault."""
        loop = asyncio.get_running_loop()
        seen_bytes, seen_at = self.size_bytes, loop.time()
        watch: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal seen_bytes, seen_at, watch
            moved, since = self.size_bytes - seen_bytes, seen_at
            seen_bytes, seen_at = self.size_bytes, loop.time()
            if self.waits_for_peer(since) and moved < self._limits.progress_bytes:
                deadline.reschedule(loop.time())
            else:
                watch = loop.call_later(self._limits.progress_seconds, look)

        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                watch = loop.call_later(self._limits.progress_seconds, look)
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SlowBodyError(
                f"fewer than {self._limits.progress_bytes} bytes of the body came "
                f"in {self._limits.progress_seconds:g} s"
            ) from None
        finally:
            if watch is not None:
                watch.cancel()


class _BodyFilling:
    """The block that fills, and those on their way into the sink, oldest first."""

    def __init__(
        self, blocks: Blocks, pools: Pools, sink: BodySink, excuse: Callable[[], None]
    ) -> None:
        self._blocks = blocks
        self._pools = pools
        self._sink = sink
        self._excuse = excuse
        self._block = blocks.take()
        self._filled = 0
        self._number = 0
        self._total_bytes = 0
        self._rest: list[bytes] = []
        self._settled = False
        self._writes: deque[tuple[asyncio.Future[None], memoryview]] = deque()

    def feed(self, piece: bytes | memoryview) -> bool:
        """Copy a piece into the block; return True when the block is full: ``relieve`` it.

        Once settled it takes nothing: the block may be another upload's by then.
        """
        if self._settled:
            return True
        end = self._filled + len(piece)
        if self._rest or end > BLOCK_BYTES:
            self._rest.append(bytes(piece))
            return True
        self._block[self._filled : end] = piece
        self._filled = end
        return end == BLOCK_BYTES

    @property
    def room(self) -> memoryview:
        """The empty rest of the block that fills; never nothing after ``relieve``."""
        return self._block[self._filled :]

    def grow(self, count: int) -> None:
        """Count what was received into ``room``."""
        self._filled += count

    async def relieve(self) -> None:
        """Hand over full blocks, until what was fed fits into one that is not."""
        while self._rest or self._filled == BLOCK_BYTES:
            rest, self._rest = memoryview(b"".join(self._rest)), []
            room = BLOCK_BYTES - self._filled
            self._block[self._filled : self._filled + len(rest[:room])] = rest[:room]
            self._filled += len(rest[:room])
            if rest[room:]:
                self._rest = [bytes(rest[room:])]
            if self._filled == BLOCK_BYTES:
                await self._hand_over()

    async def finish(self) -> None:
        if self._filled:
            await self._hand_over()
        while self._writes:
            await self._oldest_written()

    async def settle(self) -> None:
        """Wait for what is on its way, whatever became of the body, and free the blocks."""
        self._settled = True
        cut_off = None
        while self._writes:
            write, block = self._writes.popleft()
            try:
                with suppress(Exception):  # the body has failed already, and says why
                    await self._pools.whole(write)
            except asyncio.CancelledError as error:
                cut_off = error
            self._blocks.give_back(block)
        self._blocks.give_back(self._block)
        if cut_off is not None:
            raise cut_off

    async def _hand_over(self) -> None:
        depth = min(self._sink.depth, BLOCKS_EACH - 1)
        while len(self._writes) >= depth:
            await self._oldest_written()
        self._total_bytes += self._filled
        await self._sink.expect(self._total_bytes)
        self._excuse()
        write = self._pools.disk(self._sink.write, self._block, self._number, self._filled)
        self._writes.append((write, self._block))
        self._block = self._blocks.take()
        self._number += 1
        self._filled = 0

    async def _oldest_written(self) -> None:
        """Wait for the oldest write; its error is this upload's."""
        write, block = self._writes[0]
        if not write.done():
            await asyncio.wait([write])
            self._excuse()
        self._writes.popleft()
        self._blocks.give_back(block)
        write.result()
