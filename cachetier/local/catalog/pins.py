"""Pins: which steps may not leave the node."""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from cachetier.errors import NotFoundError, PinnedError
from cachetier.local.catalog import queries

_HERE = "(shards.file_id IS NOT NULL OR shards.inline)"


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned step: ``local_bytes`` of its ``size_bytes`` lie on this node."""

    run: str
    step: int
    pinned_at: float
    shards: int
    local_shards: int
    size_bytes: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class PinTotals:
    """What pins hold on this node."""

    steps: int = 0
    size_bytes: int = 0


def is_pinned(sql: apsw.Connection, run: str, step: int) -> bool:
    query = "SELECT 1 FROM pins WHERE run = ? AND step = ?"
    return sql.execute(query, (run, step)).fetchone() is not None


def refuse_pinned(sql: apsw.Connection, run: str, step: int) -> None:
    """Raise PinnedError if a step is pinned."""
    if is_pinned(sql, run, step):
        raise PinnedError(f"step {step} of {run} is pinned", run=run, step=step)


def pins(sql: apsw.Connection) -> list[Pin]:
    """Return the pinned steps, with the shards of those of their saves that are not deleted."""
    query = (
        "SELECT pins.run, pins.step, pinned_at, count(version), "
        f"coalesce(sum({_HERE}), 0), coalesce(sum(size_bytes), 0), "
        f"coalesce(sum(iif({_HERE}, size_bytes, 0)), 0) FROM pins "
        "LEFT JOIN saves ON saves.run = pins.run AND saves.step = pins.step "
        "AND saves.state NOT IN ('superseded', 'refused', 'deleted') "
        "LEFT JOIN shards ON shards.save = saves.number "
        "GROUP BY pins.run, pins.step ORDER BY pins.run, pins.step"
    )
    return [Pin(*row) for row in sql.execute(query)]


def totals(sql: apsw.Connection) -> PinTotals:
    """Return how many steps are pinned, and their bytes on this node."""
    found = pins(sql)
    return PinTotals(len(found), sum(pin.local_bytes for pin in found))


def pin(sql: apsw.Connection, run: str, step: int, now: float) -> Pin:
    """Pin a step and return what is here of it; one that is pinned stays so, since it was.

    Raises:
        NotFoundError: This node has no such step that readers could see.
    """
    if queries.shown_save(sql, run, step) is None:
        raise NotFoundError(
            f"this node has no step {step} of {run}",
            hint="Pin a step that `cachetier ls RUN` shows; bring one that only S3 has here first: "
            "cachetier restore RUN STEP.",
            run=run,
            step=step,
        )
    sql.execute("INSERT OR IGNORE INTO pins VALUES (?, ?, ?)", (run, step, now))
    return next(p for p in pins(sql) if (p.run, p.step) == (run, step))


def unpin(sql: apsw.Connection, run: str, step: int) -> bool:
    """Let a step go again; return whether it was pinned."""
    pinned = is_pinned(sql, run, step)
    sql.execute("DELETE FROM pins WHERE run = ? AND step = ?", (run, step))
    return pinned
