"""The local bytes of a shard, as they are given to readers."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """The local bytes of a shard: a descriptor, which the receiver closes, or the bytes."""

    shard: Shard
    descriptor: int | None
    body: bytes | None

    def close(self) -> None:
        """Let go of the file, if it is one."""
        if self.descriptor is not None:
            os.close(self.descriptor)

    def looks_right(self) -> bool:
        """Check the size of a file, as its reader checks the blocks; or the digest of a body."""
        content = self.shard.content
        if self.descriptor is not None:
            return os.fstat(self.descriptor).st_size == content.size_bytes
        assert self.body is not None
        sized = len(self.body) == content.size_bytes
        return sized and digests.digest_of(self.body) == content.digest

    def reads_right(self) -> bool:
        """Read it to its end and check it all; a file that the disk cannot read is not right."""
        descriptor, digest_of = self.descriptor, digests.digest_of
        looks_right = self.looks_right()
        if descriptor is None or not looks_right:
            return looks_right
        try:
            return all(
                digest_of(os.pread(descriptor, BLOCK_BYTES, number * BLOCK_BYTES)) == expected
                for number, expected in enumerate(self.shard.content.block_digests)
            )
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
