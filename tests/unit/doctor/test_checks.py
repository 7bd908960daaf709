"""The table of checks, and the rules that every finding keeps."""

from __future__ import annotations

import pytest

from cachetier.doctor.checks import FIRST, NAMES, NODE_CHECKS, REMOTE_CHECKS, checked_names
from cachetier.doctor.findings import CheckResult, State, fail, ok, skipped, warn, worst
from cachetier.doctor.nodebench import NodeBenchOptions, NoRoomError, Row, room_for
from cachetier.doctor.rawdisk import Times
from cachetier.errors import InvalidRequestError


def test_each_check_has_a_name_of_its_own() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert set(NAMES) >= FIRST


def test_all_checks_run_unless_some_are_named() -> None:
    assert checked_names([]) == set(NAMES)
    assert checked_names(["sync", "clock"]) == {"sync", "clock"}
    assert checked_names(["remote"]) == {check.name for check in REMOTE_CHECKS}
    assert checked_names(["disk"]) == {c.name for c in NODE_CHECKS if c.group == "disk"}


def test_an_unknown_check_names_the_nearest() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_names(["multi-part"])
    assert caught.value.hint == "Did you mean multipart?"
    with pytest.raises(InvalidRequestError) as caught:
        checked_names(["zzz"])
    assert "filesystem" in caught.value.hint


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        (State.WARN, ""),
        (State.FAIL, ""),
        (State.OK, "Do it."),
        (State.SKIPPED, "Do it."),
    ],
)
def test_a_fix_goes_with_what_is_wrong_and_with_nothing_else(state: State, fix: str) -> None:
    with pytest.raises(ValueError, match="a fix goes with"):
        CheckResult(state, "measured", fix)


def test_the_worst_finding_decides_and_skipped_ones_do_not_count() -> None:
    fine, odd, bad = ok("x"), warn("x", "Do."), fail("x", "Do.")
    assert worst([fine, skipped("x")]) is State.OK
    assert worst([fine, odd]) is State.WARN
    assert worst([odd, bad, fine]) is State.FAIL


def test_percentiles_are_of_what_was_measured() -> None:
    times = Times.of([float(number) for number in range(1, 101)])
    assert (times.count, times.p50_seconds, times.p99_seconds) == (100, 51.0, 100.0)
    assert Times.of([3.0]).p99_seconds == 3.0


def test_the_ratio_is_the_services_share_of_the_disk_for_rates_and_for_times() -> None:
    assert Row("put", "bytes_per_second", 90.0, 100.0).ratio == pytest.approx(0.9)
    assert Row("p50", "seconds", 4.0, 1.0).ratio == pytest.approx(0.25)
    assert Row("p50", "seconds", 4.0, None).ratio is None


def test_a_bench_never_drives_out_what_others_need() -> None:
    plan = NodeBenchOptions(size_bytes=100, ranks=2)
    room_for({"capacity_bytes": 1000, "used_bytes": 500}, plan)
    with pytest.raises(NoRoomError, match="199 B to spare"):
        room_for({"capacity_bytes": 1000, "used_bytes": 501}, plan)
