"""A shard read as a stream, any part of it; every block is verified before it is given out."""

from __future__ import annotations

import io
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cachetier_client.deadline import Deadline
from cachetier_client.io import digests
from cachetier_client.io.aligned import Block, copy_bytes
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.workers import Workers
from cachetier_client.streams.ranges import in_blocks
from cachetier_client.transport.base import Source


class ShardReader(io.RawIOBase):
    """A readable, seekable binary stream over one shard.

    The block last read in part is kept, so small reads cost nothing; whole blocks go straight into
    the caller's memory, those of a large read in several threads. Each call may take the stream's
    ``timeout_seconds``. Not thread-safe.

    Attributes:
        size_bytes: The shard's size.
        digest: Its CRC-64/NVME in hex.
    """

    mode = "rb"

    def __init__(
        self,
        source: Source,
        guard: Callable[[], AbstractContextManager[object]],
        deadline: Callable[[], Deadline],
        workers: Workers,
    ) -> None:
        super().__init__()
        self.size_bytes = source.size_bytes
        self.digest = digests.to_hex(source.digest)
        self._source = source
        self._guard = guard
        self._deadline = deadline
        self._workers = workers
        self._position = 0
        self._block: Block | None = None
        self._kept = -1  # the number of the block in it

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}
        if whence not in base or base[whence] + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence}")
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer``, or as much of it as the shard still has; return how much."""
        if self.closed:
            raise ValueError("the stream is closed")
        into = memoryview(buffer).cast("B")
        into = into[: max(0, self.size_bytes - self._position)]
        with self._guard():
            self._fill(into, self._deadline())
        self._position += len(into)
        return len(into)

    def readall(self) -> bytes:
        rest = io.BytesIO(bytes(max(0, self.size_bytes - self._position)))  # neither is copied
        try:
            with rest.getbuffer() as into:
                self.readinto(into)
        except BaseException as error:
            _let_views_go(error)
            raise
        return rest.getvalue()

    def close(self) -> None:
        if not self.closed:
            self._source.close()
            self._block = None
        super().close()

    def _fill(self, into: memoryview, deadline: Deadline) -> None:
        wanted = list(in_blocks(self._position, into))
        for number, start, piece in wanted:
            if number == self._kept:
                self._copy_kept(start, piece)
        unread = [each for each in wanted if each[0] != self._kept]

        def read(index: int) -> None:
            number, start, piece = unread[index]
            size = min(BLOCK_BYTES, self.size_bytes - number * BLOCK_BYTES)
            if len(piece) == size:
                self._source.read_block(number, piece, deadline)
            elif index == len(unread) - 1:  # where the next read goes on
                self._keep(number, size, deadline)
                self._copy_kept(start, piece)
            else:
                with self._workers.blocks.borrowed() as block:
                    self._source.read_block(number, block.view[:size], deadline)
                    copy_bytes(piece, block.view[start : start + len(piece)])

        self._workers.for_each(len(unread), read)

    def _keep(self, number: int, size: int, deadline: Deadline) -> None:
        if self._block is None:
            self._block = Block()
        self._kept = -1
        self._source.read_block(number, self._block.view[:size], deadline)
        self._kept = number

    def _copy_kept(self, start: int, into: memoryview) -> None:
        assert self._block is not None
        copy_bytes(into, self._block.view[start : start + len(into)])


def _let_views_go(error: BaseException | None) -> None:
    """Let no frame keep a view of the buffer that a read has failed to fill.

    Python 3.12.1 crashes, and 3.13 complains, where the collector finds a ``BytesIO`` with views.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
