"""The scheduler: a pure decision what to drain next, from a snapshot of what is unfinished.

First comes what is more urgent:

0. what somebody waits for (``flush``, ``wait``), and whatever is overdue;
1. what is sealed here, and unsealed shards that have waited long enough;
2. unsealed shards, when a put waits for room, on the node or in the share of their principal.

Within a tier the runs share the link by their weights (``RunShares``), and each run sends whole
checkpoints: the oldest complete one first, then the oldest, and of each what finishes it before
what feeds it.

Nothing starves. Everything joins the first tier when it is ``OVERDUE_SECONDS`` old. There, what is
waited for gets three bytes of four while anything is overdue, and what is overdue gets the fourth,
oldest first, however long a flush goes on; neither waits for the other to end.

Other unsealed shards wait for their seal: a save that dies unsealed was not worth the link.

Of shards with the same bytes, as replicas of one tensor have, one goes ahead of the others.

Where small shards are packed, those of a sealed rank go together, one pack after the other.

Objects of the S3 door are whole when they are acknowledged, so they go like what is sealed; in
which order, ``object_order`` says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from cachetier.drain.schedule.object_order import MountView, object_works
from cachetier.drain.schedule.queue_state import Fairness, Situation
from cachetier.drain.schedule.tasks import TaskKind, Work, name_key
from cachetier.model.checkpoint import RankPart, Save, sealed_here
from cachetier.model.composing import Twins, twins_of
from cachetier.model.lifecycle import DRAINED_SAVES, PartState, SaveState
from cachetier.model.packs import Packable
from cachetier.model.shard import Shard

UNSEALED_SECONDS = 30.0
OVERDUE_SECONDS = 300.0

_URGENT, _SEALED, _FOR_ROOM, _LATER = range(4)
_HURRIED, _OVERDUE = "hurried", "overdue"
_URGENT_WEIGHTS = {_HURRIED: 3.0, _OVERDUE: 1.0}

# What looks at the step's manifest waits until a deletion of the step is there: the new save would
# find the old one published, and be refused.
_ARBITRATED = (TaskKind.CLAIM, TaskKind.PUBLISH)


@dataclass(frozen=True, slots=True)
class SaveView:
    """An unfinished save as the catalog shows it.

    ``dirty`` are its oldest dirty shards; where there are more, ``has_all`` is False. ``unsound``
    are ranks with a quarantined shard, looked for only where a part waits to be written.
    ``twins`` are contents that several of them have and the remote has not yet.
    ``packable`` are the sealed ranks with small shards to pack, which ``dirty`` leaves out.
    ``mount`` is what there is to show of a mount, whose save has nothing else.
    """

    save: Save
    parts: tuple[RankPart, ...] = ()
    dirty: tuple[Shard, ...] = ()
    has_all: bool = True
    unsound: frozenset[int] = frozenset()
    packable: tuple[Packable, ...] = ()
    twins: frozenset[Twins] = frozenset()
    mount: MountView | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tasks to do now, and in how many seconds time alone makes more work due (None: never).

    ``fairness`` is how the shares stand once ``work`` is handed out.
    """

    work: tuple[Work, ...]
    due_in_seconds: float | None
    fairness: Fairness = field(default_factory=Fairness)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """``flow`` tells classes of one tier apart; ``place`` orders the saves of one run.

    ``brings``: how many uploads a claim lets begin.
    """

    tier: int
    work: Work
    due_in_seconds: float
    flow: str
    place: tuple[bool, int]
    brings: int


def plan(saves: Sequence[SaveView], situation: Situation, count: int) -> Schedule:
    """Return up to ``count`` items that may begin now, most urgent first."""
    deleting = {_step_of(v) for v in saves if v.save.state is SaveState.DELETED}
    claiming = {
        v.save.run for v in saves if Work(TaskKind.CLAIM, v.save).key in situation.in_flight
    }
    candidates = [
        candidate
        for view in saves
        for candidate in _candidates(view, situation, claiming)
        if count > 0 and not (candidate.work.kind in _ARBITRATED and _step_of(view) in deleting)
    ]
    ready = [c for c in candidates if c.due_in_seconds <= 0 and c.tier < _LATER]
    ready = _one_of_twins(ready, saves, situation)
    work, fairness = _chosen(ready, situation, count)
    waiting = [c.due_in_seconds for c in candidates if c.due_in_seconds > 0]
    return Schedule(tuple(work), min(waiting) if waiting else None, fairness)


def _one_of_twins(
    ready: Sequence[_Candidate], saves: Sequence[SaveView], situation: Situation
) -> list[_Candidate]:
    """Let one shard of those with the same bytes go first: the others are then copied.

    None of them waits for one that may not go itself.
    """
    twins = {view.save.number: view.twins for view in saves}
    taken = {
        (view.save.number, twins_of(shard))
        for view in saves
        for shard in view.dirty
        if view.twins and name_key(view.save.number, shard.name) in situation.in_flight
    }
    kept = []
    for candidate in sorted(ready, key=lambda each: each.tier):
        number, shard = candidate.work.save.number, candidate.work.shard
        if shard is not None and twins_of(shard) in twins[number]:
            if (number, twins_of(shard)) in taken:
                continue
            taken.add((number, twins_of(shard)))
        kept.append(candidate)
    return kept


