"""Read a few verified blocks of a shard that is only remote, without filling all of it.

Whoever wants a tensor out of a large shard should not wait for the rest of it, nor push other
shards out of the cache. But blocks read so are not kept, and cost a request each; so a shard of
which a quarter has been read in this way is restored after all. No reader has to know beforehand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from cachetier.errors import IntegrityError
from cachetier.model.shard import Shard
from cachetier.restore.remote_shard import RemoteShard
from cachetier.restore.replica_choice import Sources

RESTORED_FROM = 0.25
REMEMBERED_SHARDS = 4096


class RangeReads:
    """Remembers how much of which shard was read in ranges. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_bytes: dict[int, int] = {}  # by version; those read last at the end

    def leave_remote(self, shard: Shard, blocks: int) -> bool:
        """Return whether to read so many more blocks of ``shard`` without restoring it."""
        with self._lock:
            read_bytes = self._read_bytes.pop(shard.version, 0) + blocks * BLOCK_BYTES
            if read_bytes >= shard.content.size_bytes * RESTORED_FROM:
                return False
            self._read_bytes[shard.version] = read_bytes
            if len(self._read_bytes) > REMEMBERED_SHARDS:
                del self._read_bytes[next(iter(self._read_bytes))]
        return True


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """A shard read block by block from the nearest sound copy; nothing is kept here."""

    shard: Shard
    sources: Sources
    on_read: Callable[[int], None] = lambda _size_bytes: None

    def read(self, number: int) -> bytes | bytearray | memoryview:
        """Return one block, verified.

        Raises:
            IntegrityError, NotFoundError: There is no sound remote copy.
            RemoteError: None that can be reached.
        """
        shard = self.shard
        if not 0 <= number < blocks_of(shard.content.size_bytes):
            raise IndexError(f"shard {shard.name} has no block {number}")

        def of_copy(copy: RemoteShard) -> bytes | bytearray | memoryview:
            ((_offset, block),) = copy.read(copy.blocks(number, 1))
            return block

        try:
            block = self.sources.first(shard, of_copy)
        except IntegrityError as error:
            raise IntegrityError(error.message, **shard.context) from error
        self.on_read(len(block))
        return block
