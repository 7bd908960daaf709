"""The pages of a run and of a step: a table of steps, and when each rank was how far with one.

A rank is *late* when it takes longer than the others for what they have done: with its seal by more
than half of what the median rank took, with its upload by more than one and a half times of that,
as the drain goes from rank to rank; and by more than a second. One that has not done it yet takes
until now.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from cachetier_client.bucket_format.publication import missing_ranks
from cachetier_client.units import counted, shown_size, shown_span

from cachetier.local.catalog.figures import RankProgress, ShardCount, ShardPlace
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.levels import Level
from cachetier.model.lifecycle import OPEN_SAVES, PartState, ShardState
from cachetier.status.view import BAD, GOOD, NEAR, Table, TableCell
from cachetier.status.words import are, unchecked
from cachetier.status.words import ranks as ranks_named
from cachetier.steps.views import StepView

STEPS_SHOWN = 100
ELSEWHERE_SHOWN = 20  # each is a request to the bucket
TONES = {
    "published": GOOD,
    "replicated": GOOD,
    "superseded": NEAR,
    "damaged": BAD,
    "aborted": BAD,
    "refused": BAD,
}
LATE_SECONDS = 1.0
RANKS_SHOWN = 64
LATE_NAMED = 5


def step_table(views: Sequence[StepView], now: float) -> Table:
    """Return a row for each step, the newest first; green is what is here, and S3 confirms."""
    rows = [_row(view, now) for view in sorted(views, key=lambda view: -view.step)]
    titles = "<step", "<state", "<levels", "age", "ranks", "shards", "size", "<sent"
    is_sent = not any(view.dirty_bytes for view in views)
    return Table(titles, rows).without("sent" if is_sent else "")


def _row(view: StepView, now: float) -> tuple[TableCell, ...]:
    is_published = Level.REPLICATED in view.levels  # nothing is before every rank has sealed
    sealed = view.world_size if is_published else len(view.ranks)
    unsure = unchecked(view.state, view.checked_at, now)
    implied = Level.REPLICATED if Level.DURABLE in view.levels else None
    levels = ", ".join(level for level in view.levels if level != implied) or "-"
    tone, is_safe = TONES.get(view.state, ""), view.has_reached(Level.MEMORY) and not unsure
    notes = filter(None, (levels, unsure, "pinned" if view.pinned else ""))
    return (
        TableCell(str(view.step), path=(view.run, view.step)),
        TableCell(view.state.replace("_", " "), tone if is_safe or tone != GOOD else ""),
        TableCell(" · ".join(notes)),
        TableCell(shown_span(max(0.0, now - view.started_at))),
        TableCell(f"{sealed}/{view.world_size}"),
        TableCell(str(view.shards)),
        TableCell(shown_size(view.size_bytes)),
        TableCell("", share=1 - min(1.0, view.dirty_bytes / max(1, view.size_bytes))),
    )


# --- the timeline of a step ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankTime:
    """A rank's way, in seconds since the save began; None: not yet.

    ``late`` says what it is late with, or is empty.
    """

    rank: int
    shards: int
    size_bytes: int
    uploaded_share: float
    damaged: int
    first: float | None
    acknowledged: float | None
    sealed: float | None
    uploaded: float | None
    late: str = ""


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """All ranks that are known here, the late ones first; ``seconds`` is how far the axis goes.

    ``missing`` lists the ranks of which nothing came here, while the step waits for them.
    """

    seconds: float
    published: float | None
    ranks: tuple[RankTime, ...]
    more: int
    missing: str
    findings: tuple[str, ...]

    def x(self, seconds: float | None) -> float:
        """Return where an instant is on an axis of 1000."""
        return round(1000 * min(1.0, (seconds or 0.0) / self.seconds), 1)


def saved_here(
    save: Save, parts: Sequence[RankPart], ranks: Sequence[RankProgress]
) -> list[RankProgress]:
    """Return the ranks that saved on this node: what it restored of others has no history here."""
    if save.state in OPEN_SAVES:
        return list(ranks)
    own = {part.rank for part in parts}
    return [each for each in ranks if each.rank in own]


def timeline_of(
    save: Save, parts: Sequence[RankPart], progress: Sequence[RankProgress], now: float
) -> StepTimeline:
    """Return the timeline of a save; pure."""
    by_rank = {each.rank: each for each in progress}
    known = {part.rank: part for part in parts}
    ranks = sorted(by_rank.keys() | known.keys())
    times = [_time(save, rank, known.get(rank), by_rank.get(rank)) for rank in ranks]
    elapsed = max(0.0, now - save.started_at)
    published = _since(save, save.published_at)
    ended = published if published is not None else _rounded(elapsed)
    missing = ranks_named(missing_ranks(save.world_size, ranks)) if published is None else ""
    ranked = _with_lateness(times, elapsed)
    ranked.sort(key=lambda each: (not each.late, each.rank))
    marks = [time for each in times for time in (each.uploaded, each.acknowledged) if time]
    return StepTimeline(
        seconds=max(0.001, ended, *marks),
        published=published,
        ranks=tuple(ranked[:RANKS_SHOWN]),
        more=max(0, len(ranked) - RANKS_SHOWN),
        missing=missing,
        findings=tuple(_findings(save, ranked, parts, missing)),
    )


def _time(save: Save, rank: int, part: RankPart | None, seen: RankProgress | None) -> RankTime:
    sealed = part is not None and part.state is PartState.SEALED
    if seen is None:
        at = _since(save, part.sealed_at) if part is not None else None
        return RankTime(rank, 0, 0, 1.0, 0, None, at, at if sealed else None, at)
    whole = seen.uploaded == seen.shards
    return RankTime(
        rank=rank,
        shards=seen.shards,
        size_bytes=seen.size_bytes,
        uploaded_share=seen.uploaded_bytes / seen.size_bytes if seen.size_bytes else float(whole),
        damaged=seen.damaged,
        first=_since(save, seen.first_at),
        acknowledged=_since(save, seen.last_at),
        sealed=_since(save, part.sealed_at) if part is not None and sealed else None,
        uploaded=_since(save, seen.uploaded_at) if whole else None,
    )


def _rounded(seconds: float) -> float:
    """Return the end of an axis that grows: in steps, so that it is not drawn again each second."""
    step = 10.0 ** math.floor(math.log10(max(1.0, seconds))) / 4
    return step * math.ceil(seconds / step)


def _since(save: Save, at: float | None) -> float | None:
    return None if at is None else max(0.0, at - save.started_at)


# Each milestone, by what a rank is late with, and the share of the median's time that is late; the
# first that it is late with is told.
_MILESTONES: Sequence[tuple[str, float, Callable[[RankTime], float | None]]] = (
    ("seal", 0.5, lambda rank: rank.sealed),
    ("upload", 1.5, lambda rank: rank.uploaded),
)


def _with_lateness(times: Sequence[RankTime], elapsed: float) -> list[RankTime]:
    found = list(times)
    for what, share, of in _MILESTONES:
        done = [time for each in times if (time := of(each)) is not None]
        if len(times) < 2 or 2 * len(done) < len(times):
            continue  # most are not there yet: nobody is late
        usual = median(done)
        allowed = usual + max(LATE_SECONDS, share * usual)
        for at, each in enumerate(found):
            time = of(each)
            took = elapsed if time is None else time
            if took > allowed and not each.late:
                open_end = "not yet, " if time is None else ""
                word = f"{what}: {open_end}{shown_span(took - usual)} behind the median"
                found[at] = replace(each, late=word)
    return found


def _findings(
    save: Save, ranks: Sequence[RankTime], parts: Sequence[RankPart], missing: str
) -> list[str]:
    """Say in sentences who is late, who is missing, and what publication waits for."""
    late = [each for each in ranks if each.late]
    found = [f"Rank {each.rank} is late with its {each.late}." for each in late[:LATE_NAMED]]
    if len(late) > LATE_NAMED:
        found.append(f"{are(len(late) - LATE_NAMED, 'more rank')} late.")
    aborted = [part.rank for part in parts if part.state is PartState.ABORTED]
    if aborted:
        found.append(f"Aborted: {counted(len(aborted), 'rank')}, the first is {aborted[0]}.")
    if save.published_at is not None:
        return found
    unsealed = [each.rank for each in ranks if each.sealed is None]
    if unsealed:
        found.append(f"It waits for {ranks_named(unsealed)} of this node to seal.")
    if missing:
        found.append(f"Nothing of {missing} came here: they save on other nodes, or never came.")
    if not unsealed and all(each.uploaded is not None for each in ranks):
        what = "them" if missing else "its turn"
        found.append(f"Everything of this node is in S3; publication waits for {what}.")
    return found


# --- the grid of a step ---------------------------------------------------------------------------

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
