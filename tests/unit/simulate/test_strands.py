"""Blocking code goes on at the instant that it waits for, in the order that the events decide."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from cachetier.simulate.events import Events
from cachetier.simulate.strands import Strands, wait


def slept(events: Events, seconds: float, answer: object) -> object:
    def begin(resume: Callable[[object], None]) -> None:
        events.after(seconds, partial(resume, answer))

    return wait(begin)


def test_strands_wait_beside_each_other_and_go_on_with_their_answers() -> None:
    events, seen = Events(), list[object]()

    def work(seconds: float) -> None:
        seen.append((events.now(), slept(events, seconds, "first"), events.now()))
        seen.append((slept(events, 1.0, "second"), events.now()))

    strands = Strands(events)
    for seconds in (5.0, 2.0):
        strands.begin(partial(work, seconds))
    events.run(10.0)
    assert seen == [(0.0, "first", 2.0), ("second", 3.0), (0.0, "first", 5.0), ("second", 6.0)]


def test_a_map_calls_for_all_at_once_and_keeps_their_order() -> None:
    events, seen = Events(), list[object]()
    strands = Strands(events)

    def double(number: int) -> int:
        slept(events, 10.0 - number, None)
        return 2 * number

    strands.begin(lambda: seen.extend([*strands.map(double, [1, 2, 3]), events.now()]))
    strands.begin(lambda: seen.extend(strands.map(double, [])))
    events.run(20.0)
    assert seen == [2, 4, 6, 9.0]


def test_what_a_map_raises_is_raised_where_it_was_called() -> None:
    events, seen = Events(), list[str]()
    strands = Strands(events)

    def fail(number: int) -> None:
        slept(events, number, None)
        raise ValueError(f"of {number}")

    def work() -> None:
        with pytest.raises(ValueError, match="of 1"):
            list(strands.map(fail, [2, 1]))
        seen.append("raised")

    strands.begin(work)
    events.run(5.0)
    assert seen == ["raised"]
