"""Deadlines: what is left, and what a service may have of it."""

from __future__ import annotations

from typing import Any

import pytest
from cachetier_client import DeadlineError, InvalidRequestError
from cachetier_client.clock import SystemClock
from cachetier_client.deadline import Deadline

from tests.client.fakes import FakeClock


def test_what_is_left_shrinks_to_nothing_and_then_is_an_error() -> None:
    clock = FakeClock()
    deadline = Deadline(10, clock)
    clock.sleep(4)

    assert deadline.require("it") == deadline.remaining() == 6
    assert deadline.at_most(2).remaining() == 2
    assert deadline.at_most(20).remaining() == 6

    clock.sleep(7)
    assert deadline.remaining() == 0
    with pytest.raises(DeadlineError, match="it did not end within 10 s"):
        deadline.require("it")


@pytest.mark.parametrize(("seconds", "given"), [(0, 0), (1, 0.9), (10, 9.8), (1000, 999.8)])
def test_the_service_gets_a_little_less_so_that_its_answer_arrives(
    seconds: float, given: float
) -> None:
    assert Deadline(seconds, FakeClock()).for_service() == pytest.approx(given)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None])
def test_every_call_has_a_deadline(seconds: Any) -> None:
    with pytest.raises(InvalidRequestError, match="timeout_seconds"):
        Deadline(seconds, FakeClock())


def test_the_systems_clock_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0)

    assert clock.monotonic() >= before
    assert clock.now() > 1.7e9
