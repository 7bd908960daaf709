"""What the status says of a drain: when it last got on, and which conflicts there are."""

from __future__ import annotations

import pytest

from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.serve.stats import CONFLICTS_SHOWN, DrainStats
from cachetier.errors import ThrottledError
from cachetier.model.pace import PaceState
from tests.fakes.fake_clock import FakeClock


def traffic(stats: DrainStats, bytes_per_second: float | None) -> None:
    stats.traffic({}, PaceState(4, 0, None, None, bytes_per_second, 0))


def test_the_time_that_a_window_paused_the_drain_is_no_standstill(clock: FakeClock) -> None:
    stats = DrainStats("s3", clock)
    stats.progressed()
    traffic(stats, 0)
    clock.advance(3600.0)

    traffic(stats, None)

    assert stats.snapshot([]).remote.progressed_at == clock.now()


def test_a_pace_that_changes_while_nothing_is_paused_is_no_progress(clock: FakeClock) -> None:
    stats = DrainStats("s3", clock)
    stats.progressed()
    progressed_at = clock.now()
    traffic(stats, 1000.0)
    clock.advance(3600.0)

    traffic(stats, None)

    assert stats.snapshot([]).remote.progressed_at == progressed_at


def test_of_many_conflicts_the_newest_are_shown(clock: FakeClock) -> None:
    stats = DrainStats("s3", clock)
    for version in range(CONFLICTS_SHOWN + 1):
        assert stats.conflict(version, f"conflict {version}")

    shown = stats.snapshot([]).conflicts
    assert len(shown) == CONFLICTS_SHOWN
    assert (shown[0], shown[-1]) == ("conflict 1", f"conflict {CONFLICTS_SHOWN}")
    assert not stats.conflict(1, "conflict 1")


def test_what_the_drain_counted_is_added_to_the_figures_of_these_names(clock: FakeClock) -> None:
    traffic, stats = Traffic(2, clock), DrainStats("s3", clock)
    for _ in range(2):
        traffic.observe("put", 0.1, 5, "ok")
        traffic.observe("put", 0.1, 0, ThrottledError.code)
        news = traffic.news()
        assert news is not None
        stats.traffic(*news)

    shown = stats.snapshot([])
    assert (shown.sent_bytes, shown.remote.requests, shown.remote.throttled) == (10, 4, 2)
    with pytest.raises(AttributeError, match="unheard_of"):
        stats.copied({"unheard_of": 1}, "on")
