"""Send a shard's bytes block by block, each verified before it leaves: see ``BlockReader``.

Only when there is no sound copy left does the answer end early.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.doors.http.body import Blocks
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.ranges import ByteRange
from cachetier.restore.block_reader import BlockReader
from cachetier.restore.restore import Opened, Restore

PIECE_BYTES = 1 << 20


class Download:
    """One opened shard; ``close`` it."""

    def __init__(
        self,
        opened: Opened,
        restore: Restore,
        pools: Pools,
        blocks: Blocks,
        timeout_seconds: float,
    ) -> None:
        self._reader = BlockReader(opened, restore, timeout_seconds)
        self._pools = pools
        self._blocks = blocks

    @property
    def opened(self) -> Opened:
        return self._reader.opened

    def close(self) -> None:
        self._reader.close()

    async def pieces(self, span: ByteRange) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of ``span``; the next block is read while the last one is sent.

        Raises:
            IntegrityError: No sound copy is left; what was yielded before is sound.
        """
        if self.opened.body is not None:  # an inline shard
            yield self.opened.body[span.start : span.end]
            return
        numbers = span.blocks
        lent: list[memoryview] = []
        reading: asyncio.Future[None] | None = None
        try:
            reading, block = self._begin(numbers, lent) if numbers else (None, memoryview(b""))
            for number in numbers:
                assert reading is not None
                await asyncio.shield(reading)
                ready, reading = block, None
                if number + 1 in numbers:
                    reading, block = self._begin(range(number + 1, numbers.stop), lent)
                start = max(span.start - number * BLOCK_BYTES, 0)
                end = min(span.end - number * BLOCK_BYTES, BLOCK_BYTES)
                for at in range(start, end, PIECE_BYTES):
                    yield bytes(ready[at : min(at + PIECE_BYTES, end)])  # the socket may keep it
                self._blocks.give_back(lent.pop(0))
        finally:
            if reading is not None:
                await asyncio.wait([reading])
                reading.exception()
            for block in lent:
                self._blocks.give_back(block)

    def _begin(
        self, numbers: range, lent: list[memoryview]
    ) -> tuple[asyncio.Future[None], memoryview]:
        """Begin to read the first of ``numbers`` into a lent block."""
        block = self._blocks.take()
        lent.append(block)
        # What waits for a remote must not keep others from the disk.
        waits = self.opened.remote is not None or self.opened.arriving
        pool = self._pools.patient if waits else self._pools.disk
        return pool(self._reader.fill, numbers.start, block), block
