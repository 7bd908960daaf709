"""Power cuts on a real file system: the kernel cuts, and what it left is mounted and judged.

A life is played by a child of this process. Before one of its steps the child shuts its file system
down, so that nothing reaches the image any more, makes sure of that, and ends. The parent mounts
what is left, opens it, and judges it as the strict sweep does. Then the life goes on there: the
next child makes the call again that was cut, as a client does that had no answer.
"""

from __future__ import annotations

import os
import pickle
import random
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import apsw

from cachetier import libc
from cachetier.local.catalog import saves
from cachetier.model.lifecycle import SaveState
from tests.crash.judge import judge, judge_drained, open_node
from tests.crash.sweep import CAPACITY_BYTES, Remote, repeatable
from tests.crash.workload import RUN, STEPS, Place, Promise, Workload
from tests.fakes.fake_clock import FakeClock
from tests.fakes.loop_disk import LoopDisk
from tests.fakes.volatile_disk import VolatileDisk
from tests.stateful.invariants import ViolationError
from tests.stateful.model import OPEN, PUBLISHED, Model
from tests.stateful.node import Node

COUNTED = "counted"
IMAGE_BYTES = 96 << 20
STEPS_BETWEEN_CUTS = 60  # at the most; a start takes some twenty
CUTS = 20  # that count, of each life
ATTEMPTS = 100

Disk = TypeVar("Disk", bound=LoopDisk)


@dataclass(frozen=True)
class Cut:
    """What a child knew when it cut the power."""

    where: str
    refused: bool  # a write right after it
    promise: Promise
    place: Place
    remote: Any
    now: float

    @property
    def counts(self) -> bool:
        """Whether something was there to lose: acknowledged, and not published yet."""
        before = self.promise.before
        saves = [save for saves in before.steps.values() for save in saves if save.state == OPEN]
        return any(save.shards for save in saves) or bool(before.objects)


