"""What a plan of checkpoints comes to: the field's own figures, and impossible ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.cadence import Figure
from cachetier_client.errors import InvalidRequestError
from hypothesis import given
from hypothesis import strategies as st

from cachetier.simulate.estimate import Plan, SimulatedState, estimate_of, sweep

LARGE = Plan(size_bytes=15e12, gpus=1024, link=12.5e9)


def test_two_hundred_jobs_that_wait_35_ms_for_each_put_block_18_gpu_hours_a_day() -> None:
    found = estimate_of(Plan(jobs=200, gpus=64, per_day=144, put_seconds=0.035))
    assert found.direct_gpu_hours == pytest.approx(17.92)
    assert found.cached_gpu_hours < 0.02 * found.direct_gpu_hours


@pytest.mark.parametrize(("parameters", "gigabytes"), [(3e9, 42), (6.7e9, 94), (13e9, 182)])
def test_fourteen_bytes_a_parameter_are_what_the_field_measured(
    parameters: float, gigabytes: int
) -> None:
    assert SimulatedState().bytes_per_parameter == 14
    assert round(parameters * SimulatedState().bytes_per_parameter / 1e9) == gigabytes


def test_each_component_counts_by_itself() -> None:
    assert SimulatedState(master=0, first_moment=1, second_moment=1).bytes_per_parameter == 4


def test_fifteen_terabytes_in_parts_of_64_megabytes_take_a_prefix_67_seconds() -> None:
    found = estimate_of(LARGE)
    assert found.puts == 234_375
    assert found.prefix_seconds == pytest.approx(67, abs=0.05)
    assert found.drain_seconds >= found.prefix_seconds
    assert found.dollars_per_day == pytest.approx(234_375 * 144 * 0.005 / 1000)


def test_a_drain_that_is_slower_than_the_saves_keeps_up_on_no_disk() -> None:
    found = estimate_of(replace(LARGE, per_day=8640))
    assert not found.keeps_up
    assert found.nvme_bytes is None
    assert estimate_of(LARGE).nvme_bytes == LARGE.size_bytes / 128 * (LARGE.keep_local + 1)


def test_measured_times_take_the_place_of_estimated_ones() -> None:
    blocked, durable = Figure(0.5, "measured"), Figure(40.0, "measured")
    found = estimate_of(replace(LARGE, blocked_seconds=blocked, durable_seconds=durable))
    assert found.cached_seconds == 0.5
    assert (found.cadence.blocked, found.cadence.durable) == (blocked, durable)
    assert found.exposed_seconds == 300 + 40


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"gpus": 0}, "--gpus"),
        ({"jobs": 0}, "--jobs"),
        ({"put_seconds": -1.0}, "--put-time"),
        ({"put_seconds": float("nan")}, "--put-time"),
        ({"part_bytes": 0.0}, "--part"),
        ({"per_day": float("inf")}, "--per-day"),
        ({"link": 5e13}, "--link"),
        ({"nvme": 0.0}, "--nvme"),
    ],
)
def test_what_is_impossible_is_refused_by_the_name_of_its_option(
    wrong: dict[str, float], option: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        estimate_of(Plan(**wrong))  # type: ignore[arg-type]
    assert caught.value.message.startswith(f"{option}: ")
    assert caught.value.hint.startswith("Give ")


@given(
    size=st.floats(0, 1e16),
    gpus=st.integers(1, 100_000),
    per_day=st.floats(0.01, 1e5),
    link=st.floats(1e6, 1e12),
)
def test_a_faster_link_never_makes_anything_worse(
    size: float, gpus: int, per_day: float, link: float
) -> None:
    slow = estimate_of(Plan(size_bytes=size, gpus=gpus, per_day=per_day, link=link))
    fast = estimate_of(Plan(size_bytes=size, gpus=gpus, per_day=per_day, link=2 * link))
    for figure in ("drain_seconds", "direct_seconds", "direct_gpu_hours", "exposed_seconds"):
        assert getattr(fast, figure) <= getattr(slow, figure)
    assert fast.keeps_up or not slow.keeps_up


def test_over_the_interval_the_best_one_loses_least() -> None:
    best = estimate_of(LARGE).cadence.interval_seconds
    cached = {each: lost for each, _, lost in sweep(LARGE, [best / 3, best, best * 3])}
    assert min(cached, key=lambda each: cached[each]) == best
