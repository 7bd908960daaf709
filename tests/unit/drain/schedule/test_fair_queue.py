"""Shares follow the weights, whoever has work; idle time is neither saved up nor owed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.drain.schedule.queue_state import ITEM_BYTES, FlowShares, Group, RunShares, Weights

MIB = 1 << 20


def served(
    weights: dict[str, float], sizes: list[int], shares: FlowShares
) -> tuple[list[str], FlowShares]:
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
    order, _ = served(by_flow, sizes, FlowShares())
    got = dict.fromkeys(by_flow, 0.0)
    for flow, size in zip(order, sizes, strict=True):
        got[flow] += (size + ITEM_BYTES) / by_flow[flow]
    largest = max(sizes) + ITEM_BYTES

    for one, one_weight in by_flow.items():
        for other, other_weight in by_flow.items():
            bound = largest / one_weight + largest / other_weight
            assert abs(got[one] - got[other]) <= bound * (1 + 1e-9)


def test_a_run_with_twice_the_weight_gets_twice_the_bytes() -> None:
    order, _ = served({"big": 2.0, "small": 1.0}, [MIB] * 300, FlowShares())

    assert order.count("big") == pytest.approx(200, abs=1)


def test_bytes_count_not_items() -> None:
    shares = FlowShares()
    items = {"few": 0, "many": 0}
    for _ in range(300):
        flow = min(sorted(items), key=shares.start)
        items[flow] += 1
        shares = shares.after(flow, 9 * MIB if flow == "few" else 0, 1.0)

    assert items["many"] == pytest.approx(10 * items["few"], rel=0.1)


def test_who_was_idle_neither_catches_up_nor_falls_behind() -> None:
    _, shares = served({"busy": 1.0}, [MIB] * 1000, FlowShares())
    order, _ = served({"busy": 1.0, "new": 1.0}, [MIB] * 20, shares)

    assert order.count("new") == 10


def test_runs_that_ended_are_forgotten() -> None:
    shares = FlowShares()
    for number in range(1000):
        shares = shares.after(f"run-{number}", MIB, 1.0)
        shares = shares.after("always", MIB, 1.0)

    assert len(shares.ends) < 10


def test_the_first_pattern_that_matches_gives_the_weight() -> None:
    weights = Weights((("big-one", 8.0), ("big-*", 4.0), ("B*", 2.0)))

    assert [weights.of(run) for run in ("big-one", "big-two", "Bert", "bert")] == [8, 4, 2, 1]


# --- between principals, then between the runs of each --------------------------------------------


@given(
    drain_weights=st.tuples(*[st.floats(0.1, 10)] * 2),
    runs=st.tuples(st.integers(1, 10), st.integers(1, 4), st.integers(0, 3)),
    run_weights=st.dictionaries(st.sampled_from(["a-1", "b-0", "c-0"]), st.floats(0.1, 10)),
    sizes=st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=200),
)
def test_tenants_get_bytes_by_their_weights_however_many_runs_each_has(
    drain_weights: tuple[float, float],
    runs: tuple[int, int, int],
    run_weights: dict[str, float],
    sizes: list[int],
) -> None:
    """Of two tenants, and runs of nobody: each is a group by itself."""
    groups = [Group(name, (f"{name}-*",), drain_weights["ab".index(name)]) for name in "ab"]
    weights = Weights(tuple(run_weights.items()), tuple(groups))
    names = [f"{who}-{n}" for who, many in zip("abc", runs, strict=True) for n in range(many)]
    paths = {name: weights.path_of(name) for name in names}
    shares, got = RunShares(), Counter[tuple[str, str]]()
    for size in sizes:
        run = min(names, key=lambda name: (shares.start(paths[name]), name))
        shares = shares.after(paths[run], size)
        got.update({(parent, flow): size + ITEM_BYTES for parent, flow, _ in paths[run]})

    every = {step for path in paths.values() for step in path}
    for inside in {parent for parent, _, _ in every}:
        within = [(got[parent, flow], w) for parent, flow, w in every if parent == inside]
        fair(max(sizes) + ITEM_BYTES, within)


def fair(item: int, got: list[tuple[int, float]]) -> None:
    """Check that bytes differ from the ratio of the weights by no more than an item each."""
    for size, weight in got:
        for other_size, other in got:
            assert (
                abs(size / weight - other_size / other) <= (item / weight + item / other) * 1.0001
            )


def test_a_run_belongs_to_the_first_group_that_has_it_and_to_no_run_of_the_same_name() -> None:
    weights = Weights((), (Group("a", ("a-*", "x"), 2.0), Group("b", ("*-b", "x"), 3.0)))

    assert weights.path_of("a-b")[0] == weights.path_of("x")[0] == ("", "a/", 2.0)
    assert weights.path_of("c-b") == (("", "b/", 3.0), ("b/", "c-b", 1.0))
    assert weights.path_of("a") == (("", "a", 1.0),)
