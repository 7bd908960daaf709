"""Write a body's blocks into a data file, past the page cache, and digest each on the way."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial

from cachetier_client.bucket_format.stored import Content
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.doors.http.pools import Pools
from cachetier.ingest.admission import GROWTH_BYTES
from cachetier.ingest.shares import ShareAwaitedError
from cachetier.local.files.data_files import ALIGNMENT_BYTES, write_all
from cachetier.local.store import Staged


class BlockDigests:
    """The digests of the blocks that came, in whatever order they were taken."""

    def __init__(self) -> None:
        self._by_number: dict[int, int] = {}

    def add(self, block: memoryview, number: int) -> None:
        self._by_number[number] = digests.digest_of(block)

    def content(self, size_bytes: int) -> Content:
        blocks = tuple(self._by_number[number] for number in range(len(self._by_number)))
        return Content(size_bytes, digests.combine(blocks, size_bytes), blocks)


class FileSink:
    """Blocks on their way into a data file, two at a time."""

    depth = 2

    def __init__(
        self,
        stage: Staged,
        extend: Callable[[Staged, int, float], int],
        pools: Pools,
        timeout_seconds: float,
        check_size: Callable[[int], None],
    ) -> None:
        """Write to ``stage``; ``check_size`` raises for more bytes than were declared.

        ``extend`` reserves more room for it, see ``Ingest.extend``.
        """
        assert stage.writer is not None
        self._stage = stage
        self._writer = stage.writer
        self._extend = extend
        self._pools = pools
        self._timeout_seconds = timeout_seconds
        self._check_size = check_size
        self._digests = BlockDigests()
        self._direct = _went_direct(stage.writer)
        self.content = self._digests.content

    async def expect(self, total_bytes: int) -> None:
        """Refuse more than was declared; reserve more where nothing was."""
        self._check_size(total_bytes)
        if total_bytes > self._stage.reserved_bytes:
            reserve = self._stage.reserved_bytes + GROWTH_BYTES
            extend = partial(self._pools.patient, self._extend, self._stage, reserve)
            try:
                await self._pools.whole(extend(self._timeout_seconds))
            except ShareAwaitedError:  # nobody holds a place for uploads until then
                await self._pools.whole(extend(0.0))

    def write(self, block: memoryview, number: int, length: int) -> None:
        self._digests.add(block[:length], number)
        aligned = -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES if self._direct else length
        if aligned > length:
            block[length:aligned] = bytes(aligned - length)
        try:
            write_all(self._writer, block[:aligned], number * BLOCK_BYTES)
        except OSError as error:
            raise self._stage.refused_by_disk(error) from error

    async def cut(self, size_bytes: int) -> None:
        """Cut off what aligned writes added behind the bytes."""
        await self._pools.whole(self._pools.quick(os.ftruncate, self._writer, size_bytes))


def _went_direct(descriptor: int) -> bool:
    """Switch the page cache off for ``descriptor``; return whether the disk took it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return False
    return True
