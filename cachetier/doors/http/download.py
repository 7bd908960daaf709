"""Send a shard's bytes block by block, each verified before it leaves.

A local block that fails its digest takes the local copy out of use, and the same bytes come from
the remote instead; only when there is no sound copy left does the answer end early. A shard that is
on its way here is sent as its blocks come.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.doors.http.body import Blocks
from cachetier.doors.http.pools import Pools
from cachetier.doors.http.ranges import Span
from cachetier.errors import DeadlineError, IntegrityError, NotFoundError
from cachetier.model.shard import Shard
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
        self._opened = opened
        self._restore = restore
        self._pools = pools
        self._blocks = blocks
        self._timeout_seconds = timeout_seconds
        self._there: set[int] = set()  # of what arrives

    @property
    def opened(self) -> Opened:
        return self._opened

    def close(self) -> None:
        if self._opened.descriptor is not None:
            os.close(self._opened.descriptor)

    async def pieces(self, span: Span) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of ``span``; the next block is read while the last one is sent.

        Raises:
            IntegrityError: No sound copy is left; what was yielded before is sound.
        """
        if self._opened.body is not None:  # an inline shard
            yield self._opened.body[span.start : span.end]
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
        waits = self._opened.remote is not None or self._opened.arriving
        pool = self._pools.patient if waits else self._pools.disk
        return pool(self._fill, numbers.start, block), block

    def _fill(self, number: int, block: memoryview) -> None:
        """Read one block, from the remote if the local one is damaged."""
        if self._opened.arriving:
            self._await(number)
        if _read(self._opened, number, block):
            return
        shard = self._opened.shard
        self._restore.report_damage(shard)
        self._reopen(shard)
        if not _read(self._opened, number, block):
            raise _damaged(shard)

    def _await(self, number: int) -> None:
        """Return once a block of what arrives is there; open anew what arrives no longer.

        Raises:
            DeadlineError: No block came for as long as the request waits.
            CachetierError: It cannot be brought.
        """
        shard = self._opened.shard
        while number not in self._there:
            known = len(self._there)
            try:
                self._there = self._restore.arrived(
                    shard.run, shard.step, shard.name, shard.version, known, self._timeout_seconds
                )
            except NotFoundError:
                self._reopen(shard)
                return
            if len(self._there) <= known:
                raise DeadlineError(f"no block of shard {shard.name} came", **shard.context)

    def _reopen(self, shard: Shard) -> None:
        reopened = self._restore.open(shard.run, shard.step, shard.name, self._timeout_seconds)
        if reopened.shard.content != shard.content:
            if reopened.descriptor is not None:
                os.close(reopened.descriptor)
            raise _damaged(shard)
        self.close()
        self._opened = reopened


def _read(opened: Opened, number: int, block: memoryview) -> bool:
    """Fill ``block``; return False when the disk fails it, or it fails its digest."""
    start = number * BLOCK_BYTES
    length = min(BLOCK_BYTES, opened.shard.content.size_bytes - start)
    if opened.remote is not None:
        block[:length] = opened.remote.read(number)
        return True
    if opened.descriptor is None:
        assert opened.body is not None
        block[:length] = opened.body[start : start + length]
        return True
    try:
        count = os.preadv(opened.descriptor, [block[:length]], start)
    except OSError:
        return False
    if not opened.arriving:  # who writes it does
        # What was read once is not read again: leave the page cache to training.
        os.posix_fadvise(opened.descriptor, start, length, os.POSIX_FADV_DONTNEED)
    whole = count == length
    return whole and digests.digest_of(block[:length]) == opened.shard.content.block_digests[number]


def _damaged(shard: Shard) -> IntegrityError:
    return IntegrityError(
        f"the local bytes of shard {shard.name} fail their digest", **shard.context
    )
