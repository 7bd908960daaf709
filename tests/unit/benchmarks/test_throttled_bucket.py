"""The simulated store: it lets through what it says, and the drain's own rules meet it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.drain.throttled_bucket import Simulation, TokenBucket, crowd, shares


def test_a_bucket_lets_its_depth_through_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=10, depth=5)
    assert [bucket.take(0.0) for _ in range(6)] == [True] * 5 + [False]
    assert [bucket.take(0.1 * number) for number in range(1, 4)] == [True] * 3
    assert not bucket.take(0.35)


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        nodes = crowd(3, seed=7)
        Simulation(nodes, TokenBucket(40, 40), seed=7).run(30.0)
        runs.append([(node.accepted_at, node.rejected_at) for node in nodes])
    assert runs[0] == runs[1]
    assert any(rejected for _, rejected in runs[0])


def test_shares_tell_even_ones_from_greedy_ones() -> None:
    nodes = crowd(2, seed=0)
    nodes[0].accepted_at = [1.0, 2.0, 3.0, 9.0]
    nodes[1].rejected_at = [2.5]
    found = shares(nodes, 0.0, 4.0)
    assert (found.accepted, found.rejected) == ((3, 0), 1)
    assert found.fairness == pytest.approx(1 / 2)
    assert found.per_second == pytest.approx(3 / 4)
    assert found.rejected_share == pytest.approx(1 / 4)


def test_ten_minutes_without_the_store_cost_a_knock_a_second_and_end_within_seconds() -> None:
    begins, ends = 60.0, 660.0
    nodes = crowd(1, seed=1)
    simulation = Simulation(nodes, TokenBucket(25, 25), away=lambda now: begins <= now < ends)
    simulation.run(ends + 60.0)
    normal = shares(nodes, 30.0, begins).per_second
    knocks = [instant for instant in nodes[0].knocked_at if instant > begins + 1.0]
    assert 590 <= len(knocks) <= 600
    assert min(later - earlier for earlier, later in pairwise(knocks)) >= 1.0 - 1e-6
    assert shares(nodes, ends + 5.0, ends + 15.0).per_second >= 0.8 * normal
