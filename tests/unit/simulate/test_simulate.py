"""The simulated store lets through what it says, links share, and the real rules meet them."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import pytest

from benchmarks.drain.simulated_shares import burstiness, shares
from cachetier.remote.call_policy import ASKING
from cachetier.simulate.events import Alarm, Events
from cachetier.simulate.link import SimulatedLink
from cachetier.simulate.node import SimulatedNode, SimulatedWork, crowd
from cachetier.simulate.requests import SimulatedPlace
from cachetier.simulate.store import READS_PER_SECOND, SimulatedAnswer, SimulatedStore, TokenBucket

SMALL = SimulatedWork(size_bytes=1 << 20)


def test_a_bucket_lets_its_depth_through_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(rate=10, depth=5)
    assert [bucket.take(0.0) for _ in range(6)] == [True] * 5 + [False]
    assert [bucket.take(0.1 * number) for number in range(1, 4)] == [True] * 3
    assert not bucket.take(0.35)


def test_prefixes_are_limited_apart_and_so_are_reads_and_writes() -> None:
    store = SimulatedStore(Events(), writes_per_second=1, reads_per_second=2)
    asked = [("a", False), ("a", False), ("b", False), ("a", True), ("a", True), ("a", True)]
    answers = [
        store.judge(prefix, reads=reads) is SimulatedAnswer.ACCEPTED for prefix, reads in asked
    ]
    assert answers == [True, False, True, True, True, False]


def test_events_come_in_the_order_of_their_instants_and_then_of_their_asking() -> None:
    events, seen = Events(), list[str]()
    for seconds, name in [(2.0, "c"), (1.0, "a"), (1.0, "b"), (3.0, "later")]:
        events.after(seconds, partial(seen.append, name))
    events.run(2.5)
    assert (seen, events.monotonic()) == (["a", "b", "c"], 2.5)


def test_an_alarm_rings_once_at_the_earliest_instant() -> None:
    events, rang = Events(), list[float]()
    alarm = Alarm(events, lambda: rang.append(events.now()))
    for seconds in (5.0, 2.0, 3.0):
        alarm.set(seconds)
    events.run(10.0)
    assert rang == [2.0]


def test_bodies_share_a_full_link_and_one_alone_has_its_connection() -> None:
    events, ended = Events(), list[float]()
    link = SimulatedLink(events, each=10.0, total=15.0)
    link.move(150.0, lambda: ended.append(events.now()))
    events.run(9.0)
    assert link.moved() == pytest.approx(90.0)
    link.move(15.0, lambda: ended.append(events.now()))
    events.run(30.0)
    # Both have 7.5 until the short one is through, then the long one has 10 again.
    assert ended == [pytest.approx(11.0, abs=0.2), pytest.approx(15.5, abs=0.2)]
    assert link.moved() == pytest.approx(165.0)


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        events = Events()
        nodes = crowd(events, SimulatedStore(events, 40), 3, SMALL, seed=7)
        events.run(30.0)
        runs.append([(node.accepted_at, node.rejected_at) for node in nodes])
    assert runs[0] == runs[1]
    assert any(rejected for _, rejected in runs[0])


def test_shares_tell_even_ones_from_greedy_ones() -> None:
    events = Events()
    nodes = crowd(events, SimulatedStore(events), 2, SMALL, seed=0)
    nodes[0].accepted_at = [1.0, 2.0, 3.0, 9.0]
    nodes[1].rejected_at = [2.5]
    found = shares(nodes, 0.0, 4.0)
    assert (found.accepted, found.rejected) == ((3, 0), 1)
    assert found.fairness == pytest.approx(1 / 2)
    assert found.per_second == pytest.approx(3 / 4)
    assert found.rejected_share == pytest.approx(1 / 4)


def test_nodes_that_ask_in_step_are_told_from_those_that_do_not() -> None:
    events = Events()
    nodes = crowd(events, SimulatedStore(events), 16, SMALL, seed=0)
    chance = random.Random(1)
    for node in nodes:
        node.accepted_at = [float(second) for second in range(20)]
    assert burstiness(nodes, 0.0, 20.0) > 10.0
    for node in nodes:
        node.accepted_at = sorted(chance.uniform(0.0, 20.0) for _ in range(20))
    assert burstiness(nodes, 0.0, 20.0) == pytest.approx(1.0, abs=0.3)


def test_a_node_fills_a_link_of_slow_connections_and_ends_when_all_has_moved() -> None:
    events = Events()
    work = SimulatedWork(requests=640, size_bytes=8 << 20)
    node = SimulatedNode(
        events, SimulatedStore(events), random.Random(0), work, SimulatedPlace(each_connection=8e6)
    )
    events.run(60.0)
    assert len(node.accepted_at) == 640
    assert node.ended_at == pytest.approx(640 * (8 << 20) / (128 * 8e6), abs=4.0)


@pytest.mark.parametrize("within_seconds", [0.0, 2.0])
def test_nodes_that_restore_at_once_all_end_near_the_ideal_and_are_rarely_refused(
    within_seconds: float,
) -> None:
    events = Events()
    work = SimulatedWork(reads=True, requests=500, size_bytes=8 << 20, policy=ASKING)
    nodes = crowd(events, SimulatedStore(events), 128, work, seed=1, within_seconds=within_seconds)
    events.run(60.0)
    ideal = 128 * 500 / READS_PER_SECOND
    assert sum(node.gave_up for node in nodes) == 0
    assert max(node.ended_at for node in nodes) < 1.5 * ideal
    found = shares(nodes, 0.0, ideal)
    assert found.rejected_share < 0.1
    assert burstiness(nodes, 3.0, ideal / 2) < 2.0


def test_ten_minutes_without_the_store_cost_a_knock_a_second_and_end_within_seconds() -> None:
    begins, ends = 60.0, 660.0
    events = Events()
    store = SimulatedStore(events, 25, away=lambda now: begins <= now < ends)
    nodes = crowd(events, store, 1, SMALL, seed=1)
    events.run(ends + 60.0)
    normal = shares(nodes, 30.0, begins).per_second
    knocks = [instant for instant in nodes[0].knocked_at if instant > begins + 1.0]
    assert 590 <= len(knocks) <= 600
    assert min(later - earlier for earlier, later in pairwise(knocks)) >= 1.0 - 1e-6
    assert shares(nodes, ends + 5.0, ends + 15.0).per_second >= 0.8 * normal
