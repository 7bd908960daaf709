"""Exposure: pure rules of how much training would be lost with this node now.

A run is *exposed* while a save of it that is newer than its newest durable step is under way or
whole here. How long is counted from the instant the durable step's save began: a restart would go
on from there. It is counted until now while such a save waits for the drain: that is late, and a
person should hear of it. Where all of them stay here by a policy, nothing is late: it is counted
until the newest of them began, which is what was trained, and what losing the node would cost more
than losing its processes. So a run that ended on such a step does not grow more exposed for ever.

A save that is stuck does not count, as no node could bring it back: for ``PATIENCE_SECONDS``
nothing of it came, and ranks here have not sealed, or all of it is sent and other nodes keep it
waiting. Such a save is *incomplete*, and is reported as that until a newer step of the run is
durable: then nobody misses it.

Hidden runs are nobody's training, so they are neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cachetier.local.catalog.figures import DurableStep, OpenSave, Run
from cachetier.model.names import is_hidden

RUN_LIMIT = 20
ACTIVE_SECONDS = 86_400.0
PATIENCE_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class RunExposure:
    """What losing this node now would cost one run.

    ``exposure_seconds``: how much training would be lost, 0 when nothing newer than the newest
    durable step is at stake here. ``durable_age_seconds``: since the save of that step began; None,
    as ``durable_step``, while this node knows of none.
    """

    run: str
    durable_step: int | None
    durable_age_seconds: float | None
    exposure_seconds: float
    dirty_bytes: int


@dataclass(frozen=True, slots=True)
class IncompleteSaves:
    """Saves that are stuck, and how long ago the first of them began."""

    steps: int = 0
    oldest_seconds: float = 0.0


def is_incomplete(save: OpenSave, now: float) -> bool:
    """Return whether a save is stuck: for want of a rank here, or of another node."""
    if now - save.grew_at <= PATIENCE_SECONDS:
        return False
    return save.sealed_at is None or (save.sent and not save.local_only)


def incomplete(
    saves: Iterable[OpenSave], durable: Mapping[str, DurableStep], now: float
) -> IncompleteSaves:
    """Return what is stuck; nobody misses a save whose run has made a newer step durable."""
    stuck = (save for save in saves if is_incomplete(save, now) and not is_hidden(save.run))
    ages = [now - save.started_at for save in stuck if _is_newer(save, durable.get(save.run))]
    return IncompleteSaves(len(ages), max(ages, default=0.0))


def of_runs(
    runs: Iterable[Run],
    durable: Mapping[str, DurableStep],
    saves: Sequence[OpenSave],
    dirty_bytes: Mapping[str, int],
    now: float,
) -> tuple[RunExposure, ...]:
    """Return the exposure of at most ``RUN_LIMIT`` runs: the most exposed, then the newest.

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
    exposed = [
        (run, _exposure(run, durable.get(run.name), by_run.get(run.name, ()), dirty_bytes, now))
        for run in runs
        if not is_hidden(run.name)
    ]
    exposed.sort(key=lambda each: (-each[1].exposure_seconds, -each[0].newest_at, each[0].name))
    return tuple(each for _, each in exposed[:RUN_LIMIT])


def _exposure(
    run: Run,
    durable: DurableStep | None,
    saves: Sequence[OpenSave],
    dirty_bytes: Mapping[str, int],
    now: float,
) -> RunExposure:
    newer = [save for save in saves if _is_newer(save, durable)]
    at_stake = [save for save in newer if not is_incomplete(save, now)]
    begun = [save.started_at for save in newer] + ([durable.started_at] if durable else [])
    return RunExposure(
        run=run.name,
        durable_step=durable.step if durable is not None else None,
        durable_age_seconds=max(0.0, now - durable.started_at) if durable is not None else None,
        exposure_seconds=max(0.0, _until(at_stake, now) - min(begun)) if at_stake else 0.0,
        dirty_bytes=dirty_bytes.get(run.name, 0),
    )


def _until(at_stake: Sequence[OpenSave], now: float) -> float:
    """Return until when the training counts that these saves hold."""
    if all(save.local_only for save in at_stake):
        return max(save.started_at for save in at_stake)
    return now


def _is_newer(save: OpenSave, durable: DurableStep | None) -> bool:
    """Return whether a save came after the durable step, also if the clock was set back between."""
    if durable is None:
        return True
    return save.number > durable.number or save.started_at > durable.started_at
