"""The clock of a store, as the dates of its answers tell."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from cachetier.remote.store_clock import REMEMBERED, StoreClock

OFFSET = 1_700_000_000.37


class Own:
    """Our own clock, which stands still until a test moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def own() -> Own:
    return Own()


def answer(
    clock: StoreClock, own: Own, before: float, after: float, offset: float = OFFSET
) -> None:
    """Have a store answer ``before`` seconds after the question, which comes ``after`` it did."""
    asked = own.now
    date = formatdate(own.now + before + offset, usegmt=True)
    own.now += before + after
    clock.heard(date, asked)


def test_nothing_is_known_before_the_first_answer(own: Own) -> None:
    clock = StoreClock(own)
    assert clock.now() is None and clock.between is None


def test_one_answer_tells_the_time_to_a_second_and_how_long_it_took(own: Own) -> None:
    clock = StoreClock(own)
    answer(clock, own, 0.2, 0.1)
    now = clock.now()
    assert now is not None and abs(now - own.now - OFFSET) <= 0.65


@pytest.mark.parametrize("seed", range(5))
def test_many_answers_tell_it_better_than_a_second_and_never_wrong(own: Own, seed: int) -> None:
    clock, chance = StoreClock(own), random.Random(seed)
    for _ in range(50):
        answer(clock, own, chance.random() * 0.05, chance.random() * 0.05)
        own.now += chance.random() * 3.0
        assert clock.between is not None
        assert clock.between[0] <= OFFSET <= clock.between[1]
    assert clock.between is not None and clock.between[1] - clock.between[0] < 0.3


def test_a_store_whose_clock_was_set_is_believed(own: Own) -> None:
    clock = StoreClock(own)
    answer(clock, own, 0.1, 0.1)
    answer(clock, own, 0.1, 0.1, OFFSET - 3600.0)
    now = clock.now()
    assert now is not None and abs(now - own.now - (OFFSET - 3600.0)) <= 0.65


@pytest.mark.parametrize("date", [None, "", "yesterday", "99 Foo 2020"])
def test_what_is_no_date_tells_nothing(own: Own, date: str | None) -> None:
    clock = StoreClock(own)
    clock.heard(date, 999.0)
    assert clock.between is None


def test_what_was_acknowledged_before_the_time_was_known_gets_its_time_later(own: Own) -> None:
    clock = StoreClock(own)
    clock.acknowledged(7, None)
    assert clock.acknowledged_at(7) is None
    clock.acknowledged(8, 1.0)  # as was known
    own.now += 100.0
    clock.learn((OFFSET, OFFSET))
    assert clock.acknowledged_at(7) == 1000.0 + OFFSET
    assert clock.acknowledged_at(8) is None


def test_what_was_before_this_process_began_is_told_from_what_was_since(own: Own) -> None:
    clock = StoreClock(own)
    began = own.now + OFFSET
    own.now += 2.0
    assert clock.is_from_before(began + 1.0), "as long as nobody knows the time"
    clock.learn((OFFSET, OFFSET))
    assert [clock.is_from_before(at) for at in (None, began - 0.1, began + 0.1)] == [
        True,
        True,
        False,
    ]


def test_what_is_remembered_is_bounded(own: Own) -> None:
    clock = StoreClock(own)
    for version in range(REMEMBERED + 1):
        clock.acknowledged(version, None)
    clock.learn((OFFSET, OFFSET))
    assert clock.acknowledged_at(0) is None
    assert clock.acknowledged_at(REMEMBERED) is not None
