"""Random faults at every call, and random stops: everything acknowledged arrives, whole."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import TransientError
from cachetier.remote.call_policy import CallPolicy, Retries, RetryPolicy
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.slices import share_of
from tests.integration.drain_node import Node, patterned

STEPS = 6
SIZES = (0, 5, 70_000, 17 << 20)


class Unreliable(WrappedObjectStore):
    """Fails a share of all calls, half of them after they took effect."""

    def __init__(self, objects: MemoryObjectStore, rate: float, seed: int) -> None:
        super().__init__(objects)
        self.rate = rate
        self.failed = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def _around(self, _operation: Operation, _size: int, call: object, /) -> Answer:  # type: ignore[type-var]
        with self._lock:
            before = self._random.random() < self.rate / 2
            after = self._random.random() < self.rate / 2
            self.failed += before or after
        if before:
            raise TransientError("never arrived")
        answer: Answer = call()  # type: ignore[operator]
        if after:
            raise TransientError("the reply is lost")
        return answer


@pytest.mark.parametrize("seed", share_of(range(10)))
def test_everything_arrives_over_a_remote_that_fails_one_call_in_five(
    tmp_path: Path, seed: int
) -> None:
    objects = MemoryObjectStore()
    unreliable = Unreliable(objects, 0.2, seed)
    policy = RetryPolicy(attempts=10, base_seconds=0.001, cap_seconds=0.01)
    node = Node(tmp_path / "cache", CallPolicy(unreliable, retries=Retries(policy)))
    expected: dict[str, bytes] = {}
    with node.draining():
        for step in range(STEPS):
            ids = SaveIds("run", step, "save-1")
            for number, size_bytes in enumerate(SIZES):
                body = patterned(size_bytes, seed=step)
                if number == 2:
                    node.put(ids, f"shard-{number}", body[::-1])
                    node.hurry("run", step)  # it may be on its way when it is replaced
                node.put(ids, f"shard-{number}", body)
                expected[node.key(ids, f"shard-{number}")] = body
            node.seal(ids)
        for step in range(STEPS):
            node.wait_durable(SaveIds("run", step, "save-1"), 60)
        node.checkpoints.delete_step("run", 0)
        gone = SaveIds("run", 0, "save-1")
        node.wait_until(lambda: node.save(gone).location is None, 60)
        node.wait_until(lambda: not list(objects.list_uploads("")), 60)  # swept after the end
    unreliable.rate = 0.0

    assert unreliable.failed > 20
    for key, body in expected.items():
        if not key.startswith("ckpt/run/0/"):
            assert objects.get(key) == body
    assert objects.list("ckpt/run/0/").keys == ("ckpt/run/0/.cachetier/manifest.json",)
    assert node.told() == []
    node.close()


@pytest.mark.parametrize("seed", share_of(range(10)))
def test_everything_arrives_though_the_drain_is_stopped_again_and_again(
    tmp_path: Path, seed: int
) -> None:
    objects = MemoryObjectStore()
    node = Node(tmp_path / "cache", objects)
    chance = random.Random(seed)
    for step in range(STEPS):
        ids = SaveIds("run", step, "save-1")
        for number, size_bytes in enumerate(SIZES):
            node.put(ids, f"shard-{number}", patterned(size_bytes, seed=step))
        node.seal(ids)
    rounds = 0
    saves = [SaveIds("run", step, "save-1") for step in range(STEPS)]
    while any(node.save(ids).state != "published" for ids in saves):
        rounds += 1
        with node.draining(abruptly=rounds % 2 == 0):
            node.changes.wait_for(lambda: False, chance.uniform(0.0, 0.15))

    assert rounds > 1
    for step in range(STEPS):
        ids = SaveIds("run", step, "save-1")
        node.wait_durable(ids, 0.1)
        for number, size_bytes in enumerate(SIZES):
            key = node.key(ids, f"shard-{number}")
            assert objects.get(key) == patterned(size_bytes, seed=step)
    node.close()