def _chosen(
    ready: Sequence[_Candidate], situation: Situation, count: int
) -> tuple[list[Work], Fairness]:
    """Return up to ``count`` items, taking turns between classes and runs, and the shares then."""
    queues: dict[int, dict[str, dict[str, deque[_Candidate]]]] = {}
    brought: dict[str, int] = {}
    paths = {run: situation.weights.path_of(run) for run in {c.work.save.run for c in ready}}
    for candidate in sorted(ready, key=lambda each: each.place):
        of_tier = queues.setdefault(candidate.tier, {})
        of_run = of_tier.setdefault(candidate.flow, {})
        of_run.setdefault(candidate.work.save.run, deque()).append(candidate)
    chosen: list[Work] = []
    runs, urgent = situation.fairness.runs, situation.fairness.urgent
    for tier, of_flow in sorted(queues.items()):
        while of_flow and len(chosen) < count:
            flow = min(of_flow, key=lambda each: (urgent.start(each), each))
            of_run = of_flow[flow]
            run = min(
                of_run, key=lambda each: (runs.start(paths[each]), of_run[each][0].work.save.number)
            )
            candidate = of_run[run].popleft()
            work = candidate.work
            chosen.append(work)
            runs = runs.after(paths[run], work.size_bytes)
            if tier == _URGENT:
                urgent = urgent.after(flow, work.size_bytes, _URGENT_WEIGHTS[flow])
            # A save is claimed when its turn comes, not before: it counts as started from then on.
            brought[run] = brought.get(run, 0) + candidate.brings
            if brought[run] >= count or not of_run[run]:
                del of_run[run]
            if not of_run:
                del of_flow[flow]
    return chosen, Fairness(runs, urgent)


def _step_of(view: SaveView) -> tuple[str, int]:
    return view.save.run, view.save.step


def _candidates(
    view: SaveView, situation: Situation, claiming: AbstractSet[str]
) -> Iterator[_Candidate]:
    """Yield what ``view`` needs; of the runs in ``claiming`` a save is being claimed already."""
    for work in _works(view, situation):
        if work.key in situation.in_flight:
            continue
        tier, seconds, flow = _tier(view, work, situation)
        if work.kind is TaskKind.CLAIM and tier != _URGENT and view.save.run in claiming:
            continue
        backoff = situation.not_before.get(work.key, 0.0) - situation.monotonic
        incomplete = view.save.state in DRAINED_SAVES and not sealed_here(view.parts)
        # What is urgent goes by age alone, or an incomplete save could starve behind complete ones.
        place = tier != _URGENT and incomplete, view.save.number
        brings = len(view.dirty) + len(view.packable) if work.kind is TaskKind.CLAIM else 0
        yield _Candidate(tier, work, max(seconds, backoff), flow, place, brings)


def _works(view: SaveView, situation: Situation) -> Iterator[Work]:
    if view.mount is not None:
        return object_works(view.save, view.mount, situation.in_flight)
    return _steps(view) if view.save.state in DRAINED_SAVES else _aftermath(view, situation)


def _aftermath(view: SaveView, situation: Situation) -> Iterator[Work]:
    """Remove leftovers of a save at the remote once nothing in flight could add to them."""
    kind = TaskKind.DELETE if view.save.state is SaveState.DELETED else TaskKind.SWEEP
    own = Work(kind, view.save)
    busy = any(key[0] == view.save.number and key != own.key for key in situation.in_flight)
    if view.save.location is not None and not busy:
        yield own


def _steps(view: SaveView) -> Iterator[Work]:
    """Everything that an open save needs next, what finishes it first."""
    save = view.save
    sealed = [part for part in view.parts if part.state is PartState.SEALED]
    if save.location is None:
        if sealed or view.dirty:
            yield Work(TaskKind.CLAIM, save)
        return
    unfinished = {shard.rank for shard in view.dirty} | view.unsound
    unfinished |= {packable.rank for packable in view.packable}
    if sealed and all(part.uploaded and part.rank not in unfinished for part in sealed):
        yield Work(TaskKind.PUBLISH, save)
    drained = [part for part in sealed if view.has_all and part.rank not in unfinished]
    for part in drained:
        if part.final and not part.uploaded:
            yield Work(TaskKind.WRITE_PART, save, rank=part.rank)
    if any(not part.final for part in drained):
        yield Work(TaskKind.FOLLOW, save)
    for packable in view.packable:
        yield Work(TaskKind.PACK, save, rank=packable.rank, packable=packable)
    for shard in view.dirty:
        yield Work(TaskKind.UPLOAD, save, shard=shard)


def _tier(view: SaveView, work: Work, situation: Situation) -> tuple[int, float, str]:
    """Return the tier of ``work``, in how many seconds it may begin, and its class in the tier."""
    age_seconds = situation.now - _since(view, work)
    if situation.hurried(view.save):
        return _URGENT, 0.0, _HURRIED
    if age_seconds > OVERDUE_SECONDS:
        return _URGENT, 0.0, _OVERDUE
    if work.kind is TaskKind.SWEEP:
        return _FOR_ROOM, 0.0, ""
    sealed = {part.rank for part in view.parts if part.state is PartState.SEALED}
    of_sealed = work.shard is None or work.shard.rank in sealed
    serves_sealed = bool(sealed) if work.kind is TaskKind.CLAIM else of_sealed
    if serves_sealed or age_seconds > UNSEALED_SECONDS:
        return _SEALED, 0.0, ""
    if situation.wants_room or situation.starved(view.save.run):
        return _FOR_ROOM, 0.0, ""
    return _LATER, UNSEALED_SECONDS - age_seconds, ""


def _since(view: SaveView, work: Work) -> float:
    """Return since when ``work`` has been waiting."""
    if work.shard is not None:
        return work.shard.committed_at
    if work.version is not None:
        return work.version.committed_at
    if work.packable is not None:
        return work.packable.committed_at
    oldest = [shard.committed_at for shard in view.dirty[:1]]
    oldest += [packable.committed_at for packable in view.packable]
    if oldest:
        return min(oldest)
    sealed_at = [part.sealed_at for part in view.parts if part.sealed_at is not None]
    return min(sealed_at, default=view.save.started_at)
