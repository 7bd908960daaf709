"""The file that a shard comes into, range by range, from many threads."""

from __future__ import annotations

import os

from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.local.files.data_files import write_all
from cachetier.restore.arrivals import Arriving
from cachetier.restore.link import Link


class Filling:
    """Writes each block where it belongs, and tells the readers that follow. Thread-safe."""

    def __init__(
        self, writer: int, link: Link, arriving: Arriving | None = None, *, keep: bool = True
    ) -> None:
        """Write what comes by ``link`` to the descriptor ``writer``; to the disk if it is kept."""
        self.descriptor = writer
        self._arriving = arriving
        self._keep = keep
        self._writing = link.writing()

    def write(self, piece: bytes | bytearray | memoryview, offset: int) -> None:
        """Write bytes of one block; not over a block that has come, which somebody may read."""
        if self._arriving is None or not self._arriving.has(offset // BLOCK_BYTES):
            with self._writing:
                write_all(self.descriptor, memoryview(piece), offset)

    def came(self, block: int) -> None:
        """A block is there, and sound."""
        if self._arriving is not None:  # who reads along goes first, and the disk comes behind
            self._arriving.came(block)
        elif self._keep:
            # Begins to write it out, so that the sync at the end has little left to wait for, and
            # training keeps its page cache.
            os.posix_fadvise(
                self.descriptor, block * BLOCK_BYTES, BLOCK_BYTES, os.POSIX_FADV_DONTNEED
            )

    def cut(self, size_bytes: int) -> None:
        """Give the file its size, once all has come."""
        os.ftruncate(self.descriptor, size_bytes)
