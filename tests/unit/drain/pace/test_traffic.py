"""What is known, and told, of the requests to one remote."""

from __future__ import annotations

import time

from cachetier_client.bucket_format.uploads import LARGE_PART_BYTES, PART_BYTES, SMALL_PART_BYTES

from cachetier.drain.pace.traffic import Traffic
from cachetier.errors import ThrottledError
from cachetier.model.bandwidth import Bandwidth, Window
from tests.fakes.fake_clock import FakeClock

ALL_DAY = Window(0, 24 * 60, 1000.0)


def throttle(traffic: Traffic) -> None:
    """Have a rate set: requests that get through, then one that is refused."""
    for _ in range(20):
        traffic.pace.succeeded(traffic.pace.begin(0.0, 0), 0.0)
    traffic.pace.throttled(traffic.pace.begin(0.0, 0), 0.0, None)


def test_news_are_told_once() -> None:
    traffic = Traffic(16, FakeClock())
    traffic.news()
    assert traffic.news() is None
    traffic.observe("put", 0.1, 5, "ok")
    traffic.observe("put", 0.1, 0, ThrottledError.code)
    news = traffic.news()
    assert news is not None
    assert (news.requests, news.throttled) == (2, 1)
    assert traffic.news() is None


def test_a_change_of_pace_is_news() -> None:
    traffic = Traffic(16, FakeClock())
    traffic.news()
    traffic.pace.throttled(traffic.pace.begin(0.0, 0), 0.0, None)
    news = traffic.news()
    assert news is not None
    assert news.pace.cuts == 1


def test_a_window_limits_the_bytes_until_somebody_waits() -> None:
    traffic = Traffic(
        16,
        FakeClock(now=time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))),
        Bandwidth(None, (ALL_DAY,)),
    )
    assert traffic.pace.state().bytes_per_second == 1000.0
    traffic.hurried = True
    assert traffic.pace.state().bytes_per_second is None


def test_parts_follow_what_the_link_gives() -> None:
    traffic = Traffic(16, FakeClock())
    assert traffic.usual_upload_part_bytes() == PART_BYTES
    for _ in range(20):
        traffic.observe("upload_part", 100.0, PART_BYTES, "ok")
    assert traffic.usual_upload_part_bytes() == SMALL_PART_BYTES
    throttle(traffic)
    assert traffic.usual_upload_part_bytes() == LARGE_PART_BYTES


def test_a_slow_part_may_go_twice_while_half_of_the_requests_are_free() -> None:
    traffic = Traffic(4, FakeClock())
    traffic.pace.begin(0.0, 0)
    traffic.pace.begin(0.0, 0)
    assert traffic.has_room()
    traffic.pace.begin(0.0, 0)
    assert not traffic.has_room()


def test_nothing_goes_twice_while_a_limit_holds() -> None:
    traffic = Traffic(4, FakeClock())
    throttle(traffic)
    assert not traffic.has_room()
    assert not Traffic(4, FakeClock(), Bandwidth(1e9)).has_room()
