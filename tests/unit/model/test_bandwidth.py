"""Limits of bandwidth, as people write them and as they hold through the day."""

from __future__ import annotations

import pytest

from cachetier.model.bandwidth import Bandwidth, parsed_bandwidth, parsed_rate

DAY, NIGHT = 12 * 60, 2 * 60


def test_without_limits_nothing_is_limited() -> None:
    assert parsed_bandwidth(()).at(DAY) is None


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2 GB/s", 2e9), ("500MiB/s", 500 * 2**20), ("0", 0.0), ("0/s", 0.0)],
)
def test_a_rate_is_a_size_a_second(text: str, rate: float) -> None:
    assert parsed_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "2 GB/h", "-1", "2 GB/s/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="such as '2 GB/s'"):
        parsed_rate(text)


def test_a_number_without_a_unit_is_no_rate() -> None:
    with pytest.raises(ValueError, match="write '200 MB/s' or '200 Gbit/s'"):
        parsed_rate("200")


def test_a_window_holds_instead_of_the_limit() -> None:
    bandwidth = parsed_bandwidth(["2 GB/s", "08:00-20:00 200 MB/s"])
    assert [bandwidth.at(minute) for minute in (479, 480, 1199, 1200)] == [2e9, 2e8, 2e8, 2e9]


def test_a_window_may_reach_over_midnight() -> None:
    bandwidth = parsed_bandwidth(["22:00-06:00 1 GB/s"])
    assert [bandwidth.at(minute) for minute in (DAY, 22 * 60, NIGHT, 6 * 60)] == [
        None,
        1e9,
        1e9,
        None,
    ]


def test_of_two_windows_the_first_one_holds() -> None:
    bandwidth = parsed_bandwidth(["12:00-13:00 0", "08:00-24:00 1 MB/s"])
    assert bandwidth.at(DAY) == 0
    assert bandwidth.at(DAY + 60) == 1e6


def test_who_waits_is_not_kept_waiting_by_a_window_but_by_the_limit() -> None:
    bandwidth = parsed_bandwidth(["1 GB/s", "00:00-24:00 0"])
    assert bandwidth.at(DAY) == 0
    assert bandwidth.at(DAY, hurried=True) == 1e9
    assert Bandwidth().at(DAY, hurried=True) is None


@pytest.mark.parametrize(
    "window",
    ["08:00-20:00", "8:00-20:00 1 MB/s", "25:00-26:00 1", "08:60-09:00 1", "08:00-08:00 1"],
)
def test_what_is_no_window_is_refused(window: str) -> None:
    with pytest.raises(ValueError, match=r"such as|no such time"):
        parsed_bandwidth([window])


def test_a_limit_that_would_stop_the_drain_for_ever_is_refused() -> None:
    with pytest.raises(ValueError, match="never drain"):
        parsed_bandwidth(["0"])
