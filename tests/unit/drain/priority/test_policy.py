"""How far the drain holds back, as a table."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.drain.priority.policy import (
    FED_SECONDS,
    STARVED_SECONDS,
    Allowance,
    CpuPriority,
    Pressure,
    PressureSample,
    Restraint,
    Stance,
    Training,
    compute_allowance,
    next_stance,
    pressure_between,
    read_allowance,
)

NONE, COMPRESSOR, READER = Restraint
NOBODY = Training()
BUSY = Training(hinting_ranks=2, busy_ranks=1)
IDLE = Training(hinting_ranks=2, busy_ranks=0)
URGENT = Training(hinting_ranks=2, busy_ranks=2, urgent=True)


def restraint_after(
    now: Restraint, cpu: float | None, training: Training, io: float | None = None
) -> Restraint:
    return next_stance(Stance(now), Pressure(cpu, io), training).restraint


@pytest.mark.parametrize(
    ("now", "pressure", "training", "then"),
    [
        # Without hints the pressure alone counts, with room between on and off.
        (NONE, 0.0, NOBODY, NONE),
        (NONE, 9.9, NOBODY, NONE),
        (NONE, 10.0, NOBODY, COMPRESSOR),
        (NONE, 100.0, NOBODY, COMPRESSOR),
        (COMPRESSOR, 5.0, NOBODY, COMPRESSOR),
        (COMPRESSOR, 4.9, NOBODY, NONE),
        (COMPRESSOR, 39.9, NOBODY, COMPRESSOR),
        (COMPRESSOR, 40.0, NOBODY, READER),
        (READER, 20.0, NOBODY, READER),
        (READER, 19.9, NOBODY, COMPRESSOR),
        (READER, 0.0, NOBODY, COMPRESSOR),
        # A busy rank slows the compressor, and the reader sooner.
        (NONE, 0.0, BUSY, COMPRESSOR),
        (COMPRESSOR, 0.0, BUSY, COMPRESSOR),
        (COMPRESSOR, 19.9, BUSY, COMPRESSOR),
        (COMPRESSOR, 20.0, BUSY, READER),
        (READER, 10.0, BUSY, READER),
        (READER, 9.9, BUSY, COMPRESSOR),
        # Ranks that say that they do not compute, or that wait for room, want full speed.
        (NONE, 100.0, IDLE, NONE),
        (COMPRESSOR, 100.0, IDLE, NONE),
        (READER, 100.0, IDLE, NONE),
        (READER, 100.0, URGENT, NONE),
    ],
)
def test_the_restraint_follows_pressure_and_hints(
    now: Restraint, pressure: float, training: Training, then: Restraint
) -> None:
    assert restraint_after(now, pressure, training) is then
    assert restraint_after(now, None, training, io=pressure) is then


@pytest.mark.parametrize("training", [NOBODY, IDLE])
@pytest.mark.parametrize("now", Restraint)
def test_without_signals_nothing_is_slowed_for_long(now: Restraint, training: Training) -> None:
    stance = Stance(now)
    for _ in Restraint:
        stance = next_stance(stance, Pressure(None, None), training)

    assert stance.restraint is NONE


def test_the_reader_is_slowed_only_after_the_compressor() -> None:
    for restraint, limit in itertools.product(Restraint, (1, 2, 8)):
        compute, read = compute_allowance(restraint, limit), read_allowance(restraint, limit)
        if read != Allowance(limit):
            assert compute == Allowance(1, compute.pause_seconds)
            assert compute.pause_seconds > 0


@pytest.mark.parametrize(
    ("restraint", "limit", "count", "pauses"),
    [
        (NONE, 1, 1, False),
        (NONE, 8, 8, False),
        (COMPRESSOR, 8, 4, False),
        (COMPRESSOR, 3, 1, False),
        (COMPRESSOR, 1, 1, True),
        (READER, 1, 1, True),
        (READER, 8, 1, True),
    ],
)
def test_half_of_the_threads_compute_then_one_with_pauses(
    restraint: Restraint, limit: int, count: int, pauses: bool
) -> None:
    allowed = compute_allowance(restraint, limit)

    assert allowed.count == count
    assert (allowed.pause_seconds > 0) is pauses


def test_the_drain_never_falls_below_a_stated_rate() -> None:
    compute, read = compute_allowance(READER, 8), read_allowance(READER, 16)

    assert compute.count >= 1
    assert read.count >= 1
    assert compute.pause_seconds <= 0.05  # for each 4 MiB: 80 MiB/s, less what the work takes
    assert read.pause_seconds <= 0.1  # for each 16 MiB: 160 MiB/s, less what reading takes


# --- what others wait for -----------------------------------------------------------------------


def second(
    cpu: float | None, own_waited: float = 0.0, own_used: float = 0.0, **more: float
) -> Pressure:
    """Return the pressure of a second in which so much happened."""
    before = PressureSample(10.0, None if cpu is None else 100.0, 50.0, 7.0, 3.0, 2.0)
    after = PressureSample(
        at=11.0,
        cpu_stalled=None if cpu is None else 100.0 + cpu,
        io_stalled=50.0 + more.get("io", 0.0),
        own_cpu_waited=7.0 + own_waited,
        own_cpu_used=3.0 + own_used,
        own_io=2.0 + more.get("own_io", 0.0),
    )
    return pressure_between(before, after)


def test_what_the_drain_itself_waits_for_is_no_pressure() -> None:
    assert second(0.8).cpu == 80.0
    assert second(0.8, own_waited=0.5).cpu == 30.0
    assert second(0.8, own_waited=1.7).cpu == 0.0
    assert second(None).cpu is None
    assert second(0.0, io=0.9).io == 90.0
    assert second(0.0, io=0.9, own_io=0.9).io == 0.0


def test_a_clock_that_jumps_is_no_pressure_beyond_all_time() -> None:
    assert second(-5.0).cpu == 0.0
    assert second(500.0).cpu == 100.0
    assert second(0.5, own_waited=-3.0).cpu == 50.0


def test_what_others_wait_for_while_the_drain_does_nothing_does_not_hold_it_back() -> None:
    assert second(0.9, io=0.9) == Pressure(90.0, 90.0, seconds=1.0, idle=True)
    assert second(0.9, io=0.9).worst == 0.0
    assert second(0.9, own_io=0.01).worst == 90.0
    assert second(0.9, own_used=0.3).worst == 90.0
    assert second(0.9, own_waited=0.3).worst == 60.0  # starved


@pytest.mark.parametrize(("training", "then"), [(NOBODY, NONE), (BUSY, COMPRESSOR)])
def test_a_drain_that_begins_after_a_save_is_not_slowed_by_it(
    training: Training, then: Restraint
) -> None:
    stance = Stance(READER)
    for _ in range(3):
        stance = next_stance(stance, second(0.9, io=0.9), training)

    assert stance.restraint is then


def test_a_drain_alone_on_its_machine_never_slows_itself() -> None:
    stance = Stance()
    for _ in range(100):
        pressure = second(0.9, own_waited=0.95, own_used=3.0, io=1.0, own_io=1.0)
        stance = next_stance(stance, pressure, NOBODY)

    assert stance.restraint is NONE


def test_hunger_is_the_share_of_the_time_that_the_drain_could_not_run() -> None:
    assert second(0.0).hunger == 0.0
    assert second(0.0, own_waited=0.9, own_used=0.1).hunger == pytest.approx(0.9)
    assert second(0.0, own_waited=0.01, own_used=0.0).hunger == 0.0  # it hardly wanted to
    assert second(0.0, own_used=2.0).hunger == 0.0


# --- standing -----------------------------------------------------------------------------------


LAST = Stance(cpu_priority=CpuPriority.LAST)
SHARE = Stance(cpu_priority=CpuPriority.SHARE)


def after(
    stance: Stance,
    hunger: float,
    seconds: float,
    training: Training = NOBODY,
    ran_cores: float = 0.05,
) -> Stance:
    while seconds > 0:
        length = min(1.0, seconds)
        pressure = Pressure(hunger=hunger, ran_cores=ran_cores, seconds=length)
        stance = next_stance(stance, pressure, training)
        seconds -= length
    return stance


@pytest.mark.parametrize("stance", [Stance(), SHARE])
def test_a_drain_gives_its_share_back_where_it_needs_none(stance: Stance) -> None:
    assert after(stance, 0.0, FED_SECONDS - 1).cpu_priority is stance.cpu_priority
    assert after(stance, 0.0, FED_SECONDS).cpu_priority is CpuPriority.LAST
    assert after(stance, 0.8, 100).cpu_priority is stance.cpu_priority


def test_a_drain_without_work_keeps_the_share_that_the_next_save_will_need() -> None:
    stance = Stance()
    for _ in range(100):
        stance = next_stance(stance, Pressure(seconds=1.0, idle=True), NOBODY)

    assert stance.cpu_priority is CpuPriority.LARGE_SHARE


def test_a_drain_begins_with_a_large_share() -> None:
    assert Stance().cpu_priority is CpuPriority.LARGE_SHARE


def test_a_share_that_gets_hardly_any_cpu_grows() -> None:
    assert after(SHARE, 0.99, 100).cpu_priority is CpuPriority.SHARE
    assert after(SHARE, 0.8, 100, ran_cores=0.01).cpu_priority is CpuPriority.SHARE
    grown = after(SHARE, 0.99, STARVED_SECONDS, ran_cores=0.01)
    assert grown.cpu_priority is CpuPriority.LARGE_SHARE


def test_a_large_share_that_gets_much_shrinks_and_stays_small() -> None:
    assert after(Stance(), 0.9, 100).cpu_priority is CpuPriority.LARGE_SHARE
    small = after(Stance(), 0.9, STARVED_SECONDS, ran_cores=0.2)
    assert small.cpu_priority is CpuPriority.SHARE
    assert after(small, 0.97, 100, ran_cores=0.05).cpu_priority is CpuPriority.SHARE


@given(cores=st.floats(0.0, 1.0))
def test_no_drain_goes_from_one_share_to_the_other_and_back(cores: float) -> None:
    large = after(SHARE, 0.99, STARVED_SECONDS, ran_cores=cores)
    again = after(large, 0.95, 100, ran_cores=5 * cores)

    assert again.cpu_priority is large.cpu_priority


def test_two_reasons_to_change_do_not_add_up() -> None:
    nearly = after(SHARE, 0.99, STARVED_SECONDS - 1, ran_cores=0.01)

    assert after(nearly, 0.0, FED_SECONDS - 1).cpu_priority is CpuPriority.SHARE


def test_a_starved_drain_gets_a_share_after_a_while() -> None:
    starving = after(LAST, 0.95, STARVED_SECONDS - 1)
    assert starving.cpu_priority is CpuPriority.LAST
    assert after(starving, 0.95, 1).cpu_priority is CpuPriority.SHARE
    assert after(LAST, 0.8, 100).cpu_priority is CpuPriority.LAST


def test_a_look_that_comes_late_counts_for_all_the_time_it_took() -> None:
    late = next_stance(LAST, Pressure(hunger=1.0, seconds=STARVED_SECONDS), NOBODY)

    assert late.cpu_priority is CpuPriority.SHARE


@pytest.mark.parametrize(
    ("stance", "due", "not_due", "seconds"),
    [(LAST, 0.95, 0.1, STARVED_SECONDS - 1), (SHARE, 0.0, 0.8, FED_SECONDS - 1)],
)
def test_hunger_that_comes_and_goes_changes_nothing(
    stance: Stance, due: float, not_due: float, seconds: float
) -> None:
    cpu_priority = stance.cpu_priority
    for _ in range(10):
        stance = after(after(stance, due, seconds), not_due, 1)

    assert stance.cpu_priority is cpu_priority


@pytest.mark.parametrize("stance", [LAST, SHARE])
def test_while_ranks_wait_for_room_the_drain_has_a_large_share_at_once(stance: Stance) -> None:
    assert after(stance, 0.0, 1, URGENT).cpu_priority is CpuPriority.LARGE_SHARE
