"""How the pace of requests follows what the store says."""

from __future__ import annotations

import math

import pytest

from benchmarks.drain.simulated_shares import shares
from cachetier.model.pace import (
    GENTLE_CUT,
    LEAST_RATE,
    LIFT_SECONDS,
    Pace,
    Ticket,
)
from cachetier.simulate.events import Events
from cachetier.simulate.node import SimulatedWork, crowd
from cachetier.simulate.store import SimulatedStore

PARTS = SimulatedWork(size_bytes=1 << 20)


def begin(pace: Pace, now: float, size_bytes: int = 1) -> Ticket:
    assert pace.wait_seconds(now, size_bytes) == 0.0
    return pace.begin(now, size_bytes)


def succeed(pace: Pace, times: int, now: float = 0.0) -> None:
    for _ in range(times):
        pace.succeeded(begin(pace, now), now)


def throttle(pace: Pace, now: float, retry_after_seconds: float | None = None) -> None:
    """Begin a request as soon as it may, and throttle it."""
    while wait_seconds := pace.wait_seconds(now, 1):
        now += wait_seconds
    pace.throttled(begin(pace, now), now, retry_after_seconds)


def rate_of(pace: Pace) -> float:
    rate = pace.state().writes_per_second
    return math.inf if rate is None else rate


def test_after_a_cut_the_window_grows_back_by_one_for_each_window_of_successes() -> None:
    pace = Pace(16)
    succeed(pace, 100)
    throttle(pace, 1.0)
    cut = pace.state().concurrency
    assert cut < 8
    now = 2.0
    for _ in range(cut + 1):
        now += pace.wait_seconds(now, 1)
        succeed(pace, 1, now)
    assert pace.state().concurrency == cut + 1


def test_a_request_beyond_the_window_waits_for_another_to_end() -> None:
    pace = Pace(1)
    begin(pace, 0.0)
    assert pace.wait_seconds(0.0, 0) == math.inf
    pace.failed(0.0)
    assert pace.wait_seconds(0.0, 0) == 0.0


def test_the_first_throttling_sets_the_rate_to_what_was_getting_through() -> None:
    pace = Pace(16)
    for tenth in range(50):
        succeed(pace, 1, tenth / 10)
    throttle(pace, 5.0)
    assert rate_of(pace) == pytest.approx(10 * GENTLE_CUT, rel=0.05)


def test_requests_that_began_before_a_cut_do_not_cut_again() -> None:
    pace = Pace(16)
    succeed(pace, 100)
    tickets = [begin(pace, 1.0) for _ in range(4)]
    for ticket in tickets:
        pace.throttled(ticket, 1.1, None)
    assert pace.state().cuts == 1


def test_requests_are_spaced_evenly_by_the_rate() -> None:
    pace = Pace(16)
    for tenth in range(50):
        succeed(pace, 1, tenth / 10)
    throttle(pace, 5.0)
    first = 5.0 + pace.wait_seconds(5.0, 1)
    begin(pace, first)
    assert pace.wait_seconds(first, 1) == pytest.approx(1 / rate_of(pace), abs=0.06)


def test_retry_after_is_waited_in_full_and_then_some_so_that_not_all_come_at_once() -> None:
    pace = Pace(16, fraction=lambda: 0.5)
    throttle(pace, 0.0, retry_after_seconds=10.0)
    assert pace.wait_seconds(0.0, 0) == pytest.approx(11.0)


def test_a_failure_says_nothing_about_the_pace() -> None:
    pace = Pace(16)
    begin(pace, 0.0)
    pace.failed(0.0)
    assert (pace.state().cuts, pace.state().in_flight) == (0, 0)


def test_after_a_storm_the_rate_is_back_within_a_few_requests() -> None:
    pace = Pace(16)
    for hundredth in range(500):
        succeed(pace, 1, hundredth / 100)
    now = 5.0
    while now < 65.0:
        now += pace.wait_seconds(now, 1)
        pace.throttled(begin(pace, now), now, None)
    assert rate_of(pace) == LEAST_RATE
    while rate_of(pace) < 80.0:
        now += pace.wait_seconds(now, 1)
        succeed(pace, 1, now)
    assert now - 65.0 < 10.0


def test_throttled_writes_do_not_hold_reads_back() -> None:
    pace = Pace(16)
    succeed(pace, 20)
    throttle(pace, 0.0)
    assert pace.wait_seconds(0.0, 1) > 0.0
    assert pace.wait_seconds(0.0, 0, reads=True) == 0.0
    assert pace.state().reads_per_second is None


def test_a_long_calm_lifts_the_rate() -> None:
    pace = Pace(16)
    succeed(pace, 20)
    throttle(pace, 0.0)
    assert pace.state().writes_per_second is not None
    succeed(pace, 1, LIFT_SECONDS + 1.0)
    assert pace.state().writes_per_second is None


def test_a_rate_that_nobody_uses_up_does_not_grow() -> None:
    pace = Pace(16)
    succeed(pace, 20)
    throttle(pace, 0.0)
    before = rate_of(pace)
    for minute in range(1, 4):
        succeed(pace, 1, 60.0 * minute)
    assert rate_of(pace) == before


def test_bytes_put_off_what_comes_next() -> None:
    pace = Pace(16, bytes_limit=lambda: 1000.0)
    begin(pace, 0.0, 500)
    assert pace.wait_seconds(0.0, 500) == pytest.approx(0.5, abs=0.06)
    assert pace.wait_seconds(0.0, 0) == 0.0


def test_nothing_with_a_body_begins_while_nothing_may_be_sent() -> None:
    pace = Pace(16, bytes_limit=lambda: 0.0)
    assert pace.wait_seconds(0.0, 1) == math.inf
    assert pace.wait_seconds(0.0, 0) == 0.0


@pytest.mark.parametrize("rate", [5.0, 10.0, 50.0, 200.0])
def test_one_node_uses_a_token_bucket_up_and_is_rarely_refused(rate: float) -> None:
    events = Events()
    nodes = crowd(events, SimulatedStore(events, rate), 1, PARTS, seed=1)
    events.run(until_seconds=120.0)
    found = shares(nodes, 20.0, 120.0)
    assert found.per_second / rate > 0.95
    assert found.rejected_share < 0.05


def test_eight_nodes_that_share_a_bucket_come_to_fair_shares() -> None:
    events = Events()
    nodes = crowd(events, SimulatedStore(events, 100.0), 8, PARTS, seed=1, within_seconds=2.0)
    events.run(until_seconds=240.0)
    found = shares(nodes, 60.0, 240.0)
    assert found.fairness > 0.95
    assert found.per_second / 100.0 > 0.9
