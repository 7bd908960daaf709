"""The ids of a put, a shard's content, and the shard as cachetier remembers it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachetier_client.io import digests

from cachetier.errors import DigestMismatchError, SizeMismatchError
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState

BLOCK_BYTES = 4 << 20
INLINE_BYTES = 64 << 10
# S3 takes 10,000 parts, and a part is read into memory whole: 64 MiB of it at most.
SHARD_LIMIT_BYTES = 10_000 * (64 << 20)


def blocks_of(size_bytes: int) -> int:
    """Return how many blocks so many bytes begin."""
    return -(-size_bytes // BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a shard, described: size, digest of the whole, digest of each block.

    ``element_size``, 0 where nobody said, is a hint for compression: it changes no byte, and makes
    no other content.
    """

    size_bytes: int
    digest: int
    block_digests: tuple[int, ...]
    element_size: int = field(default=0, compare=False)

    def checked(self) -> Content:
        """Return self, or refuse digests of blocks that are not those of the whole.

        Raises:
            SizeMismatchError: They do not cover the size.
            DigestMismatchError: They do not combine to the digest.
        """
        blocks = blocks_of(self.size_bytes)
        if blocks != len(self.block_digests):
            raise SizeMismatchError(
                f"{self.size_bytes} bytes have {blocks} blocks, not {len(self.block_digests)}"
            )
        if digests.combine(self.block_digests, self.size_bytes) != self.digest:
            raise DigestMismatchError("the block digests do not combine to the shard's digest")
        return self


@dataclass(frozen=True, slots=True)
class Shard:
    """One committed shard.

    ``version`` grows with every commit on a node and names the bytes for ever. ``file_id`` names
    the data file; without one the bytes are in the catalog (``inline``), or only remote.
    """

    version: int
    run: str
    step: int
    save_id: str
    name: str
    rank: int
    content: Content
    state: ShardState
    file_id: str | None
    inline: bool
    committed_at: float


@dataclass(frozen=True, slots=True)
class Receipt:
    """The promise given for one shard."""

    run: str
    step: int
    name: str
    save_id: str
    size_bytes: int
    digest: int
    level: Level
