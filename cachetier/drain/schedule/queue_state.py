"""The queue's state in memory: what is in flight, backed off or hurried, and each run's share.

The link is shared between principals first, and then between the runs of each: who has ten runs has
one share.

Attempts of uploads are counted in the catalog as well; forgetting when to try again only makes the
next attempt come sooner.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, count
from math import prod

from cachetier_client.clock import Clock
from cachetier_client.identity.names import MOUNT_MARK, base_run, is_of_run

from cachetier import callers
from cachetier.drain.schedule.tasks import Key, TaskKind, Work, name_key
from cachetier.errors import BackpressureError
from cachetier.model.checkpoint import Save
from cachetier.training_hints import Phases

BACKOFF_LIMIT_SECONDS = 30.0
HURRY_SECONDS = 600.0
# What an item costs beside its bytes: a request takes its time whatever it carries.
ITEM_BYTES = 1 << 20
RECHECKED = (TaskKind.FOLLOW, TaskKind.PUBLISH)  # these look what other nodes have done meanwhile

Wish = tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class FlowShares:
    """How far each flow has got; ``now`` is the virtual time, ``ends`` when each is through.

    Start-time fair queueing by bytes handed out: each *flow* (a run, or a class of work) has a
    weight. An item of a flow starts when its last item finished, in virtual time, or now if the
    flow was idle; the flow that starts first is next. Over any span in which two flows have work,
    the bytes they get differ from the ratio of their weights by no more than an item each; who was
    idle neither saves up nor owes.

    Source: P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996.
    """

    now: float = 0.0
    ends: Mapping[str, float] = field(default_factory=dict)

    def start(self, flow: str) -> float:
        """Return when the next item of ``flow`` starts: the lowest is next."""
        return max(self.now, self.ends.get(flow, 0.0))

    def after(self, flow: str, size_bytes: int, weight: float) -> FlowShares:
        """Return the shares once ``flow`` was handed an item of ``size_bytes``."""
        now = self.start(flow)
        ends = {name: end for name, end in self.ends.items() if end > now}
        ends[flow] = now + (size_bytes + ITEM_BYTES) / weight
        return FlowShares(now, ends)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that have one share together: those of a principal."""

    name: str
    globs: tuple[str, ...]
    weight: float


# From the whole link down to a run: inside of what, the flow there, and its weight.
Path = tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class Weights:
    """The share of each run in its group: that of the first pattern it matches, 1 if there is none.

    Its group is the first of ``groups`` that has it. A run of none is one by itself, of its weight.
    """

    patterns: tuple[tuple[str, float], ...] = ()
    groups: tuple[Group, ...] = ()

    def of(self, run: str) -> float:
        return next((weight for glob, weight in self.patterns if fnmatchcase(run, glob)), 1.0)

    def path_of(self, run: str) -> Path:
        run = base_run(run)  # a run has one share, however many branches
        called = run.removeprefix(MOUNT_MARK)  # by principals
        for group in self.groups:
            if any(fnmatchcase(called, glob) for glob in group.globs):
                name = f"{group.name}/"  # no run has a slash
                return ("", name, group.weight), (name, run, self.of(run))
        return (("", run, self.of(run)),)

    def portions(self, runs: Iterable[str]) -> dict[str, float]:
        """Return which part of the link each of ``runs`` has while all of them have work."""
        paths = {run: self.path_of(run) for run in runs}
        inside: dict[str, dict[str, float]] = {}
        for parent, flow, weight in chain.from_iterable(paths.values()):
            inside.setdefault(parent, {})[flow] = weight
        whole = {parent: sum(weights.values()) for parent, weights in inside.items()}
        return {
            run: prod(weight / whole[parent] for parent, _, weight in path)
            for run, path in paths.items()
        }


EQUAL = Weights()


