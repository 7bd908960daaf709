"""A shard read as a stream, any part of it; every block is verified before it is given out."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cachetier_client import digests
from cachetier_client.aligned import Block
from cachetier_client.deadline import Deadline
from cachetier_client.digests import BLOCK_BYTES
from cachetier_client.transport import Source


class ShardReader(io.RawIOBase):
    """A readable, seekable binary stream over one shard.

    The block last read is kept, so small reads cost nothing; whole blocks go straight into the
    caller's memory. Each call may take the stream's ``timeout_seconds``. Not thread-safe.

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
    ) -> None:
        super().__init__()
        self.size_bytes = source.size_bytes
        self.digest = digests.to_hex(source.digest)
        self._source = source
        self._guard = guard
        self._deadline = deadline
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
            deadline = self._deadline()
            done = 0
            while done < len(into):
                done += self._read_some(into[done:], deadline)
        return done

    def readall(self) -> bytes:
        rest = bytearray(max(0, self.size_bytes - self._position))
        self.readinto(rest)
        return bytes(rest)

    def close(self) -> None:
        if not self.closed:
            self._source.close()
            self._block = None
        super().close()

    def _read_some(self, into: memoryview, deadline: Deadline) -> int:
        number, within = divmod(self._position, BLOCK_BYTES)
        size = min(BLOCK_BYTES, self.size_bytes - number * BLOCK_BYTES)
        count = min(size - within, len(into))
        if count == size and number != self._kept:
            self._source.read_block(number, into[:count], deadline)
        else:
            into[:count] = self._keep(number, size, deadline)[within : within + count]
        self._position += count
        return count

    def _keep(self, number: int, size: int, deadline: Deadline) -> memoryview:
        if self._block is None:
            self._block = Block()
        if number != self._kept:
            self._kept = -1
            self._source.read_block(number, self._block.view[:size], deadline)
            self._kept = number
        return self._block.view[:size]
