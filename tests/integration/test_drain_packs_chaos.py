"""Random faults at every call, and drains that die at any instant: packs arrive whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.slices import share_of
from tests.integration.drain_node import Node, patterned
from tests.integration.packing import by_hand, packs_in, put_small
from tests.integration.test_drain_chaos import Unreliable

STEPS = 5
LARGE = 2 << 20


def save(node: Node, step: int) -> dict[str, bytes]:
    """Put small shards of two ranks and a large one, one of them twice, and seal both.

    In even steps shards may leave before they are sealed, and then they do so each for itself.
    """
    bodies: dict[str, bytes] = {}
    ranks = [SaveIds("run", step, "save-1", rank, 2) for rank in range(2)]
    for ids in ranks:
        node.put(ids, f"r{ids.rank}-3", b"replaced")
        if step % 2 == 0:
            node.hurry("run", step)  # it may be on its way when it is replaced
        bodies |= put_small(node, ids, 8)
    bodies["large"] = patterned(LARGE, step)
    node.put(ranks[0], "large", bodies["large"])
    for ids in ranks:
        node.seal(ids)
    return bodies


@pytest.mark.parametrize("seed", share_of(range(10)))
def test_packs_arrive_over_a_remote_that_fails_one_call_in_five(tmp_path: Path, seed: int) -> None:
    objects = MemoryObjectStore()
    unreliable = Unreliable(objects, 0.2, seed)
    policy = RetryPolicy(attempts=10, base_seconds=0.001, cap_seconds=0.01)
    node = Node(tmp_path / "cache", CallPolicy(unreliable, retries=Retries(policy)), packing=True)
    expected: dict[int, dict[str, bytes]] = {}
    with node.draining():
        for step in range(STEPS):
            expected[step] = save(node, step)
        for step in range(STEPS):
            node.wait_durable(SaveIds("run", step, "save-1"), 60)
        node.checkpoints.delete_step("run", 0)
        gone = SaveIds("run", 0, "save-1")
        node.wait_until(lambda: node.save(gone).location is None, 60)
    unreliable.rate = 0.0

    assert unreliable.failed > 10
    for step in range(1, STEPS):
        ids = SaveIds("run", step, "save-1")
        found = {name: by_hand(node, ids, name) for name in expected[step]}
        assert found == expected[step], step
    assert packs_in(objects, "ckpt/run/0/") == []
    for step in range(1, STEPS, 2):
        assert packs_in(objects, f"ckpt/run/{step}/"), step
    assert node.told() == []
    node.close()


@pytest.mark.parametrize("seed", share_of(range(10)))
def test_packs_arrive_though_the_drain_dies_again_and_again(tmp_path: Path, seed: int) -> None:
    node = Node(tmp_path / "cache", MemoryObjectStore(), packing=True)
    chance = random.Random(seed)
    expected = {step: save(node, step) for step in range(STEPS)}
    saves = [SaveIds("run", step, "save-1") for step in range(STEPS)]
    rounds = 0
    while any(node.save(ids).state != "published" for ids in saves):
        rounds += 1
        with node.draining(abruptly=rounds % 2 == 0):
            node.changes.wait_for(lambda: False, chance.uniform(0.0, 0.05))

    assert rounds > 1
    for step, ids in enumerate(saves):
        node.wait_durable(ids, 0.1)
        assert {name: by_hand(node, ids, name) for name in expected[step]} == expected[step]
    assert node.told() == []
    node.close()
