"""The result of a simulation: of each run, of requests, and over time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from cachetier.simulate.requests import SimulatedRequests
from cachetier.simulate.tier import Tier
from cachetier.simulate.training import SimulatedTraining


def fairness(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 for equal shares, 1/n when one of n gets everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Of some figures the mean, the middle, the 95th of a hundred, and both ends."""

    least: float
    mean: float
    p50: float
    p95: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return the spread of ``values``, None of none."""
        ordered = sorted(values)
        if not ordered:
            return None
        p50, p95 = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.95))
        return cls(ordered[0], fmean(ordered), p50, p95, ordered[-1])


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of one run.

    ``saves`` ended as ``durable``, ``local_only`` by a policy, ``lost`` with a node, ``refused``
    for want of room, or are ``open`` when the simulation ends. ``durable_seconds`` counts from the
    begin of a save until its step is published; ``blocked_seconds`` until its ranks go on, of which
    they waited ``waited_seconds`` for room.
    """

    run: str
    saves: int
    states: dict[str, int]
    durable_seconds: Spread | None
    blocked_seconds: Spread | None
    waited_seconds: Spread | None
    exposure_seconds: Spread
    lost_seconds: float


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """The requests that reached the store: taken, throttled, or unanswered as it was away."""

    accepted: int
    throttled: int
    unanswered: int


@dataclass(slots=True)
class Timeline:
    """The samples taken at ``seconds``: one list of each, equally long.

    Requests and bytes are those of a second since the instant before. ``fairness`` is Jain's index
    of the bytes that nodes sent which had some to send all the time; None with fewer than two.
    """

    seconds: list[float] = field(default_factory=list)
    exposure_seconds: dict[str, list[float]] = field(default_factory=dict)
    dirty_bytes: list[int] = field(default_factory=list)
    waiting_ranks: list[int] = field(default_factory=list)
    sent_bytes_per_second: list[float] = field(default_factory=list)
    accepted_per_second: list[float] = field(default_factory=list)
    throttled_per_second: list[float] = field(default_factory=list)
    fairness: list[float | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SimulatedOutcome:
    """All that came of a simulation."""

    about: str
    seed: int
    nodes: int
    seconds: float
    runs: tuple[RunOutcome, ...]
    requests: RequestCounts
    sent_bytes: float
    fairness: Spread | None
    timeline: Timeline


class Recorder:
    """Looks at the nodes now and then, and sums up."""

    def __init__(self, trainings: Sequence[SimulatedTraining]) -> None:
        self.nodes: list[Tier] = []  # those that were lost as well
        self.timeline = Timeline(exposure_seconds={each.run.name: [] for each in trainings})
        self._trainings = trainings
        self._moved: Counter[Tier] = Counter()
        self._had: set[Tier] = set()

    def look(self, now: float) -> None:
        """Note how everything stands."""
        seen = self.timeline
        span = now - (seen.seconds[-1] if seen.seconds else 0.0) or 1.0
        dirty = {node: node.saves.dirty_bytes() for node in self.nodes if not node.lost}
        moved = Counter({node: node.drain.moved() for node in self.nodes})
        sent = {node: moved[node] - self._moved[node] for node in moved}
        had = {node for node, size_bytes in dirty.items() if size_bytes}
        busy = [sent[node] for node in self._had & had]
        seen.fairness.append(fairness(busy) if len(busy) > 1 and any(busy) else None)
        self._moved, self._had = moved, had
        seen.seconds.append(now)
        seen.dirty_bytes.append(sum(dirty.values()))
        seen.waiting_ranks.append(sum(node.waiting for node in dirty))
        seen.sent_bytes_per_second.append(sum(sent.values()) / span)
        for training in self._trainings:
            seen.exposure_seconds[training.run.name].append(training.exposure_seconds())

    def outcome(self, about: str, seed: int) -> SimulatedOutcome:
        """Return what came of it all, after the last look."""
        seen, requests = self.timeline, [node.drain.requests for node in self.nodes]
        seen.accepted_per_second = _per_second([r.accepted_at for r in requests], seen.seconds)
        seen.throttled_per_second = _per_second([r.rejected_at for r in requests], seen.seconds)
        return SimulatedOutcome(
            about=about,
            seed=seed,
            nodes=sum(not node.lost for node in self.nodes),
            seconds=seen.seconds[-1],
            runs=tuple(map(self._of_run, self._trainings)),
            requests=_counts(requests),
            sent_bytes=sum(node.drain.moved() for node in self.nodes),
            fairness=Spread.of(each for each in seen.fairness if each is not None),
            timeline=seen,
        )

    def _of_run(self, training: SimulatedTraining) -> RunOutcome:
        records = training.records
        acked = [each for each in records if each.acked_at is not None]
        exposure = Spread.of(self.timeline.exposure_seconds[training.run.name])
        assert exposure is not None
        return RunOutcome(
            run=training.run.name,
            saves=len(records),
            states=dict(Counter(each.state for each in records)),
            durable_seconds=Spread.of(
                each.durable_at - each.began_at for each in records if each.durable_at is not None
            ),
            blocked_seconds=Spread.of((each.acked_at or 0.0) - each.began_at for each in acked),
            waited_seconds=Spread.of(each.waited_seconds for each in acked),
            exposure_seconds=exposure,
            lost_seconds=training.lost_seconds,
        )


def _counts(requests: Sequence[SimulatedRequests]) -> RequestCounts:
    return RequestCounts(
        sum(len(each.accepted_at) for each in requests),
        sum(len(each.rejected_at) for each in requests),
        sum(len(each.knocked_at) for each in requests),
    )


def _per_second(instants: Sequence[Sequence[float]], looked: Sequence[float]) -> list[float]:
    """Return how many of ``instants`` there were in a second, between each two looks."""
    found, before, counted = [], 0.0, 0
    for now in looked:
        total = sum(bisect_left(each, now) for each in instants)
        found.append((total - counted) / (now - before or 1.0))
        before, counted = now, total
    return found
