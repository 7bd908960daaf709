"""The shard as cachetier remembers it, and the promise given for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachetier_client.bucket_format.stored import NO_FACTS, Content, ShardFacts

from cachetier.model.lifecycle import ShardState

INLINE_BYTES = 64 << 10
MEMORY = "f"  # the first digit of the id of a file in memory; on the disk it is 0


def in_memory(file_id: str | None) -> bool:
    """Return whether a data file lies in memory, where the loss of power takes it."""
    return file_id is not None and file_id.startswith(MEMORY)


@dataclass(frozen=True, slots=True)
class Shard:
    """One committed shard.

    ``version`` grows with every commit on a node and names the bytes for ever; ``save`` is the
    number of its save there. ``file_id`` names the data file; without one the bytes are in the
    catalog (``inline``), or only remote.
    """

    version: int
    save: int
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
    facts: ShardFacts = NO_FACTS

    @property
    def here(self) -> bool:
        """Return whether its bytes are on this node, be they sound or damaged."""
        return self.inline or self.file_id is not None

    @property
    def in_memory(self) -> bool:
        """Return whether its bytes on this node are in memory only."""
        return in_memory(self.file_id)

    @property
    def lacks_bytes(self) -> bool:
        """Return whether this node has no bytes of it that may be read."""
        return self.state in (ShardState.EVICTED, ShardState.QUARANTINED)

    @property
    def context(self) -> dict[str, Any]:
        """The ids that an error about it names."""
        return {"run": self.run, "step": self.step, "rank": self.rank, "name": self.name}
