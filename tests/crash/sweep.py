"""Cut the power at every step of a life, in every way, and judge what is left."""

from __future__ import annotations

import copy
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cachetier.errors import CachetierError, CatalogDamagedError, FencedError
from tests.crash.judge import judge, judge_drained, judge_works, open_node
from tests.crash.workload import Promise, Workload
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.power_loss import (
    DATA_ONLY,
    NAMES_ONLY,
    PROCESS_ONLY,
    WORST,
    Fate,
    Image,
    Luck,
    Survivor,
    TornLog,
)
from tests.fakes.strict_disk import StrictDisk
from tests.stateful.invariants import ViolationError
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced

CAPACITY_BYTES = 64 << 20
CALLS = 15
STATES_OF_ONE_START = 4


CHANGES = ("put", "create_upload", "upload_part", "complete_upload", "abort_upload", "delete")


class Remote(MemoryObjectStore):
    """A remote of which a copy can be taken: it outlives the node as it was at the power cut.

    ``on_change`` is called before each change, with its name; ``changes`` counts.
    """

    def __init__(self) -> None:
        super().__init__(minimum_part_bytes=1)
        self.changes = 0
        self.on_change: Callable[[str], None] = lambda _name: None
        for name in CHANGES:
            setattr(self, name, self._told(name, getattr(self, name)))

    def _told(self, name: str, change: Callable[..., object]) -> Callable[..., object]:
        def told(*args: object, **kwargs: object) -> object:
            self.on_change(name)
            self.changes += 1
            return change(*args, **kwargs)

        return told

    def copy(self) -> Remote:
        fresh = Remote()
        with self._lock:
            fresh._objects = dict(self._objects)
            fresh._uploads = copy.deepcopy(self._uploads)
        fresh._numbers = self._numbers
        fresh.changes = self.changes
        return fresh


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything there is just before a step, or before a change of the remote."""

    step: int
    change: str
    image: Image
    promise: Promise
    remote: Remote
    now: float
    disk: StrictDisk  # for its trace

    @property
    def where(self) -> str:
        trace = self.disk.trace[self.step : self.step + 1] or ["the end"]
        return f"step {self.step + 1} ({self.change or trace[0]})"


@dataclass(slots=True)
class Report:
    """How much a sweep has seen."""

    steps: int = 0
    states: int = 0
    seen: set[tuple[int, int, int]] = field(default_factory=set)

    def is_new(self, survivor: Survivor, moment: Moment) -> bool:
        """Count a state, unless the same one was judged by the same promise before."""
        key = (survivor.identity, id(moment.promise), moment.remote.changes)
        if key in self.seen:
            return False
        self.seen.add(key)
        self.states += 1
        return True


def fates(seed: int, lucks: int) -> Iterator[tuple[str, Fate]]:
    """Yield the ways in which power goes, the worst first."""
    yield "worst", WORST
    yield "process only", PROCESS_ONLY
    yield "names only", NAMES_ONLY
    yield "data only", DATA_ONLY
    for number in range(lucks):
        yield f"luck {number}", Luck(seed * 1_000 + number)
        yield f"torn log {number}", TornLog(seed * 1_000 + number)


class Life:
    """One scripted life on a strict disk, and every moment of it."""

    def __init__(
        self, top: Path, seed: int, *, overture: bool = True, plays: type[Workload] = Workload
    ) -> None:
        top.mkdir()
        self.disk = StrictDisk(top)
        self.moments: list[Moment] = []
        self._top = top
        self._remote, self._clock = Remote(), FakeClock()
        self._seed = seed
        self.workload = plays(self._make_node, self._clock, seed, overture=overture)

    @property
    def node(self) -> Node:
        return self.workload.node

    def play(self, calls: int = CALLS, at_the_end: Callable[[], None] = lambda: None) -> None:
        """Live until the end, or until the node fences itself; it is killed then.

        Raises:
            FencedError: It was about to start.
        """
        self.disk.on_step = self._remember
        self._remote.on_change = self._remember
        with self.disk.recording(), repeatable(self._seed):
            try:
                self.workload.play(calls)
            except FencedError:
                assert self.disk.failed_syncs, "fenced without a reason"
                if not self._started:
                    raise
            at_the_end()
            self._remember()
            self.disk.on_step = lambda: None
            self._remote.on_change = lambda _name: None
            self.node.die()

    def _remember(self, change: str = "") -> None:
        moment = Moment(
            self.disk.steps,
            change,
            self.disk.image(),
            self.workload.promise,
            self._remote.copy(),
            self._clock.now(),
            self.disk,
        )
        self.moments.append(moment)

    def _make_node(self) -> Node:
        self._started = False
        node = Node(
            self._top / "cache",
            self._remote,
            self._clock,
            capacity_bytes=CAPACITY_BYTES,
            vfs=self.disk.vfs,
        )
        self._started = True
        return node


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """Draw ids from ``seed``, so that a step number means the same in every run."""
    real, dice = secrets.token_hex, random.Random(seed)
    secrets.token_hex = lambda nbytes=None: dice.randbytes(nbytes or 32).hex()
    try:
        yield
    finally:
        secrets.token_hex = real


def live(
    top: Path,
    seed: int,
    calls: int = CALLS,
    *,
    overture: bool = True,
    plays: type[Workload] = Workload,
) -> list[Moment]:
    """Live one life; return every moment of it."""
    life = Life(top, seed, overture=overture, plays=plays)
    life.play(calls)
    return life.moments


def sweep(
    place: Path,
    seed: int,
    *,
    calls: int = CALLS,
    overture: bool = True,
    lucks: int = 1,
    restarts: int = 0,
    every: int = 1,
    drained: int = 6,
    without_log: int = 8,
    at: str = "",
    plays: type[Workload] = Workload,
) -> Report:
    """Live a life, cut the power at each of its steps in every way, and judge what is left.

    Args:
        place: Where to work.
        seed: Chooses the life, and how power goes.
        calls: How long the life is, after its overture.
        overture: Whether it begins with one of everything.
        lucks: How often each step is judged by luck, beside the fixed ways.
        restarts: In how many of the states the power is cut once more, at each step of the
            start-up that follows; 0 for none, else one in so many.
        every: Of so many moments one is judged; which, depends on ``seed``.
        drained: Of so many states one is drained to the end.
        without_log: Of so many states one is started without the catalog's log as well.
        at: What a moment that is judged is before, as its description says.
        plays: What is called in the life.

    Raises:
        ViolationError: Names the seed, the step and the way, so that it can be repeated.
    """
    moments = live(place / f"life-{seed}", seed, calls, overture=overture, plays=plays)
    report = Report(steps=len(moments))
    with unsynced() as vfs:
        for moment in [moment for moment in moments if at in moment.where][seed % every :: every]:
            for way, fate in fates(seed * 10_000 + moment.step, lucks):
                survivor = moment.image.survivor(fate)
                if report.is_new(survivor, moment):
                    with named(f"seed {seed}, {moment.where}, {way}"):
                        starts = 2 if report.states % 4 == 0 else 1
                        drains = report.states % drained == 0
                        judge_start(place / "arena", survivor, moment, vfs, starts, drains=drains)
                        if report.states % without_log == 0:
                            judge_lost_log(place / "arena", survivor, moment, vfs)
                        if restarts and report.states % restarts == 0:
                            _sweep_start(place, survivor, moment, vfs, report)
    return report


@contextmanager
def named(where: str) -> Iterator[None]:
    """Say in which case a promise was broken."""
    try:
        yield
    except (ViolationError, CachetierError) as broken:
        raise ViolationError(f"{where}: {broken}") from broken


def judge_start(
    arena: Path,
    survivor: Survivor,
    moment: Moment,
    vfs: str,
    starts: int = 1,
    *,
    drains: bool = False,
) -> None:
    """Start a node on what is left and judge it; judge again after each further start.

    With ``drains`` the drain goes on to its end, and what is in the bucket then is judged too.
    """
    arena.mkdir(exist_ok=True)
    survivor.write_to(arena)
    remote = moment.remote.copy()
    for start in range(starts):
        clock = FakeClock(moment.now + 1)
        node = open_node(arena / "cache", remote, clock, capacity_bytes=CAPACITY_BYTES, vfs=vfs)
        try:
            judge(node, moment.promise)
            if drains:
                judge_drained(node, clock, moment.promise)
            if start:
                judge_works(node)
        finally:
            node.die()


def judge_lost_log(arena: Path, survivor: Survivor, moment: Moment, vfs: str) -> None:
    """Take the catalog's log away as well: the start refuses, or nothing promised was in it."""
    survivor.write_to(arena)
    (arena / "cache" / "catalog.db-wal").unlink(missing_ok=True)
    clock, remote = FakeClock(moment.now + 1), moment.remote.copy()
    try:
        node = Node(arena / "cache", remote, clock, capacity_bytes=CAPACITY_BYTES, vfs=vfs)
    except CatalogDamagedError:
        return
    try:
        judge(node, moment.promise)
    except ViolationError as broken:
        raise ViolationError(f"without its log: {broken}") from None
    finally:
        node.die()


