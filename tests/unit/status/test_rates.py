"""Rates of `top` are differences of status figures, by the node's own clock."""

from __future__ import annotations

from typing import Any

import pytest

from cachetier.status.rates import WINDOW_SECONDS, Node, described


def status(uptime: float, *, put: int = 0, drained: int = 0, **changes: Any) -> dict[str, Any]:
    replica = {"name": "near", "role": "replica", "drain": {"drained_bytes": drained // 2}}
    return {
        "state": "ready",
        "started_at": 1000.0,
        "uptime_seconds": uptime,
        "flow": {"put_bytes": put, "restored_bytes": 3 * put, "evicted_bytes": 0},
        "drain": {"drained_bytes": drained},
        "remotes": [
            {"name": "durable", "role": "durable", "state": "ok"},
            {**replica, "state": "throttled"},
        ],
        **changes,
    }


def node(*answers: dict[str, Any]) -> Node:
    seen = Node("unix:///x")
    for answer in answers:
        seen.answered(answer)
    return seen


def test_one_look_gives_no_rate() -> None:
    assert node(status(1.0)).rates().put is None


def test_a_rate_is_a_difference_by_the_clock_of_the_node() -> None:
    rates = node(status(10.0, put=100, drained=400), status(12.0, put=300, drained=1000)).rates()
    assert (rates.put, rates.restored, rates.drained) == (100.0, 300.0, 300.0)
    assert rates.remotes == {"durable": 300.0, "near": 150.0}


def test_rates_look_back_over_the_window_and_no_further() -> None:
    looks = [status(float(second), put=1000 * (second > 50)) for second in range(61)]
    assert node(*looks).rates().put == pytest.approx(1000 / WINDOW_SECONDS)
    later = [*looks, *(status(float(second), put=1000) for second in range(61, 72))]
    assert node(*later).rates().put == 0.0


def test_looks_far_apart_still_give_a_rate() -> None:
    assert node(*(status(60.0 * i, put=600 * i) for i in range(4))).rates().put == 10.0


def test_a_restart_begins_anew_and_is_no_negative_rate() -> None:
    restarted = status(1.0, put=5, started_at=2000.0)
    assert node(status(50.0, put=9999), restarted).rates().put is None


def test_a_clock_that_was_set_back_begins_anew() -> None:
    looks = [status(float(second), put=100 * second) for second in range(3600, 3605)]
    later = [status(float(second), put=400_000 + 50 * second) for second in range(60)]
    assert node(*looks, *later).rates().put == 50.0


def test_a_drain_that_was_restarted_is_no_negative_rate() -> None:
    assert node(status(1.0, drained=500), status(2.0, drained=0)).rates().drained == 0.0


def test_a_node_that_went_away_says_since_when_until_it_answers() -> None:
    seen = node(status(1.0), status(2.0))
    seen.failed("cannot connect", 70.0)
    seen.failed("cannot connect", 80.0)
    assert (seen.error, seen.away_since) == ("cannot connect", 70.0)
    assert seen.rates().put is None
    assert described(seen) == {"url": "unix:///x", "state": "away", "error": "cannot connect"}
    seen.answered(status(3.0))
    assert (seen.error, seen.away_since) == (None, None)
