"""What ranks say of themselves, and how long it counts."""

from __future__ import annotations

from cachetier.training_hints import HINT_SECONDS, RANKS_LIMIT, Hints, Phases
from tests.fakes.fake_clock import FakeClock


def test_nobody_has_said_anything() -> None:
    assert Phases(FakeClock()).hints() == Hints(0, 0)


def test_each_rank_counts_once_by_its_latest_word() -> None:
    phases = Phases(FakeClock())
    for _ in range(3):
        phases.report("a", busy=True)
    phases.report("b", busy=True)
    assert phases.hints() == Hints(hinting_ranks=2, busy_ranks=2)
    phases.report("a", busy=False)
    assert phases.hints() == Hints(hinting_ranks=2, busy_ranks=1)


def test_a_hint_ends_by_itself_busy_or_not() -> None:
    clock = FakeClock()
    phases = Phases(clock)
    phases.report("a", busy=True)
    clock.advance(HINT_SECONDS / 2)
    phases.report("b", busy=False)
    clock.advance(HINT_SECONDS / 2)
    assert phases.hints() == Hints(hinting_ranks=1, busy_ranks=0)
    clock.advance(HINT_SECONDS / 2)
    assert phases.hints() == Hints(0, 0)


def test_a_hint_told_again_lasts_longer() -> None:
    clock = FakeClock()
    phases = Phases(clock)
    phases.report("a", busy=True)
    phases.report("b", busy=True)
    clock.advance(HINT_SECONDS - 1)
    phases.report("a", busy=True)
    clock.advance(2)

    assert phases.hints() == Hints(hinting_ranks=1, busy_ranks=1)


def test_a_hint_ends_with_the_connection_it_came_by() -> None:
    phases, first, second = Phases(FakeClock()), object(), object()
    phases.report("a", busy=True, via=first)
    phases.report("a", busy=True, via=second)
    phases.leave("a", via=first)
    assert phases.hints().busy_ranks == 1
    phases.leave("a", via=second)
    assert phases.hints() == Hints(0, 0)
    phases.leave("a", via=second)


def test_of_too_many_the_oldest_are_forgotten() -> None:
    phases = Phases(FakeClock())
    for number in range(RANKS_LIMIT + 10):
        phases.report(f"rank-{number}", busy=number < 10)

    assert phases.hints() == Hints(hinting_ranks=RANKS_LIMIT, busy_ranks=0)
