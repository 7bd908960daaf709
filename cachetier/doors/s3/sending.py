"""Send an object's bytes in bounded memory: verified blocks of its pieces, or the bucket's own.

While one block is sent the next is read. What waits for a remote keeps nobody from the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from typing import Any

from starlette.types import Send

from cachetier.doors.http.pools import Pools
from cachetier.doors.http.ranges import ByteRange
from cachetier.objects.base import ObjectPart, Objects, OpenedObject, PieceBytes

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20

Bytes = bytes | memoryview


class Sending:
    """The bytes of one opened object."""

    def __init__(
        self, objects: Objects, opened: OpenedObject, pools: Pools, timeout_seconds: float
    ) -> None:
        self._objects = objects
        self._opened = opened
        self._pools = pools
        self._timeout_seconds = timeout_seconds

    async def blocks(self, span: ByteRange) -> AsyncGenerator[Bytes, None]:
        """Yield the bytes of ``span`` in order; what was yielded is sound.

        Raises:
            IntegrityError: No sound copy is left.
            RemoteError: The bucket does not give them.
        """
        if self._opened.foreign is not None:
            found = self._opened.foreign.read(span.start, span.size_bytes)
            async with aclosing(self._foreign(found)) as foreign:
                async for some in foreign:
                    yield some
            return
        for piece in self._opened.pieces:
            start = max(span.start - piece.start, 0)
            end = min(span.end - piece.start, piece.size_bytes)
            if start < end:
                async with aclosing(self._piece(piece, ByteRange(start, end))) as blocks:
                    async for block in blocks:
                        yield block

    async def _piece(self, piece: ObjectPart, span: ByteRange) -> AsyncGenerator[Bytes, None]:
        async with AsyncExitStack() as held:
            opening = self._objects.open_piece(piece, self._timeout_seconds)
            content = await self._pools.owned(_closer(opening), opening.__enter__)
            held.push_async_callback(self._close, opening)
            pool = self._pools.patient if content.descriptor is None else self._pools.disk
            reading: asyncio.Future[Bytes] | None = None
            try:
                for number in span.blocks:
                    reading = reading or pool(content.read_block, number)
                    block = await asyncio.shield(reading)
                    more = number + 1 < span.blocks.stop
                    reading = pool(content.read_block, number + 1) if more else None
                    begins = number * BLOCK_BYTES
                    yield memoryview(block)[max(span.start - begins, 0) : span.end - begins]
            finally:
                if reading is not None:
                    await asyncio.wait([reading])
                    reading.exception()

    async def _close(self, opening: AbstractContextManager[PieceBytes]) -> None:
        await self._pools.whole(self._pools.quick(opening.__exit__, None, None, None))

    async def _foreign(self, found: Iterator[Bytes]) -> AsyncGenerator[Bytes, None]:
        close: Callable[[], None] = getattr(found, "close", lambda: None)
        try:
            while some := await self._pools.whole(self._pools.patient(next, found, b"")):
                yield bytes(some)  # it lasts until the next
        finally:
            await self._pools.whole(self._pools.quick(close))


def _closer(opening: AbstractContextManager[PieceBytes]) -> Callable[[Any], object]:
    return lambda _content: opening.__exit__(None, None, None)


async def send_bytes(
    blocks: AsyncGenerator[Bytes, None], status: int, headers: list[tuple[bytes, bytes]], send: Send
) -> None:
    """Send the head with the first verified bytes: a damaged object is an error, not a stump."""
    start = {"type": "http.response.start", "status": status, "headers": headers}
    begun = False
    async with aclosing(blocks):
        async for block in blocks:
            if not begun:
                await send(start)
                begun = True
            for at in range(0, len(block), PIECE_BYTES):
                piece = block[at : at + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    if not begun:
        await send(start)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
