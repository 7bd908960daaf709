"""A rate between two throttlings."""

from __future__ import annotations

import pytest

from cachetier.model.pace import (
    BACK_AFTER_STORM,
    FAR_OFF,
    GENTLE_CUT,
    GROWTH_PER_SECOND,
    HARD_CUT,
    LEAST_RATE,
    READ_CALM_SECONDS,
    READ_GROWTH_PER_SECOND,
    Rate,
)

READS = (READ_GROWTH_PER_SECOND, READ_CALM_SECONDS)


def held_at(per_second: int) -> Rate:
    """Return a rate that was cut for the first time when that many a second got through."""
    rate = Rate()
    for number in range(5 * per_second):
        rate.succeeded(number / per_second)
    rate.cut(5.0)
    return rate


def known(rate: Rate) -> float:
    assert rate.per_second is not None
    return rate.per_second


def test_there_is_no_limit_before_the_first_throttling() -> None:
    rate = Rate()
    rate.begin(0.0)
    assert rate.per_second is None
    assert rate.allows_at == 0.0


def test_a_lone_refusal_after_a_pause_sets_no_rate() -> None:
    rate = Rate()
    for number in range(100):
        rate.succeeded(number / 10)
    assert rate.cut(3600.0) == GENTLE_CUT
    assert rate.per_second is None
    assert rate.allows_at == 0.0


def test_refusals_that_go_on_set_a_rate_even_where_nothing_got_through() -> None:
    rate = Rate()
    for number in range(10):
        rate.cut(float(number))
    assert rate.per_second is not None


def test_each_success_adds_the_same_whatever_the_rate() -> None:
    for per_second in (10, 100):
        rate = held_at(per_second)
        before = known(rate)
        rate.begin(rate.allows_at)
        rate.succeeded(5.0)
        assert known(rate) == pytest.approx(before + GROWTH_PER_SECOND)


def test_a_cut_is_gentle_while_most_requests_get_through() -> None:
    rate = held_at(100)
    assert rate.cut(6.0) == GENTLE_CUT


def test_a_cut_is_hard_while_most_requests_are_refused() -> None:
    rate = held_at(100)
    cuts = [rate.cut(6.0 + number) for number in range(8)]
    assert cuts[-1] == HARD_CUT
    assert cuts.index(HARD_CUT) == next(
        number for number in range(9) if 1 - (7 / 8) ** (number + 2) > FAR_OFF
    )


def test_a_rate_never_falls_to_nothing() -> None:
    rate = held_at(1)
    for number in range(50):
        rate.cut(6.0 + number)
    assert known(rate) == LEAST_RATE


def test_after_a_storm_each_success_multiplies_the_rate_up_to_where_it_held() -> None:
    rate = held_at(100)
    held = known(rate)
    for number in range(50):
        rate.cut(6.0 + number)
    rate.succeeded(60.0)
    assert known(rate) == LEAST_RATE * BACK_AFTER_STORM
    for number in range(50):
        rate.succeeded(61.0 + number)
    assert known(rate) == pytest.approx(held)


def test_a_rate_of_reads_takes_up_what_others_leave_within_seconds() -> None:
    rates = {kind: Rate(*settings) for kind, settings in {"writes": (), "reads": READS}.items()}
    for rate in rates.values():
        for number in range(100):
            rate.succeeded(number / 20)
        rate.cut(5.0)
        for number in range(200):
            rate.begin(rate.allows_at)
            rate.succeeded(5.0 + number / 20)
    assert known(rates["reads"]) > 60.0 > 30.0 > known(rates["writes"])
