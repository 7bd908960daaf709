"""The grid of a step: ranks down, their shards across, in lines of which only some are shown.

A rank with more shards than a line holds has several, so a page of so many lines has a bounded
number of cells, whatever the step is made of.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cachetier_client.units import shown_size, shown_span

from cachetier.local.catalog.figures import RankProgress, ShardCount, ShardPlace
from cachetier.model.lifecycle import ShardState

LINE_CELLS = 48
ROWS_LIMIT = 80

# By level: what the legend calls it. The order is that of the legend.
LEVELS = {
    "local": "on this node only",
    "uploading": "on its way to S3",
    "replicated": "at a replica too",
    "durable": "in S3 and here",
    "remote": "in S3, not here any more",
    "damaged": "damaged here",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One shard; ``title`` says all of it in a line."""

    version: int
    level: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A part of a rank's shards; ``opens``: the first of the rank's lines.

    ``age``: of its newest shard. A cell says an instant instead, so that it is the same at the next
    look, and the page draws only the lines that changed.
    """

    number: int
    rank: int
    opens: bool
    cells: tuple[Cell, ...] = ()
    age: str = ""


@dataclass(frozen=True, slots=True)
class GridWindow:
    """Which lines are looked at, and which shards these need, by rank and arrival."""

    first: int
    total: int
    lines: tuple[Line, ...]
    counts: tuple[int, ...]
    start: int

    @property
    def shards(self) -> int:
        return sum(self.counts)


def window_of(ranks: Sequence[RankProgress], first: int, rows: int) -> GridWindow:
    """Return ``rows`` lines from the ``first`` on, both cut down to what there is."""
    lines = [
        (rank.rank, begin, min(LINE_CELLS, rank.shards - begin))
        for rank in ranks
        for begin in range(0, rank.shards, LINE_CELLS)
    ]
    rows = max(1, min(rows, ROWS_LIMIT))
    first = max(0, min(first, len(lines) - rows))
    shown = lines[first : first + rows]
    return GridWindow(
        first=first,
        total=len(lines),
        lines=tuple(
            Line(first + at, rank, begin == 0) for at, (rank, begin, _) in enumerate(shown)
        ),
        counts=tuple(count for _, _, count in shown),
        start=sum(count for _, _, count in lines[:first]),
    )


def filled(
    window: GridWindow, shards: Sequence[ShardPlace], uploading: Collection[str], now: float
) -> tuple[Line, ...]:
    """Return the lines of ``window`` with their cells; ``uploading`` names what is on its way."""
    found, at = [], 0
    for line, count in zip(window.lines, window.counts, strict=True):
        shown = shards[at : at + count]
        cells = tuple(_cell(shard, uploading) for shard in shown)
        newest = max((shard.committed_at for shard in shown), default=now)
        found.append(replace(line, cells=cells, age=shown_span(max(0.0, now - newest))))
        at += count
    return tuple(found)


def counts_of(shards: Sequence[ShardCount]) -> dict[str, int]:
    """Return how many shards are at each level; what is on its way counts where it is."""
    found = dict.fromkeys(LEVELS, 0)
    for each in shards:
        found[_level(each.state, each.here, each.verified, each.copied)] += each.shards
    return {level: number for level, number in found.items() if number}


def level_of(shard: ShardPlace, uploading: Collection[str]) -> str:
    """Return the level of a shard: a key of ``LEVELS``."""
    verified = shard.verified_at is not None
    level = _level(shard.state, shard.here, verified, shard.copies > 0)
    return "uploading" if level == "local" and shard.name in uploading else level


def _level(state: ShardState, here: bool, verified: bool, copied: bool) -> str:
    if state is ShardState.QUARANTINED:
        return "damaged"
    if not here:
        return "remote"
    if verified:
        return "durable"
    return "replicated" if copied else "local"


def _cell(shard: ShardPlace, uploading: Collection[str]) -> Cell:
    level, at = level_of(shard, uploading), time.localtime(shard.committed_at)
    what = f"{shard.name}, {shown_size(shard.size_bytes)}: {LEVELS[level]}"
    return Cell(shard.version, level, f"{what}, acknowledged {time.strftime('%H:%M:%S', at)}")
