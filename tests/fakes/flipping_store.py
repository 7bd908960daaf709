"""An object store on whose way bits flip."""

from __future__ import annotations

import random

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart

from cachetier.remote.base import (
    Body,
    Condition,
    Headers,
    Into,
    Metadata,
    ObjectStore,
    deliver,
    room_of,
)
from cachetier.remote.wrapped import WrappedObjectStore
from tests.fakes.memory_store import bytes_of


def flipped(body: bytes | memoryview, chance: random.Random) -> bytes:
    """Return ``body`` with one bit of it flipped."""
    changed = bytearray(body)
    at = chance.randrange(8 * len(changed))
    changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


class FlippingObjectStore(WrappedObjectStore):
    """Forwards to ``store``; of the body that moves when ``wait`` has come to 0, one bit flips."""

    def __init__(self, store: ObjectStore, chance: random.Random) -> None:
        super().__init__(store)
        self._chance = chance
        self.wait: int | None = None  # None: nothing flips
        self.flips = 0

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        return self._store.put(
            key,
            self._moved(body),
            digest=digest,
            metadata=metadata,
            condition=condition,
            headers=headers,
        )

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        return self._store.upload_part(key, upload_id, number, self._moved(body), digest=digest)

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        view = memoryview(bytearray(room_of(into)))
        self._store.read_into(key, start, view, etag)
        deliver([self._moved(view)], into)

    def _moved(self, body: Body) -> bytes | memoryview:
        moved = bytes_of(body)
        if self.wait is None or not moved:
            return moved
        self.wait -= 1
        if self.wait >= 0:
            return moved
        self.wait, self.flips = None, self.flips + 1
        return flipped(moved, self._chance)
