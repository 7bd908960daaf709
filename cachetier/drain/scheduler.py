"""What to drain next: a pure decision over a snapshot of what is unfinished.

Within a tier the oldest save goes first, and what finishes a save goes before what feeds it:

0. what somebody waits for (``flush``, ``wait``), and whatever is overdue;
1. what is sealed here, and unsealed shards that have waited long enough;
2. unsealed shards, when a put waits for room.

Other unsealed shards wait for their seal: a save that dies unsealed was not worth the link. As
everything overdue joins the first tier, nothing starves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cachetier.drain.work import Key, Kind, Work
from cachetier.model.checkpoint import PartState, RankPart, Save, SaveState
from cachetier.model.shard import Shard

UNSEALED_SECONDS = 30.0
OVERDUE_SECONDS = 300.0

_URGENT, _SEALED, _FOR_ROOM, _LATER = range(4)

# What looks at the step's manifest waits until a deletion of the step is there: the new save would
# find the old one published, and be refused.
_ARBITRATED = (Kind.CLAIM, Kind.PUBLISH)


@dataclass(frozen=True, slots=True)
class SaveView:
    """An unfinished save as the catalog shows it.

    ``dirty`` are its oldest dirty shards; where there are more, ``has_all`` is False. ``unsound``
    are ranks with a quarantined shard, looked for only where a part waits to be written.
    """

    save: Save
    parts: tuple[RankPart, ...] = ()
    dirty: tuple[Shard, ...] = ()
    has_all: bool = True
    unsound: frozenset[int] = frozenset()


def _nobody_waits(_save: Save) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything else that bears on the decision.

    ``not_before`` are monotonic instants, for work that failed or found nothing to do yet.
    """

    now: float
    monotonic: float
    in_flight: AbstractSet[Key] = frozenset()
    not_before: Mapping[Key, float] = field(default_factory=dict)
    hurried: Callable[[Save], bool] = _nobody_waits
    wants_room: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, and in how many seconds time alone makes more work due (None: never)."""

    work: tuple[Work, ...]
    due_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class _Candidate:
    tier: int
    work: Work
    due_in_seconds: float


def plan(saves: Sequence[SaveView], situation: Situation, count: int) -> Plan:
    """Return up to ``count`` items that may begin now, most urgent first."""
    deleting = {_step_of(v) for v in saves if v.save.state is SaveState.DELETED}
    candidates = [
        candidate
        for view in saves
        for candidate in _candidates(view, situation)
        if count > 0 and not (candidate.work.kind in _ARBITRATED and _step_of(view) in deleting)
    ]
    ready = [c for c in candidates if c.due_in_seconds <= 0 and c.tier < _LATER]
    ready.sort(key=lambda candidate: (candidate.tier, candidate.work.save.number))
    waiting = [c.due_in_seconds for c in candidates if c.due_in_seconds > 0]
    return Plan(
        tuple(candidate.work for candidate in ready[:count]), min(waiting) if waiting else None
    )


def _step_of(view: SaveView) -> tuple[str, int]:
    return view.save.run, view.save.step


def _candidates(view: SaveView, situation: Situation) -> Iterator[_Candidate]:
    works = _deletion(view, situation) if view.save.state is SaveState.DELETED else _steps(view)
    for work in works:
        if work.key in situation.in_flight:
            continue
        tier, seconds = _tier(view, work, situation)
        backoff = situation.not_before.get(work.key, 0.0) - situation.monotonic
        yield _Candidate(tier, work, max(seconds, backoff))


def _deletion(view: SaveView, situation: Situation) -> Iterator[Work]:
    """A deleted save's objects go once nothing is in flight that could add to them."""
    own = Work(Kind.DELETE, view.save)
    busy = any(key[0] == view.save.number and key != own.key for key in situation.in_flight)
    if view.save.location is not None and not busy:
        yield own


def _steps(view: SaveView) -> Iterator[Work]:
    """Everything that an open save needs next, what finishes it first."""
    save = view.save
    sealed = [part for part in view.parts if part.state is PartState.SEALED]
    if save.location is None:
        if sealed or view.dirty:
            yield Work(Kind.CLAIM, save)
        return
    if sealed and all(part.uploaded for part in sealed):
        yield Work(Kind.PUBLISH, save)
    unfinished = {shard.rank for shard in view.dirty} | view.unsound
    for part in sealed:
        if view.has_all and not part.uploaded and part.rank not in unfinished:
            yield Work(Kind.WRITE_PART, save, rank=part.rank)
    for shard in view.dirty:
        yield Work(Kind.UPLOAD, save, shard=shard)


def _tier(view: SaveView, work: Work, situation: Situation) -> tuple[int, float]:
    """Return the tier of ``work`` and in how many seconds it may begin."""
    age_seconds = situation.now - _since(view, work)
    if situation.hurried(view.save) or age_seconds > OVERDUE_SECONDS:
        return _URGENT, 0.0
    if _is_of_sealed(view, work) or age_seconds > UNSEALED_SECONDS:
        return _SEALED, 0.0
    if situation.wants_room:
        return _FOR_ROOM, 0.0
    return _LATER, UNSEALED_SECONDS - age_seconds


def _since(view: SaveView, work: Work) -> float:
    """Return since when ``work`` has been waiting."""
    if work.shard is not None:
        return work.shard.committed_at
    if view.dirty:
        return view.dirty[0].committed_at
    sealed_at = [part.sealed_at for part in view.parts if part.sealed_at is not None]
    return min(sealed_at, default=view.save.started_at)


def _is_of_sealed(view: SaveView, work: Work) -> bool:
    """Return whether ``work`` serves what is sealed: the save whole, or the rank of its shard."""
    sealed = {part.rank for part in view.parts if part.state is PartState.SEALED}
    if work.kind is Kind.CLAIM:
        return bool(sealed)
    return work.shard is None or work.shard.rank in sealed
