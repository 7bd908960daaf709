"""Whoever waits looks again whenever the bell rings, and not longer than its deadline."""

from __future__ import annotations

import threading

from cachetier.notifier import Changes
from tests.fakes.fake_clock import FakeClock


def test_what_holds_already_needs_no_bell() -> None:
    assert Changes(FakeClock()).wait_for(lambda: True, 0.0)


def test_without_time_left_there_is_one_look() -> None:
    looks = [0]

    def satisfied() -> bool:
        looks[0] += 1
        return False

    assert not Changes(FakeClock()).wait_for(satisfied, 0.0)
    assert looks == [1]


def test_a_ring_between_the_look_and_the_wait_is_not_missed() -> None:
    changes, looks = Changes(FakeClock()), [0]

    def satisfied() -> bool:
        looks[0] += 1
        changes.ring()  # something changes just after we looked
        return looks[0] == 3

    assert changes.wait_for(satisfied, 1000.0)
    assert looks == [3]


def test_a_ring_wakes_whoever_waits() -> None:
    changes, holds, looked = Changes(FakeClock()), threading.Event(), threading.Event()
    found: list[bool] = []

    def satisfied() -> bool:
        looked.set()
        return holds.is_set()

    waiter = threading.Thread(
        target=lambda: found.append(changes.wait_for(satisfied, 1000.0)), daemon=True
    )
    waiter.start()
    assert looked.wait(30)
    holds.set()
    changes.ring()
    waiter.join(30)

    assert found == [True]


def test_the_deadline_ends_a_wait_whatever_rings() -> None:
    clock = FakeClock()
    changes = Changes(clock)

    def satisfied() -> bool:
        clock.advance(4.0)
        changes.ring()
        return False

    assert not changes.wait_for(satisfied, 10.0)
    assert clock.monotonic() == 1_012.0


def test_a_stop_lets_every_waiter_go() -> None:
    changes = Changes(FakeClock())
    changes.close()

    assert not changes.wait_for(lambda: False, 1000.0)
    assert changes.wait_for(lambda: True, 1000.0), "what holds is still told"


def test_rings_are_counted_for_those_who_come_back() -> None:
    changes = Changes(FakeClock())
    seen = changes.next_ring(-1, 0.0)
    changes.ring()

    assert changes.next_ring(seen, 1000.0) == seen + 1
    assert changes.next_ring(seen + 1, 0.0) == seen + 1, "no ring in time"