@dataclass(frozen=True, slots=True)
class RunShares:
    """The bytes handed out to runs: of the whole link, and inside of each group."""

    inside: Mapping[str, FlowShares] = field(default_factory=dict)

    def start(self, path: Path) -> tuple[float, ...]:
        """Return when the next item of a run starts, its group's first: the lowest is next."""
        return tuple(self._of(parent).start(flow) for parent, flow, _ in path)

    def after(self, path: Path, size_bytes: int) -> RunShares:
        """Return the shares once a run was handed an item of ``size_bytes``."""
        changed = {
            parent: self._of(parent).after(flow, size_bytes, weight)
            for parent, flow, weight in path
        }
        return RunShares({**self.inside, **changed})

    def _of(self, parent: str) -> FlowShares:
        return self.inside.get(parent) or FlowShares()


@dataclass(frozen=True, slots=True)
class Fairness:
    """The bytes handed out so far: to runs, and of urgent work to each of its classes."""

    runs: RunShares = field(default_factory=RunShares)
    urgent: FlowShares = field(default_factory=FlowShares)


def _nobody_waits(_who: Save | str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything else that bears on the decision.

    ``not_before`` are monotonic instants, for work that failed or found nothing to do yet.
    ``starved``: whether a put waits for room in the share that a run counts for.
    """

    now: float
    monotonic: float
    in_flight: AbstractSet[Key] = frozenset()
    not_before: Mapping[Key, float] = field(default_factory=dict)
    hurried: Callable[[Save], bool] = _nobody_waits
    wants_room: bool = False
    starved: Callable[[str], bool] = _nobody_waits
    fairness: Fairness = field(default_factory=Fairness)
    weights: Weights = EQUAL


def backoff_seconds(attempt: int, fraction: float) -> float:
    """Return how long to wait after ``attempt`` (from 1) failed: full jitter, up to 30 s."""
    return fraction * min(BACKOFF_LIMIT_SECONDS, 2.0 ** min(attempt - 1, 10))


def recheck_seconds(round_: int) -> float:
    """Return how long to wait after looking in vain for the ``round_``-th time (from 1)."""
    return min(BACKOFF_LIMIT_SECONDS, 2.0 ** min(round_ - 1, 10))


class QueueState:
    """The drain's in-memory state on the side of ``serve``. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        fraction: Callable[[], float] = random.random,
        weights: Weights = EQUAL,
        phases: Phases | None = None,
    ) -> None:
        """Make an empty one; ``phases`` is shared by the drains of a node."""
        self._clock = clock
        self._fraction = fraction
        self.weights = weights
        self.phases = phases or Phases(clock)
        self.starved: Callable[[str], bool] = _nobody_waits
        self._fairness = Fairness()
        self._changed = threading.Condition()
        self._numbers = count(1)
        self._in_flight: dict[int, Work] = {}
        self._held: set[Key] = set()
        self._busy: set[Key] = set()
        self._not_before: dict[Key, float] = {}
        self._rounds: dict[Key, int] = {}
        self._wishes: dict[Wish, float] = {}
        self.rate_limit: float | None = None  # bytes a second, set by a person

    # --- in flight -------------------------------------------------------------------------------

    def take(self, work: Work) -> int | None:
        """Hand out ``work`` and return the number of its task; None if its key is taken."""
        with self._changed:
            if work.key in self._busy:
                return None
            number = next(self._numbers)
            self._in_flight[number] = work
            self._busy.add(work.key)
            return number

    def work(self, number: int) -> Work | None:
        """Return the work in flight as task ``number``."""
        return self._in_flight.get(number)

    def finish(self, number: int, *, done: bool = False) -> None:
        """Take a task off the list; once it is done its failures count no more, unless put off."""
        with self._changed:
            work = self._in_flight.pop(number, None)
            if work is not None:
                self._busy.discard(work.key)
                self._changed.notify_all()
                if done and work.key not in self._not_before:
                    self._rounds.pop(work.key, None)

    def forget_tasks(self) -> None:
        """The drain is gone, and with it everything it had in flight."""
        with self._changed:
            self._in_flight.clear()
            self._busy = set(self._held)
            self._changed.notify_all()

    def in_flight(self) -> list[Work]:
        with self._changed:
            return list(self._in_flight.values())

    def hold(self, number: int, name: str, timeout_seconds: float) -> None:
        """Keep the drain off one object, while somebody else writes it, until ``release``.

        Raises:
            BackpressureError: It is being written, and that did not end in time.
        """
        key = name_key(number, name)
        with self._changed:
            if not callers.wait_for(self._changed, lambda: key not in self._busy, timeout_seconds):
                raise BackpressureError(f"shard {name} is on its way to the remote", name=name)
            self._held.add(key)
            self._busy.add(key)

    def release(self, number: int, name: str) -> None:
        """End ``hold``."""
        key = name_key(number, name)
        with self._changed:
            self._held.discard(key)
            self._busy.discard(key)
            self._changed.notify_all()

    def names_in_flight(self, number: int) -> set[str]:
        """Return the names of a save's shards that are being written, by anybody."""
        with self._changed:
            return {key[2] for key in self._busy if key[:2] == (number, TaskKind.UPLOAD)}

    # --- put off ---------------------------------------------------------------------------------

    def put_off(self, key: Key, seconds: float) -> None:
        """Let nobody take ``key`` for ``seconds``."""
        with self._changed:
            self._not_before[key] = self._clock.monotonic() + seconds

    def back_off(self, key: Key, attempt: int | None = None) -> None:
        """Put ``key`` off after a failure: ``attempt``, or as many as were counted here."""
        tried = self._next_round(key) if attempt is None else attempt
        self.put_off(key, backoff_seconds(tried, self._fraction()))

    def recheck(self, key: Key, patience_limit_seconds: float = BACKOFF_LIMIT_SECONDS) -> None:
        """Put ``key`` off after looking in vain, longer each time."""
        wait_seconds = recheck_seconds(self._next_round(key))
        self.put_off(key, min(wait_seconds, patience_limit_seconds))

    def forgive(self, key: Key) -> None:
        """Forget the failures of ``key``: something changed."""
        with self._changed:
            self._not_before.pop(key, None)
            self._rounds.pop(key, None)

    def forgive_all(self) -> None:
        """Let everything be tried at once: the remote is back."""
        with self._changed:
            self._not_before.clear()
            self._rounds.clear()

    def _next_round(self, key: Key) -> int:
        with self._changed:
            self._rounds[key] = self._rounds.get(key, 0) + 1
            return self._rounds[key]

    # --- in a hurry ------------------------------------------------------------------------------

    def hurry(self, run: str | None, step: int | None) -> None:
        """Put a step, a run, or (None) everything first for a while, and publish without delay."""
        with self._changed:
            now = self._clock.monotonic()
            self._wishes = {wish: until for wish, until in self._wishes.items() if until > now}
            self._wishes[run, step] = now + HURRY_SECONDS
            rechecks = [key for key in self._not_before if key[1] in RECHECKED]
            for key in rechecks:
                del self._not_before[key]

    def is_hurried(self) -> bool:
        """Return whether somebody waits for anything to be drained."""
        now = self._clock.monotonic()
        return any(until > now for until in tuple(self._wishes.values()))

    def hurried(self, save: Save) -> bool:
        now = self._clock.monotonic()
        return any(
            until > now and (run is None or is_of_run(save.run, run)) and step in (None, save.step)
            for (run, step), until in tuple(self._wishes.items())
        )

    # --- for the scheduler -----------------------------------------------------------------------

    def situation(self, *, wants_room: bool) -> Situation:
        """Return everything the scheduler needs beside the catalog."""
        with self._changed:
            now = self._clock.monotonic()
            self._not_before = {key: at for key, at in self._not_before.items() if at > now}
            return Situation(
                now=self._clock.now(),
                monotonic=now,
                in_flight=frozenset(self._busy),
                not_before=dict(self._not_before),
                hurried=self.hurried,
                wants_room=wants_room,
                starved=self.starved,
                fairness=self._fairness,
                weights=self.weights,
            )

    def handed_out(self, fairness: Fairness) -> None:
        """Remember how the shares stand after a plan."""
        self._fairness = fairness

    def blocked(self) -> dict[int, int]:
        """Return how many shards, or versions of objects, of each save are in flight or put off."""
        counted: dict[int, int] = {}
        with self._changed:
            for key in self._busy | self._not_before.keys():
                if key[1] in (TaskKind.UPLOAD, TaskKind.SEND, TaskKind.SHOW):
                    counted[key[0]] = counted.get(key[0], 0) + 1
        return counted
