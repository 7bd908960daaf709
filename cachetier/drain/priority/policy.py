"""The pure rule of how far the drain holds back, from pressure and training hints.

Two things are decided. The *restraint* says what the drain may do at once: under pressure the
compressor is slowed first, then the reader. The *standing* says where the kernel ranks the drain:
last, with a small share of its own once it is starved, or with a large one where the small one
hardly gets it anything.

Pressure is what others wait for (Linux's PSI, "some", less what the drain itself waits for): where
the drain waits, the kernel has put it behind already, and it must not hold back from itself for
ever. Nor does it stop under any pressure: one thread goes on, with short pauses, so that bytes do
not stay on one disk without bound. While the drain does nothing, holding back helps nobody: what
ranks waited for during a save does not slow the drain that begins after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

# Per cent of the time. Each restraint begins at the first and ends below the second.
COMPRESSOR_FROM, COMPRESSOR_UNTIL = 10.0, 5.0
READER_FROM, READER_UNTIL = 40.0, 20.0
# While ranks say that they compute, any restraint counts for more: half of the above.
BUSY_READER_FROM, BUSY_READER_UNTIL = 20.0, 10.0

STARVED_SHARE = 0.9
FED_SHARE = 0.5
WANTED_SHARE = 0.2
STARVED_SECONDS = 5.0
FED_SECONDS = 10.0
# Cores. The large share is less than five times the small one, so what it gets by the one is no
# reason to change to the other and back.
LITTLE_CORES, MUCH_CORES = 0.016, 0.08

# Before each frame (4 MiB, some 15 ms of one core) or part (16 MiB) that a thread takes on.
HALF_SPEED_SECONDS = 0.015
COMPRESSOR_PAUSE_SECONDS = 0.05
READER_PAUSE_SECONDS = 0.1


class Restraint(IntEnum):
    """The work that is slowed; each level includes the one before."""

    NONE = 0
    COMPRESSOR = 1
    READER = 2


class CpuPriority(StrEnum):
    """Where the kernel's scheduler ranks the drain."""

    LAST = "last"
    SHARE = "share"
    LARGE_SHARE = "large share"


@dataclass(frozen=True, slots=True)
class PressureSample:
    """Clocks that only go forward, in seconds; None where the kernel does not tell."""

    at: float
    cpu_stalled: float | None = None
    io_stalled: float | None = None
    own_cpu_waited: float = 0.0
    own_cpu_used: float = 0.0
    own_io: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """The pressure between two samples.

    ``cpu`` and ``io`` are per cent of the time that others waited, None where nobody can tell.
    ``hunger`` is the part of the time that the drain's threads waited when they could have run, 0
    where they hardly wanted to. ``ran_cores`` is the processor time they had, by the second.
    ``idle``: the drain read nothing, and hardly ran.
    """

    cpu: float | None = None
    io: float | None = None
    hunger: float = 0.0
    ran_cores: float = 0.0
    seconds: float = 0.0
    idle: bool = False

    @property
    def worst(self) -> float:
        """The greater of the two, as far as the drain may be the reason."""
        return 0.0 if self.idle else max(self.cpu or 0.0, self.io or 0.0)


@dataclass(frozen=True, slots=True)
class Training:
    """The state of the ranks as ``serve`` knows it.

    How many say what they do, and how many compute now.
    """

    hinting_ranks: int = 0
    busy_ranks: int = 0
    urgent: bool = False  # ranks wait for room, which only the drain can make

    @property
    def busy(self) -> bool:
        return self.busy_ranks > 0

    @property
    def idle(self) -> bool:
        """Whether ranks have said that they do not compute."""
        return self.hinting_ranks > 0 and not self.busy


