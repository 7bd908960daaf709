"""How much training would be lost with this node now: pure rules over what the catalog says.

A run is *exposed* while a save of it that is newer than its newest durable step is under way or
whole here. How long is counted from the instant the durable step's save began: a restart would go
on from there. A save that is stuck does not count, as no node could bring it back: it was not
sealed by all ranks here within ``PATIENCE_SECONDS``, or all of it is sent and other nodes keep it
waiting for as long. Such a save is *incomplete*, and is reported as that until a newer step of the
run is durable: then nobody misses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cachetier.levels import RUN_LIMIT, RunLevel
from cachetier.local.exposure_queries import DurableStep, OpenSave, Run

ACTIVE_SECONDS = 86_400.0
PATIENCE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Saves that are stuck, and how long ago the first of them began."""

    steps: int = 0
    oldest_seconds: float = 0.0


def is_incomplete(save: OpenSave, now: float) -> bool:
    """Return whether a save is stuck: for want of a rank here, or of another node."""
    if now - save.started_at <= PATIENCE_SECONDS:
        return False
    return save.sealed_at is None or (save.sent and not save.local_only)


def incomplete(
    saves: Iterable[OpenSave], durable: Mapping[str, DurableStep], now: float
) -> Incomplete:
    """Return what is stuck; nobody misses a save whose run has made a newer step durable."""
    stuck = (save for save in saves if is_incomplete(save, now))
    ages = [now - save.started_at for save in stuck if _is_newer(save, durable.get(save.run))]
    return Incomplete(len(ages), max(ages, default=0.0))


def run_levels(
    runs: Iterable[Run],
    durable: Mapping[str, DurableStep],
    saves: Sequence[OpenSave],
    dirty_bytes: Mapping[str, int],
    now: float,
) -> tuple[RunLevel, ...]:
    """Return the levels of at most ``RUN_LIMIT`` runs: the most exposed, then the newest.

    Args:
        runs: Those that are active, or have something here that is not durable.
        durable: The durable step of each that has one.
        saves: All open saves.
        dirty_bytes: By run; 0 where it has none.
        now: UTC seconds.
    """
    by_run: dict[str, list[OpenSave]] = {}
    for save in saves:
        by_run.setdefault(save.run, []).append(save)
    levels = [
        (run, _level(run, durable.get(run.name), by_run.get(run.name, ()), dirty_bytes, now))
        for run in runs
    ]
    levels.sort(key=lambda each: (-each[1].exposure_seconds, -each[0].newest_at, each[0].name))
    return tuple(level for _, level in levels[:RUN_LIMIT])


def _level(
    run: Run,
    durable: DurableStep | None,
    saves: Sequence[OpenSave],
    dirty_bytes: Mapping[str, int],
    now: float,
) -> RunLevel:
    newer = [save for save in saves if _is_newer(save, durable)]
    at_stake = any(not is_incomplete(save, now) for save in newer)
    begun = [save.started_at for save in newer] + ([durable.started_at] if durable else [])
    return RunLevel(
        run=run.name,
        durable_step=durable.step if durable is not None else None,
        durable_age_seconds=max(0.0, now - durable.started_at) if durable is not None else None,
        exposure_seconds=max(0.0, now - min(begun)) if at_stake else 0.0,
        dirty_bytes=dirty_bytes.get(run.name, 0),
    )


def _is_newer(save: OpenSave, durable: DurableStep | None) -> bool:
    """Return whether a save came after the durable step, also if the clock was set back between."""
    if durable is None:
        return True
    return save.number > durable.number or save.started_at > durable.started_at
