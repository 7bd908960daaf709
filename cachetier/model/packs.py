"""The rule of which small shards of a rank go together as one pack.

A pack is the raw bytes of its members, one after the other, in the order of their commits. Its name
holds its digest, so a pack that is written again, after a crash or a lost reply, is the same
object.

Source: docs/compression.md, "Packs".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from cachetier.model.shard import Shard

PACKED_UP_TO_BYTES = 1 << 20
PACK_BYTES = 32 << 20
# A pack is recorded in one transaction, and its members are opened one by one.
PACK_MEMBERS = 2048
GAP_BYTES = 1 << 20  # reading more than this for nothing costs more time than another request


class Member(NamedTuple):
    """A shard as a pack takes it, or a piece of an object."""

    version: int
    name: str
    size_bytes: int
    digest: int

    @classmethod
    def of(cls, shard: Shard) -> Member:
        content = shard.content
        return cls(shard.version, shard.name, content.size_bytes, content.digest)


@dataclass(frozen=True, slots=True)
class Packable:
    """The small dirty shards of a sealed rank: those of its next pack, and since when they wait."""

    rank: int
    size_bytes: int
    committed_at: float


def is_packable(size_bytes: int) -> bool:
    """Return whether a shard of ``size_bytes`` may travel with others."""
    return size_bytes <= PACKED_UP_TO_BYTES


def next_pack(members: Iterable[Member]) -> list[Member]:
    """Return the members of the next pack: from the first on, as many as one pack holds."""
    chosen: list[Member] = []
    size_bytes = 0
    for member in members:
        size_bytes += member.size_bytes
        if chosen and (size_bytes > PACK_BYTES or len(chosen) == PACK_MEMBERS):
            break
        chosen.append(member)
    return chosen


class PackedExtent(NamedTuple):
    """Where one evicted member of a pack lies."""

    version: int
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


def read_along(
    extents: Iterable[PackedExtent], asked: PackedExtent, window_bytes: int, limit: int
) -> list[PackedExtent]:
    """Return which neighbours of ``asked`` to read with it, in one range of ``window_bytes``.

    First those behind it, as most readers go on there, then those before it; nearest first, and
    up to ``limit`` of them. The range has no gap of more than ``GAP_BYTES``: those on its other
    side are left to a read of their own.
    """
    others = sorted((each for each in extents if each.version != asked.version), key=_by_start)
    behind = [each for each in others if each.start >= asked.start]
    before = [each for each in others if each.start < asked.start]
    start, end = asked.start, asked.end
    chosen: list[PackedExtent] = []
    for each in (*behind, *reversed(before)):
        wider = min(start, each.start), max(end, each.end)
        near = each.start - end <= GAP_BYTES and start - each.end <= GAP_BYTES
        if near and len(chosen) < limit and wider[1] - wider[0] <= window_bytes:
            start, end = wider
            chosen.append(each)
    return chosen


def _by_start(extent: PackedExtent) -> int:
    return extent.start
