"""Check whether local bytes are still those that were committed."""

from __future__ import annotations

import errno
import os

from cachetier_client.io import digests

from cachetier.local.store import LocalCopy
from cachetier.model.shard import BLOCK_BYTES, Shard


def close(copy: LocalCopy) -> None:
    """Let go of the copy's file, if it is one."""
    if copy.descriptor is not None:
        os.close(copy.descriptor)


def looks_right(copy: LocalCopy) -> bool:
    """Check the size of a file, as its reader checks the blocks; or the digest of a body."""
    content = copy.shard.content
    if copy.descriptor is not None:
        return os.fstat(copy.descriptor).st_size == content.size_bytes
    assert copy.body is not None
    return len(copy.body) == content.size_bytes and digests.digest_of(copy.body) == content.digest


def reads_right(copy: LocalCopy) -> bool:
    """Read a copy to its end and check it all; a file that the disk cannot read is not right."""
    if not looks_right(copy):
        return False
    try:
        return copy.descriptor is None or _blocks_match(copy.descriptor, copy.shard)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False


def _blocks_match(descriptor: int, shard: Shard) -> bool:
    for number, expected in enumerate(shard.content.block_digests):
        block = os.pread(descriptor, BLOCK_BYTES, number * BLOCK_BYTES)
        if digests.digest_of(block) != expected:
            return False
    return True
