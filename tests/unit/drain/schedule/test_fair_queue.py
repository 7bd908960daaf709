"""Shares follow the weights, whoever has work; idle time is neither saved up nor owed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.drain.schedule.queue_state import ITEM_BYTES, Shares, Weights

MIB = 1 << 20


def served(weights: dict[str, float], sizes: list[int], shares: Shares) -> tuple[list[str], Shares]:
    """Hand out one item of each size, every flow having work all the time."""
    order = []
    for size in sizes:
        flow = min(sorted(weights), key=shares.start)
        order.append(flow)
        shares = shares.after(flow, size, weights[flow])
    return order, shares


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=5),
    sizes=st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=200),
)
def test_shares_differ_from_the_weights_by_no_more_than_an_item_each(
    weights: list[float], sizes: list[int]
) -> None:
    by_flow = {f"run-{number}": weight for number, weight in enumerate(weights)}
    order, _ = served(by_flow, sizes, Shares())
    got = dict.fromkeys(by_flow, 0.0)
    for flow, size in zip(order, sizes, strict=True):
        got[flow] += (size + ITEM_BYTES) / by_flow[flow]
    largest = max(sizes) + ITEM_BYTES

    for one, one_weight in by_flow.items():
        for other, other_weight in by_flow.items():
            bound = largest / one_weight + largest / other_weight
            assert abs(got[one] - got[other]) <= bound * (1 + 1e-9)


def test_a_run_with_twice_the_weight_gets_twice_the_bytes() -> None:
    order, _ = served({"big": 2.0, "small": 1.0}, [MIB] * 300, Shares())

    assert order.count("big") == pytest.approx(200, abs=1)


def test_bytes_count_not_items() -> None:
    shares = Shares()
    items = {"few": 0, "many": 0}
    for _ in range(300):
        flow = min(sorted(items), key=shares.start)
        items[flow] += 1
        shares = shares.after(flow, 9 * MIB if flow == "few" else 0, 1.0)

    assert items["many"] == pytest.approx(10 * items["few"], rel=0.1)


def test_who_was_idle_neither_catches_up_nor_falls_behind() -> None:
    _, shares = served({"busy": 1.0}, [MIB] * 1000, Shares())
    order, _ = served({"busy": 1.0, "new": 1.0}, [MIB] * 20, shares)

    assert order.count("new") == 10


def test_runs_that_ended_are_forgotten() -> None:
    shares = Shares()
    for number in range(1000):
        shares = shares.after(f"run-{number}", MIB, 1.0)
        shares = shares.after("always", MIB, 1.0)

    assert len(shares.ends) < 10


def test_the_first_pattern_that_matches_gives_the_weight() -> None:
    weights = Weights((("big-one", 8.0), ("big-*", 4.0), ("B*", 2.0)))

    assert [weights.of(run) for run in ("big-one", "big-two", "Bert", "bert")] == [8, 4, 2, 1]
