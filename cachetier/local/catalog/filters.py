"""Filters for queries of dirty shards: packable ones, or all others.

The clauses look at columns of the index of dirty shards alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from cachetier.model.packs import PACKED_UP_TO_BYTES


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A condition on rows of ``shards``, and the values it takes."""

    clause: str = "TRUE"
    values: tuple[object, ...] = ()


ALL = ShardFilter()


def small_of(rank: int) -> ShardFilter:
    """Return the condition of shards of ``rank`` that may be packed."""
    return ShardFilter(f"shards.rank = ? AND shards.size_bytes <= {PACKED_UP_TO_BYTES}", (rank,))


def beside_small_of(ranks: Collection[int]) -> ShardFilter:
    """Return the condition of all other shards than those that ``ranks`` may pack."""
    clause = (
        f"NOT (shards.size_bytes <= {PACKED_UP_TO_BYTES} "
        "AND shards.rank IN (SELECT value FROM json_each(?)))"
    )
    return ShardFilter(clause, (json.dumps(sorted(ranks)),))
