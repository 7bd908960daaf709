"""Shards in memory, for tests of what reads, compresses and sends them."""

from __future__ import annotations

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import UploadedPart, UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.drain.upload.source import DamagedError, Lend
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


class Recorded:
    """What is remembered of an upload from one drain to the next."""

    def __init__(self) -> None:
        self.gone()

    def parts(self) -> list[UploadedPart]:
        return sorted(self.sent, key=lambda sent: sent.number)

    def begun(self, upload_id: str, part_bytes: int, codec: Codec, element_size: int = 0) -> None:
        self.upload_id: str | None = upload_id
        self.part_bytes: int | None = part_bytes
        self.codec, self.element_size = codec, element_size
        self.sent: list[UploadedPart] = []

    def part_done(self, part: UploadedPart) -> None:
        self.sent.append(part)

    def flush(self) -> None:
        """Nothing to do."""

    def gone(self) -> None:
        self.begun("", 0, Codec.RAW)
        self.upload_id = self.part_bytes = None
