"""Read local bytes of shards, without any checking."""

from __future__ import annotations

import os

from cachetier_client.io.digests import blocks_of

from cachetier.local.store import Store
from cachetier.model.shard import Shard
from cachetier.restore.restore import Opened


def whole(descriptor: int) -> bytes:
    """Read a file from its beginning, and close it."""
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def bytes_of_opened(opened: Opened) -> bytes:
    """Return what was opened, from wherever it is to be read."""
    if opened.descriptor is not None:
        return whole(opened.descriptor)
    if opened.body is not None:
        return opened.body
    assert opened.remote is not None
    blocks = range(blocks_of(opened.shard.content.size_bytes))
    return b"".join(opened.remote.read(number) for number in blocks)


def bytes_of(store: Store, shard: Shard) -> bytes | None:
    """Return the local bytes of ``shard``, or None when there are none."""
    try:
        copy = store.local_copy(shard)
    except FileNotFoundError:
        return None
    if copy is None:
        return None
    return copy.body if copy.descriptor is None else whole(copy.descriptor)
