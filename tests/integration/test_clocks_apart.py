"""Nodes whose clocks differ save one step: which save it is, no clock decides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds

from cachetier.model.levels import Level
from cachetier.model.lifecycle import SaveState
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.drain_node import Node

AHEAD_SECONDS = 120.0
SECONDS = 60.0


class FastClock(SystemClock):
    """A node's clock that nobody set right."""

    now = staticmethod(lambda: time.time() + AHEAD_SECONDS)


def ids(save_id: str, rank: int = 0, world_size: int = 2) -> SaveIds:
    return SaveIds("run", 5, save_id, rank, world_size)


@contextmanager
def two_nodes(top: Path) -> Iterator[tuple[Node, Node]]:
    """Open a node whose clock is fast, and one whose clock is right, over one bucket."""
    bucket = MemoryObjectStore()
    fast, right = Node(top / "fast", bucket, clock=FastClock()), Node(top / "right", bucket)
    try:
        yield fast, right
    finally:
        fast.close()
        right.close()


def begun_and_dead(node: Node) -> None:
    """Have one rank of two put its shard and its node claim the step; nobody ever seals."""
    node.put(ids("dead"), "shard", b"of the job that died")
    node.seal(ids("dead"))
    with node.draining():
        node.wait_clean(ids("dead"), "shard", SECONDS)


def sealed(node: Node) -> None:
    for rank in (0, 1):
        node.put(ids("again", rank), f"shard-{rank}", b"of the job that followed")
        node.seal(ids("again", rank))


def test_a_claim_of_a_fast_clock_that_died_does_not_take_a_whole_save_from_another_node(
    tmp_path: Path,
) -> None:
    with two_nodes(tmp_path) as (fast, right):
        begun_and_dead(fast)
        sealed(right)
        with right.draining():
            right.wait_durable(ids("again"), SECONDS)

        assert right.save(ids("again")).state is SaveState.PUBLISHED
        assert not right.told()
        latest = right.checkpoints.latest("run", Level.DURABLE)
        assert latest is not None and latest.save_id == "again"


def test_the_save_that_lost_its_step_is_told_of_at_its_own_node(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as (fast, right):
        begun_and_dead(fast)
        sealed(right)
        with right.draining():
            right.wait_durable(ids("again"), SECONDS)
        fast.put(ids("dead", 1), "late", b"of the rank that came late")
        fast.seal(ids("dead", 1))
        with fast.draining():
            fast.wait_until(lambda: fast.save(ids("dead")).state is SaveState.REFUSED)

        (incident,) = fast.told()
        assert "save again is published" in incident.message


@pytest.mark.parametrize("first", ["fast", "right"])
def test_of_two_whole_saves_the_first_that_is_published_stays(tmp_path: Path, first: str) -> None:
    with two_nodes(tmp_path) as (fast, right):
        nodes = {"fast": fast, "right": right}
        order = [first, *nodes.keys() - {first}]
        for name in order:
            nodes[name].put(ids(name, world_size=1), "shard", name.encode())
            nodes[name].seal(ids(name, world_size=1))
        winner, loser = (nodes[name] for name in order)
        with winner.draining():
            winner.wait_durable(ids(first), SECONDS)
        with loser.draining():
            loser.wait_until(lambda: bool(loser.told()))

        assert loser.save(ids(order[1])).state is SaveState.REFUSED
        latest = loser.checkpoints.latest("run", Level.DURABLE)
        assert latest is not None and latest.save_id == first
