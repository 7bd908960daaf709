"""When an object counts as verified: the store itself vouches for its bytes, or we read them back.

What a write answered is never enough, and metadata only says what its writer believed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from cachetier_client.digests import digest_of

from cachetier.remote.base import ObjectInfo, ObjectStore

RANGE_BYTES = 16 << 20

Lend = Callable[[int], AbstractContextManager[memoryview]]


def is_verified(
    store: ObjectStore, info: ObjectInfo, size_bytes: int, digest: int, lend: Lend
) -> bool:
    """Return whether the object that HEAD found, ``info``, has exactly these bytes.

    Args:
        store: Where the object is.
        info: What ``head`` said of it.
        size_bytes: What it must have.
        digest: What it must have.
        lend: Lends a buffer to read back into, where the store keeps no digests.
    """
    if info.size_bytes != size_bytes:
        return False
    if store.keeps_digests:
        return info.digest == digest
    return _digest_read_back(store, info.key, size_bytes, lend) == digest


def _digest_read_back(store: ObjectStore, key: str, size_bytes: int, lend: Lend) -> int:
    digest = 0
    with lend(min(RANGE_BYTES, size_bytes)) as buffer:
        for start in range(0, size_bytes, RANGE_BYTES):
            view = buffer[: min(RANGE_BYTES, size_bytes - start)]
            store.read_into(key, start, view)
            digest = digest_of(view, digest)
    return digest
