"""Reads of the catalog that concern pins: which steps may not leave the node."""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from cachetier.errors import PinnedError

# A condition on rows of ``saves``.
NOT_PINNED = "NOT EXISTS (SELECT 1 FROM pins WHERE pins.run = saves.run AND pins.step = saves.step)"
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


def pinned_steps(sql: apsw.Connection) -> int:
    return int(sql.execute("SELECT count(*) FROM pins").get)


def totals(sql: apsw.Connection) -> PinTotals:
    """Return how many steps are pinned, and their bytes on this node."""
    found = pins(sql)
    return PinTotals(len(found), sum(pin.local_bytes for pin in found))