def _sweep_start(place: Path, survivor: Survivor, moment: Moment, vfs: str, report: Report) -> None:
    """Cut the power at each step of a start-up, and judge what the next one makes of it."""
    for image in start(place / "start", survivor, moment):
        for way, fate in (("worst", WORST), ("process only", PROCESS_ONLY)):
            left = image.survivor(fate)
            if report.is_new(left, moment):
                with named(f"cut again in the start-up, {way}"):
                    judge_start(place / "arena", left, moment, vfs)


def sweep_starts(place: Path, seed: int, states: int) -> Report:
    """Cut the power in a life, in the start that follows, and in the start after that; judge.

    Goes on until so many different states were judged.

    Raises:
        ViolationError: Names the seed and the three steps.
    """
    moments = live(place / f"life-{seed}", seed)
    report, dice = Report(steps=len(moments)), random.Random(seed)
    ways = ("worst", WORST), ("process only", PROCESS_ONLY)

    def cut_in_start(left: Survivor) -> tuple[str, Survivor]:
        images = start(place / "start", left, moment)
        number = dice.randrange(len(images))
        way, fate = dice.choice(ways)
        return f"step {number + 1}, {way}", images[number].survivor(fate)

    with unsynced() as vfs:
        while report.states < states:
            moment = dice.choice(moments)
            first, second = cut_in_start(moment.image.survivor(WORST))
            for _ in range(STATES_OF_ONE_START):
                again, left = cut_in_start(second)
                if report.is_new(left, moment):
                    with named(f"seed {seed}, {moment.where}, then {first}, then {again}"):
                        drains = report.states % 4 == 0
                        judge_start(place / "arena", left, moment, vfs, drains=drains)
    return report


def start(top: Path, survivor: Survivor, moment: Moment, *, copied: bool = False) -> list[Image]:
    """Start a node on a strict disk; return the disk before each step of the start-up, and after.

    ``copied``: somebody wrote it just now, and synced nothing.
    """
    top.mkdir(exist_ok=True)
    survivor.write_to(top)
    disk, images = StrictDisk(top, copied=copied), []
    disk.on_step = lambda: images.append(disk.image())
    with disk.recording():
        node = open_node(
            top / "cache",
            moment.remote.copy(),
            FakeClock(moment.now + 1),
            capacity_bytes=CAPACITY_BYTES,
            vfs=disk.vfs,
        )
        images.append(disk.image())
        disk.on_step = lambda: None
        node.die()
    return images