@dataclass(frozen=True, slots=True)
class Stance:
    """The decision; the standing ``due`` has been so for ``due_seconds``.

    A drain begins with a large share, or its start alone would take a busy node half a minute.
    """

    restraint: Restraint = Restraint.NONE
    cpu_priority: CpuPriority = CpuPriority.LARGE_SHARE
    due: CpuPriority | None = None
    due_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many threads may pass a gate at once, and for how long each waits there."""

    count: int
    pause_seconds: float = 0.0


def pressure_between(before: PressureSample, after: PressureSample) -> Pressure:
    """Return what others waited for between two samples, and how hungry the drain was."""
    seconds = max(1e-3, after.at - before.at)
    waited = max(0.0, after.own_cpu_waited - before.own_cpu_waited)
    ran = max(0.0, after.own_cpu_used - before.own_cpu_used)
    wanted = waited + ran
    read = max(0.0, after.own_io - before.own_io)
    hardly_ran = wanted < WANTED_SHARE * seconds
    return Pressure(
        cpu=_others(before.cpu_stalled, after.cpu_stalled, waited, seconds),
        io=_others(before.io_stalled, after.io_stalled, read, seconds),
        hunger=0.0 if hardly_ran else waited / wanted,
        ran_cores=ran / seconds,
        seconds=seconds,
        idle=hardly_ran and not read,
    )


def _others(before: float | None, after: float | None, own: float, seconds: float) -> float | None:
    if before is None or after is None:
        return None
    stalled = min(1.0, max(0.0, after - before) / seconds)
    return round(100.0 * max(0.0, stalled - own / seconds), 1)


def next_stance(now: Stance, pressure: Pressure, training: Training) -> Stance:
    """Return how to behave for the next second."""
    restraint = _next_restraint(now.restraint, pressure.worst, training)
    if training.urgent:
        return Stance(restraint, CpuPriority.LARGE_SHARE)
    due, patience_seconds = _due(now.cpu_priority, pressure)
    if due is None:
        return Stance(restraint, now.cpu_priority)
    # Seconds count, not looks: the thread that looks starves with the others.
    due_seconds = pressure.seconds + (now.due_seconds if due is now.due else 0.0)
    if due_seconds >= patience_seconds:
        return Stance(restraint, due)
    return Stance(restraint, now.cpu_priority, due, due_seconds)


def _next_restraint(now: Restraint, pressure: float, training: Training) -> Restraint:
    """Go up or down by one, and at once down to nothing when training does not compute."""
    if training.urgent or training.idle:
        return Restraint.NONE
    busy = training.busy
    if now is Restraint.READER:
        eased = pressure < (BUSY_READER_UNTIL if busy else READER_UNTIL)
        return Restraint.COMPRESSOR if eased else now
    if now is Restraint.NONE:
        return Restraint.COMPRESSOR if busy or pressure >= COMPRESSOR_FROM else now
    if pressure >= (BUSY_READER_FROM if busy else READER_FROM):
        return Restraint.READER
    return now if busy or pressure >= COMPRESSOR_UNTIL else Restraint.NONE


def _due(now: CpuPriority, pressure: Pressure) -> tuple[CpuPriority | None, float]:
    """Return the standing that fits better, if one does, and for how long it must do so."""
    starved = pressure.hunger >= STARVED_SHARE
    if now is CpuPriority.LAST:
        return CpuPriority.SHARE if starved else None, STARVED_SECONDS
    if pressure.hunger < FED_SHARE and not pressure.idle:  # idle, it cannot know what it needs
        return CpuPriority.LAST, FED_SECONDS
    if now is CpuPriority.SHARE and starved and pressure.ran_cores < LITTLE_CORES:
        return CpuPriority.LARGE_SHARE, STARVED_SECONDS
    if now is CpuPriority.LARGE_SHARE and pressure.ran_cores > MUCH_CORES:
        return CpuPriority.SHARE, STARVED_SECONDS
    return None, 0.0


def compute_allowance(restraint: Restraint, limit: int) -> Allowance:
    """Return how many of ``limit`` threads may compute: half under COMPRESSOR, then one."""
    if restraint is Restraint.NONE:
        return Allowance(limit)
    if restraint is Restraint.READER:
        return Allowance(1, COMPRESSOR_PAUSE_SECONDS)
    return Allowance(limit // 2) if limit > 1 else Allowance(1, HALF_SPEED_SECONDS)


def read_allowance(restraint: Restraint, limit: int) -> Allowance:
    """Return how many of ``limit`` threads may read the disk: all, but one under READER."""
    return Allowance(1, READER_PAUSE_SECONDS) if restraint is Restraint.READER else Allowance(limit)
