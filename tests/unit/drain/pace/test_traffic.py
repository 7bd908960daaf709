"""What is known, and told, of the requests to one remote."""

from __future__ import annotations

import time
from dataclasses import astuple, replace

from cachetier_client.bucket_format.uploads import LARGE_PART_BYTES, PART_BYTES, SMALL_PART_BYTES

from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.upload.compression_model import LinkRate
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
    assert news[0] == {"requests": 2, "throttled": 1, "sent_bytes": 5}
    assert traffic.news() is None


def test_a_change_of_pace_is_news() -> None:
    traffic = Traffic(16, FakeClock())
    traffic.news()
    traffic.pace.throttled(traffic.pace.begin(0.0, 0), 0.0, None)
    news = traffic.news()
    assert news is not None
    assert news[1].cuts == 1


def test_a_window_limits_the_bytes_until_somebody_waits() -> None:
    traffic = Traffic(
        16,
        FakeClock(now=time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))),
        Bandwidth(None, (ALL_DAY,)),
    )
    assert traffic.pace.state().bytes_per_second == 1000.0
    traffic.hurried = True
    assert traffic.pace.state().bytes_per_second is None


def test_what_a_person_set_holds_beside_the_settings_also_while_somebody_waits() -> None:
    traffic = Traffic(2, FakeClock(), Bandwidth(5000.0, ()))
    for limit, holds in ((1000.0, 1000.0), (9000.0, 5000.0), (None, 5000.0)):
        traffic.rate_limit, traffic.hurried = limit, True
        assert traffic.pace.state().bytes_per_second == holds


def test_parts_follow_what_the_link_gives() -> None:
    traffic = Traffic(16, FakeClock())
    assert traffic.usual_upload_part_bytes() == PART_BYTES
    for _ in range(20):
        traffic.observe("upload_part", 100.0, PART_BYTES, "ok")
    assert traffic.usual_upload_part_bytes() == SMALL_PART_BYTES
    throttle(traffic)
    assert traffic.usual_upload_part_bytes() == LARGE_PART_BYTES


def test_parts_are_small_while_little_waits() -> None:
    traffic = Traffic(16, FakeClock())
    traffic.handed_out(512 << 20, all_of_it=True)
    assert traffic.usual_upload_part_bytes() == SMALL_PART_BYTES
    traffic.handed_out((2 << 30) - (512 << 20), all_of_it=True)
    assert traffic.usual_upload_part_bytes() == PART_BYTES
    traffic.ended(2 << 30)
    traffic.handed_out(0, all_of_it=True)
    throttle(traffic)
    assert traffic.usual_upload_part_bytes() == LARGE_PART_BYTES


def test_a_slow_part_may_go_twice_while_half_of_the_requests_are_free() -> None:
    traffic = Traffic(4, FakeClock())
    traffic.pace.begin(0.0, 0)
    traffic.pace.begin(0.0, 0)
    assert traffic.pace.has_room()
    traffic.pace.begin(0.0, 0)
    assert not traffic.pace.has_room()


def test_nothing_goes_twice_while_a_limit_holds() -> None:
    traffic = Traffic(4, FakeClock())
    throttle(traffic)
    assert not traffic.pace.has_room()
    assert not Traffic(4, FakeClock(), Bandwidth(1e9)).pace.has_room()
    assert not Traffic(4, FakeClock(), Bandwidth(0)).pace.has_room()


def sent(traffic: Traffic, bytes_per_second: float) -> None:
    """Have a part sent so fast, by as many at once as may be."""
    traffic.observe("upload_part", PART_BYTES / bytes_per_second, PART_BYTES, "ok")


def test_the_link_takes_no_more_than_a_window_allows_however_fast_it_is() -> None:
    clock = FakeClock()
    unlimited, limited = Traffic(1, clock), Traffic(1, clock, Bandwidth(1e6))
    for traffic in (unlimited, limited):
        traffic.pace.begin(0.0, 0)
        for _ in range(20):
            clock.advance(1.0)
            sent(traffic, 1e9)

    known = unlimited.link()
    assert known is not None
    assert min(astuple(known)) > 1e6
    assert limited.link() == LinkRate(1e6, 1e6)


def test_of_a_link_that_nobody_knows_yet_the_limit_is_believed() -> None:
    assert Traffic(4, FakeClock()).link() is None
    assert Traffic(4, FakeClock(), Bandwidth(1e6)).link() == LinkRate(1e6, 1e6)


def test_a_store_that_throttles_writes_takes_so_many_large_parts() -> None:
    traffic = Traffic(4, FakeClock())
    throttle(traffic)
    writes_per_second = traffic.pace.state().writes_per_second
    assert writes_per_second is not None

    limit = writes_per_second * LARGE_PART_BYTES
    assert traffic.link() == LinkRate(limit, limit)


def test_a_paused_drain_has_a_link_that_can_be_divided_by() -> None:
    pause = Bandwidth(None, (replace(ALL_DAY, bytes_per_second=0.0),))
    noon = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))

    assert Traffic(4, FakeClock(now=noon), pause).link() == LinkRate(1.0, 1.0)
