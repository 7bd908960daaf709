"""Shards in memory, for tests of what reads, compresses and sends them."""

from __future__ import annotations

from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.carriers.checked_file import DamagedError
from cachetier.drain.upload.source import Lend
from cachetier.remote.base import Body

NOISE_BYTES = 6 * BLOCK_BYTES + 11


class Memory:
    """A shard in memory; ``damaged`` names a block that fails its digest."""

    def __init__(self, data: bytes, damaged: int = -1) -> None:
        self._data = data
        self._damaged = damaged

    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        if part.first_block == self._damaged:
            raise DamagedError("planned")
        buffer[: part.size_bytes] = self._data[part.start : part.start + part.size_bytes]
        view = buffer[: part.size_bytes]
        return view, digest_of(view)

    def stream(self, part: UploadPartRange, _lend: Lend) -> tuple[Body, int]:
        return self.read(part, memoryview(bytearray(part.size_bytes)))
