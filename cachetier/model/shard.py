"""The ids of a put, a shard's content, and the shard as cachetier remembers it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachetier.errors import InvalidRequestError
from cachetier.model import names
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState

BLOCK_BYTES = 4 << 20
INLINE_BYTES = 64 << 10
ELEMENT_SIZES = (2, 4, 8)
# S3 takes 10,000 parts, and a part is read into memory whole: 64 MiB of it at most.
SHARD_LIMIT_BYTES = 10_000 * (64 << 20)


def blocks_of(size_bytes: int) -> int:
    """Return how many blocks so many bytes begin."""
    return -(-size_bytes // BLOCK_BYTES)


def checked_element_size(value: object, size_bytes: int | None) -> int:
    """Return ``value`` if a shard of ``size_bytes`` (None: unknown yet) can have such elements.

    None, nobody having said, gives 0.

    Raises:
        InvalidRequestError: It cannot.
    """
    if value is None:
        return 0
    hint = "Give the bytes of one value (2 for bf16, 4 for fp32, 8 for fp64), or leave it out."
    if isinstance(value, bool) or not isinstance(value, int) or value not in ELEMENT_SIZES:
        shown = ascii(value)[:60]
        raise InvalidRequestError(f"element_size {shown} is none of 2, 4 and 8", hint=hint)
    if size_bytes is not None and size_bytes % value:
        raise InvalidRequestError(
            f"{size_bytes} bytes are not whole elements of {value}", hint=hint
        )
    return value


@dataclass(frozen=True, slots=True)
class SaveIds:
    """Who is saving: one rank's part of one save of one step. Check with ``checked``."""

    run: str
    step: int
    save_id: str
    rank: int = 0
    world_size: int = 1
    overwrite: bool = False

    def checked(self) -> SaveIds:
        """Return self, or raise InvalidNameError or InvalidRequestError."""
        names.checked_run(self.run)
        names.checked_step(self.step)
        names.checked_save_id(self.save_id)
        names.checked_ranks(self.rank, self.world_size)
        return self


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