class Steps:
    """Counts, in this process and from now on, what changes or syncs anything below ``top``."""

    def __init__(self, top: Path, before: Callable[[str], None]) -> None:
        self._top = os.fspath(top)
        self._device = os.stat(top).st_dev
        self.before = before
        for name in ("write", "pwrite", "ftruncate", "posix_fallocate", "setxattr"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        for name in ("unlink", "remove", "rename", "replace", "fsync", "fdatasync"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        libc.syncfs = self._counted("syncfs", libc.syncfs)
        os.open = self._opens(os.open)
        self._vfs = _CountedVFS(before)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_below(target):
                self.before(name)
            return real(target, *args, **kwargs)

        return call

    def _opens(self, real: Callable[..., int]) -> Any:
        def call(target: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_CREAT and self._is_below(target):
                self.before("create")
            return real(target, flags, *args, **kwargs)

        return call

    def _is_below(self, target: int | str | bytes | os.PathLike[str]) -> bool:
        if isinstance(target, int):
            return os.fstat(target).st_dev == self._device
        return os.path.abspath(os.fsdecode(target)).startswith(self._top)


class _CountedVFS(apsw.VFS):
    """The default VFS of SQLite, and its writes and syncs are steps."""

    def __init__(self, before: Callable[[str], None]) -> None:
        super().__init__(COUNTED, "unix")
        self._before = before

    def xOpen(  # noqa: N802  # SQLite's name
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        return _CountedFile(self._before, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  # SQLite's name
        self._before("unlink of SQLite")
        super().xDelete(filename, syncdir)


class _CountedFile(apsw.VFSFile):
    def __init__(
        self, before: Callable[[str], None], name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        self._before = before
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        self._before("write of SQLite")
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's name
        self._before("truncate of SQLite")
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
        self._before("sync of SQLite")
        super().xSync(flags)


class RealLife:
    """A life on a disk whose power goes again and again."""

    def __init__(self, disk: LoopDisk, seed: int, plays: type[Workload] = Workload) -> None:
        self._disk = disk
        self._plays = plays
        self._cache = disk.path / f"life-{seed}"
        self._cache.mkdir()
        self._seed = seed
        self._dice = random.Random(seed)
        self._cuts = 0
        self._remote, self._clock = Remote(), FakeClock()
        self._workload = plays(self._make_node, self._clock, seed)

    def cut(self, *, last: bool = False) -> Cut:
        """Let the life go on for some steps, cut the power, and judge what is left.

        With ``last`` it is drained then, and what is in the bucket is judged too.

        Raises:
            ViolationError: Names the seed, the cut and the step, so that it can be repeated.
        """
        self._cuts += 1
        steps = self._dice.randint(1, STEPS_BETWEEN_CUTS)
        answer = told_by_child(lambda tell: self._play_until(steps, tell))
        self._disk.power_on()
        where = f"seed {self._seed}, cut {self._cuts}, step {steps}"
        if not isinstance(answer, Cut):
            raise ViolationError(f"{where}: {answer}")
        self._remote, self._clock = _taken_up(answer.remote), FakeClock(answer.now + 1)
        try:
            self._judge(answer, drains=last)
        except ViolationError as broken:
            raise ViolationError(f"{where} ({answer.where}): {broken}") from None
        return answer

    def _judge(self, cut: Cut, *, drains: bool) -> None:
        node = open_node(
            self._cache, self._remote, self._clock, capacity_bytes=CAPACITY_BYTES, vfs="unix"
        )
        try:
            judge(node, cut.promise)
            self._workload = self._plays(self._make_node, self._clock, self._seed)
            done = _is_done(node, cut.promise)
            promise = Promise(cut.promise.after, cut.promise.after)
            self._workload.go_back_to(cut.place, promise if done else cut.promise, done=done)
            if drains:
                judge_drained(node, self._clock, cut.promise)
        finally:
            node.die()

    def _play_until(self, steps: int, tell: Callable[[object], NoReturn]) -> None:
        """Live on; before the last of ``steps`` cut the power, tell what there is, and end."""
        numbers = count(1)

        def before(name: str) -> None:
            if next(numbers) == steps:
                tell(self._cut_power(name))

        Steps(self._cache, before)
        with repeatable(self._seed * 10_000 + self._cuts):
            self._workload.start()
            while True:
                self._workload.play_next()

    def _cut_power(self, where: str) -> Cut:
        probe = os.open(self._disk.path / "probe", os.O_RDWR | os.O_CREAT)
        self._disk.cut_power()
        try:
            os.pwrite(probe, b"after the cut", 0)
            refused = False
        except OSError:
            refused = True
        workload, remote = self._workload, self._remote
        told = remote._objects, remote._uploads, remote._numbers
        return Cut(where, refused, workload.promise, workload.place, told, self._clock.now())

    def _make_node(self) -> Node:
        return Node(
            self._cache, self._remote, self._clock, capacity_bytes=CAPACITY_BYTES, vfs=COUNTED
        )


def _taken_up(told: Any) -> Remote:
    remote = Remote()
    remote._objects, remote._uploads, remote._numbers = told
    return remote


def _is_done(node: Node, promise: Promise) -> bool:
    """Return whether the call that was cut took effect, and is not to be made again.

    All calls can be repeated but those of uploads; and a publication that is recorded is not made
    again.
    """
    recorded = {
        (step, save.save_id)
        for step in STEPS
        for save in node.store.read(saves.saves_of, RUN, step)
        if save.state is SaveState.PUBLISHED
    }
    new = _published(promise.after) - _published(promise.before)
    if new:
        return new <= recorded
    parts = node.objects.parts_put()
    return parts == promise.after.uploads != promise.before.uploads


def _published(model: Model) -> set[tuple[int, str]]:
    return {
        (step, save.save_id)
        for (_, step), saves in model.steps.items()
        for save in saves
        if save.state == PUBLISHED
    }


def told_by_child(work: Callable[[Callable[[object], NoReturn]], None]) -> object:
    """Fork; ``work`` gets a function that tells something to the parent, and ends the child."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child needs none
        pid = os.fork()
    if pid == 0:
        _be_child(writing, work)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(told) if told else "the child died"


def _be_child(writing: int, work: Callable[[Callable[[object], NoReturn]], None]) -> NoReturn:
    write = os.write

    def tell(what: object) -> NoReturn:
        told = memoryview(pickle.dumps(what))
        while told:
            told = told[write(writing, told) :]
        os._exit(0)

    try:
        work(tell)
    except BaseException:
        tell(traceback.format_exc())
    tell("the life ended before its power was cut")


@contextmanager
def opened(disk: Callable[[Path], Disk]) -> Iterator[Disk]:
    """Give a disk that ``disk`` makes, its image in memory where that is possible.

    A disk of the machine would only be slower: power goes for the file system, not for the image.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="cachetier-disk-", dir=memory) as place:
        made = disk(Path(place))
        try:
            yield made
        finally:
            made.close()


def loop_disk(make: Sequence[str]) -> AbstractContextManager[LoopDisk]:
    """Give a disk of a file system that ``make`` makes."""
    return opened(lambda place: LoopDisk(place, IMAGE_BYTES, make))


def volatile_disk(seed: int) -> AbstractContextManager[VolatileDisk]:
    """Give a disk with a volatile cache, and ext4 on it."""
    return opened(lambda place: VolatileDisk(place, IMAGE_BYTES, seed))


def cut_through_a_life(disk: LoopDisk, seed: int, plays: type[Workload] = Workload) -> int:
    """Cut the power again and again; return how many cuts count."""
    life, cuts = RealLife(disk, seed, plays), list[Cut]()
    while sum(cut.counts for cut in cuts) < CUTS:
        assert len(cuts) < ATTEMPTS, "hardly a cut had anything to lose"
        cuts.append(life.cut())
        assert cuts[-1].refused, "the power is still on"
    life.cut(last=True)
    return sum(cut.counts for cut in cuts)
