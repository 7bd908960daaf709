"""A countdown begins when it is first looked at."""

from __future__ import annotations

from cachetier_client.clock import Countdown

from tests.fakes.fake_clock import FakeClock


def test_a_countdown_begins_with_the_first_question_and_ends_at_nothing() -> None:
    clock = FakeClock()
    countdown = Countdown(5.0, clock)
    clock.advance(100.0)
    assert countdown.left() == 5.0

    clock.advance(2.0)
    assert countdown.left() == 3.0
    clock.advance(100.0)
    assert countdown.left() == 0.0
