"""What a link takes, from the time that single parts took."""

from __future__ import annotations

import pytest

from cachetier.drain.pace.traffic import FRESH_SECONDS, LEAST_BYTES, Throughput

PART = 16 << 20


def seen(throughput: Throughput, now: float) -> tuple[float, float]:
    """Return the guess, and what went through."""
    link = throughput.link(now)
    assert link is not None
    return link.bytes_per_second, link.seen_bytes_per_second


def guess(throughput: Throughput, now: float) -> float:
    return seen(throughput, now)[0]


def test_nothing_is_known_before_the_first_part() -> None:
    throughput = Throughput()
    throughput.note(LEAST_BYTES - 1, 1.0, 8, 8, 0.0)  # its round trip says nothing

    assert throughput.link(0.0) is None


def test_a_full_link_takes_what_its_parts_get_together() -> None:
    throughput = Throughput()
    for now in range(20):
        throughput.note(PART, 8 * PART / 50e6, 8, 8, float(now))

    assert seen(throughput, 20.0) == pytest.approx((50e6, 50e6))


def test_a_part_alone_gives_what_went_through_and_a_hope() -> None:
    throughput = Throughput()
    throughput.note(PART, PART / 90e6, 1, 8, 0.0)

    assert seen(throughput, 0.0) == pytest.approx((720e6, 90e6))


def test_what_a_full_link_took_counts_for_a_while_whatever_single_parts_promise() -> None:
    throughput = Throughput()
    throughput.note(PART, 8 * PART / 50e6, 8, 8, 0.0)
    throughput.note(PART, PART / 50e6, 1, 8, 1.0)

    assert guess(throughput, 1.0) == pytest.approx(50e6)

    later = FRESH_SECONDS + 2.0
    throughput.note(PART, PART / 50e6, 1, 8, later)
    assert guess(throughput, later) == pytest.approx(400e6)


def test_a_link_that_slows_down_is_noticed_before_it_is_full_again() -> None:
    throughput = Throughput()
    throughput.note(PART, 8 * PART / 1e9, 8, 8, 0.0)
    throughput.note(PART, PART / 5e6, 1, 8, 1.0)

    assert guess(throughput, 1.0) == pytest.approx(40e6)


def test_after_a_pause_the_last_that_was_known_counts() -> None:
    throughput = Throughput()
    throughput.note(PART, 8 * PART / 50e6, 8, 8, 0.0)

    assert guess(throughput, 3600.0) == pytest.approx(50e6)


def test_what_changes_is_followed_part_by_part() -> None:
    throughput = Throughput()
    throughput.note(PART, 8 * PART / 1e9, 8, 8, 0.0)
    for number in range(20):
        throughput.note(PART, 8 * PART / 50e6, 8, 8, 1.0 + number / 10)

    assert guess(throughput, 3.0) == pytest.approx(50e6, rel=0.05)
