"""What tests of block copies share: shards of which few blocks change, and what was sent."""

from __future__ import annotations

from collections.abc import Iterable

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.remote.base import Body, CopyRange, Headers, Metadata, size_of
from tests.fakes.bodies import kept, noise
from tests.fakes.faulty_store import FaultyObjectStore
from tests.integration.drain_node import Node

RUN = "run"
FIRST, SECOND = SaveIds(RUN, 1, "save-1"), SaveIds(RUN, 2, "save-2")
NAME = "weights"
BLOCKS = 12
CHANGED = (3, 8)  # with so many unchanged before, between and behind that all are copied
SIZE_BYTES = BLOCKS * BLOCK_BYTES


class CountingStore(FaultyObjectStore):
    """Also counts the bytes that bodies carry, and those that are copied."""

    sent_bytes = 0
    copied_bytes = 0

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: object = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        self.sent_bytes += size_of(body)
        return super().put(
            key,
            body,
            digest=digest,
            metadata=metadata,
            condition=condition,  # type: ignore[arg-type]
            headers=headers,
        )

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        self.sent_bytes += size_of(body)
        return super().upload_part(key, upload_id, number, body, digest=digest)

    def copy_part(
        self, key: str, upload_id: str, number: int, source: CopyRange, *, digest: int
    ) -> UploadedPart:
        part = super().copy_part(key, upload_id, number, source, digest=digest)
        self.copied_bytes += part.size_bytes
        return part

    def forget(self) -> None:
        """Count from zero."""
        self.sent_bytes = self.copied_bytes = 0
        self.calls.clear()


def old() -> bytes:
    """Return what the first step holds."""
    return noise(SIZE_BYTES)


@kept
def new() -> bytes:
    """Return what the second step holds."""
    return changed(old())


def changed(data: bytes, blocks: Iterable[int] = CHANGED, seed: int = 1) -> bytes:
    """Return ``data`` with one byte in each of ``blocks`` changed."""
    new = bytearray(data)
    for block in blocks:
        new[block * BLOCK_BYTES + seed] ^= 0x5A
    return bytes(new)


def put_step(node: Node, ids: SaveIds, data: bytes, name: str = NAME) -> None:
    node.put(ids, name, data)
    node.seal(ids)
