"""The circuit breaker: every event in every state, and when the next probe is due."""

from __future__ import annotations

import pytest
from cachetier_client.circuit_breaker import BreakerState, CircuitBreaker

PROBE, LIMIT = 1.0, 8.0


def breaker_in(state: BreakerState) -> CircuitBreaker:
    """Return a breaker that came to ``state`` at 0, the natural way."""
    breaker = CircuitBreaker(PROBE, LIMIT)
    if state is not BreakerState.CLOSED:
        breaker.failed(0.0)
    if state is BreakerState.HALF_OPEN:
        breaker.probe_passed()
    return breaker


@pytest.mark.parametrize(
    ("before", "news"),
    [(BreakerState.CLOSED, True), (BreakerState.OPEN, False), (BreakerState.HALF_OPEN, True)],
)
def test_a_failure_opens_it_and_is_news_but_once(before: BreakerState, news: bool) -> None:
    breaker = breaker_in(before)

    assert breaker.failed(0.5) is news
    assert breaker.state is BreakerState.OPEN


@pytest.mark.parametrize(
    ("before", "news"),
    [(BreakerState.CLOSED, False), (BreakerState.OPEN, True), (BreakerState.HALF_OPEN, True)],
)
def test_a_success_closes_it_and_is_news_but_once(before: BreakerState, news: bool) -> None:
    breaker = breaker_in(before)

    assert breaker.succeeded() is news
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("state", [BreakerState.CLOSED, BreakerState.HALF_OPEN])
def test_only_an_open_one_is_probed(state: BreakerState) -> None:
    breaker = breaker_in(state)

    assert not breaker.takes_probe(100.0)
    assert not breaker.probe_passed()
    assert breaker.state is state


def test_a_probe_is_due_after_a_while_and_one_caller_takes_it() -> None:
    breaker = breaker_in(BreakerState.OPEN)

    assert not breaker.takes_probe(0.9)
    assert breaker.takes_probe(1.0)
    assert not breaker.takes_probe(1.9)
    assert breaker.takes_probe(2.0)


def test_the_next_probe_is_due_a_while_after_one_that_took_long_has_failed() -> None:
    breaker = breaker_in(BreakerState.OPEN)
    assert breaker.takes_probe(1.0)
    breaker.probe_failed(31.0)

    assert breaker.state is BreakerState.OPEN
    assert not breaker.takes_probe(31.9)
    assert breaker.takes_probe(32.0)


def test_more_failures_while_it_is_open_put_no_probe_off() -> None:
    breaker = breaker_in(BreakerState.OPEN)
    breaker.failed(0.9)

    assert breaker.takes_probe(1.0)


def test_a_probe_that_passes_lets_one_call_try() -> None:
    breaker = breaker_in(BreakerState.OPEN)

    assert breaker.probe_passed()
    assert breaker.state is BreakerState.HALF_OPEN


def test_probes_that_pass_in_vain_get_rarer_up_to_the_limit() -> None:
    breaker, now, waits = breaker_in(BreakerState.CLOSED), 0.0, []
    for _ in range(6):
        breaker.failed(now)
        waits.append(breaker.probe_at - now)
        now = breaker.probe_at
        assert breaker.takes_probe(now)
        breaker.probe_passed()

    assert waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    breaker.succeeded()
    breaker.failed(now)
    assert breaker.probe_at - now == PROBE
