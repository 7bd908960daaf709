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
from typing import TypeVar

from cachetier_client.identity.names import base_run

from cachetier.local.catalog.figures import DurableStep, OpenSave, Run
from cachetier.model.names import is_hidden
from cachetier.status.words import OTHERS

RUN_LIMIT = 20
ACTIVE_SECONDS = 86_400.0
PATIENCE_SECONDS = 1800.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunExposure:
    """The loss of one run if this node were lost now.

    ``exposure_seconds``: how much training would be lost, 0 when nothing newer than the newest
    durable step is at stake here. ``durable_age_seconds``: since the save of that step began; None,
    as ``durable_step``, while this node knows of none. ``quiet_seconds``: since something came of
    what is at stake, if none of it is sealed; else 0. Its job may have died.
    """

    run: str
    durable_step: int | None
    durable_age_seconds: float | None
    exposure_seconds: float
    dirty_bytes: int
    quiet_seconds: float = 0.0


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
    steps = _by_run((name, step) for name, step in durable.items())
    ages = [
        now - save.started_at
        for save in saves
        if is_incomplete(save, now)
        and not is_hidden(save.run)
        and all(_is_newer(save, each) for each in steps.get(base_run(save.run), ()))
    ]
    return IncompleteSaves(len(ages), max(ages, default=0.0))


def of_runs(
    runs: Iterable[Run],
    durable: Mapping[str, DurableStep],
    saves: Sequence[OpenSave],
    dirty_bytes: Mapping[str, int],
    now: float,
) -> tuple[RunExposure, ...]:
    """Return the exposure of runs: the most exposed, then the newest.

    A run is what people named: its branches, such as each file that is saved by its path, are part
    of it. More than ``RUN_LIMIT`` runs are one more, ``OTHERS``.

    Args:
        runs: Those that are active, or have something here that is not durable.
        durable: The durable step of each that has one.
        saves: All open saves.
        dirty_bytes: By run; 0 where it has none.
        now: UTC seconds.
    """
    newest = _by_run((run.name, run.newest_at) for run in runs if not is_hidden(run.name))
    steps = _by_run((name, step) for name, step in durable.items())
    open_saves = _by_run((save.run, save) for save in saves)
    dirty = _by_run((name, size_bytes) for name, size_bytes in dirty_bytes.items())
    newer = {
        run: [save for save in found if _is_newer(save, durable.get(save.run))]
        for run, found in open_saves.items()
    }
    exposed = [
        _exposure(run, steps.get(run, ()), newer.get(run, ()), sum(dirty.get(run, ())), now)
        for run in newest
    ]
    exposed.sort(key=lambda each: (-each.exposure_seconds, -max(newest[each.run]), each.run))
    shown, others = exposed[:RUN_LIMIT], exposed[RUN_LIMIT:]
    if others:
        worst = max(each.exposure_seconds for each in others)
        shown.append(RunExposure(OTHERS, None, None, worst, sum(run.dirty_bytes for run in others)))
    return tuple(shown)


def _by_run(found: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Return what is of each run, that of its branches included."""
    by_run: dict[str, list[T]] = {}
    for name, each in found:
        by_run.setdefault(base_run(name), []).append(each)
    return by_run


def _exposure(
    run: str,
    durable: Sequence[DurableStep],
    newer: Sequence[OpenSave],
    dirty_bytes: int,
    now: float,
) -> RunExposure:
    """Return the exposure of a run by its ``durable`` steps and what is ``newer`` in a branch.

    A durable step counts only if it is older than all that is at stake: a small file that was
    saved after a large one and sent before it does not make that safe.
    """
    at_stake = [save for save in newer if not is_incomplete(save, now)]
    counting = [each for each in durable if all(_is_newer(save, each) for save in at_stake)]
    last = max(counting, key=lambda each: each.number, default=None)
    begun = [save.started_at for save in newer if last is None or _is_newer(save, last)]
    begun += [last.started_at] if last is not None else []
    numbered = [each for each in counting if each.step] or counting  # a file may have no number
    return RunExposure(
        run=run,
        durable_step=max(numbered, key=lambda each: each.number).step if numbered else None,
        durable_age_seconds=max(0.0, now - last.started_at) if last is not None else None,
        exposure_seconds=max(0.0, _until(at_stake, now) - min(begun)) if at_stake else 0.0,
        dirty_bytes=dirty_bytes,
        quiet_seconds=min((_quiet(save, now) for save in at_stake), default=0.0),
    )


def _quiet(save: OpenSave, now: float) -> float:
    return max(0.0, now - save.grew_at) if save.sealed_at is None else 0.0


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
