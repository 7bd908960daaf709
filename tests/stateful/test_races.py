"""Ranks, readers, the drain and the evictor at once: whoever reads gets all old or all new."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CachetierError
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.slices import share_of
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced

STEPS, NAMES = (1, 2), ("a", "b")
SIZES = (300, 70_000, 300_000)
CAPACITY_BYTES = 1_500_000
EXPECTED = {
    "not_found",
    "sealed",
    "save_superseded",
    "aborted",
    "step_published",
    "backpressure",
}


class Race:
    """Actors on one node, each in a thread of its own, each with dice of its own."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.seed = seed
        self.saves = dict.fromkeys(STEPS, 0)
        self.put: dict[tuple[int, str], set[bytes]] = {(s, n): set() for s in STEPS for n in NAMES}
        self.answers: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._gate = threading.Barrier(6)
        self._done: list[int] = []  # the ranks that have ended

    def run(self, turns: int) -> None:
        actors = [self._rank, self._rank, self._reader, self._reader, self._drain, self._evictor]
        threads = [
            threading.Thread(target=self._act, args=(actor, number, turns), daemon=True)
            for number, actor in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert not any(thread.is_alive() for thread in threads), "an actor hangs"
        assert self.failures == []

    def _act(self, actor: Callable[[random.Random, int], None], number: int, turns: int) -> None:
        dice = random.Random(self.seed * 100 + number)
        self._gate.wait(30)
        turn = 0
        while turn < turns if actor == self._rank else len(self._done) < 2:
            turn += 1
            try:
                actor(dice, number)
                self.answers[actor.__name__] += 1
            except CachetierError as error:
                self.answers[error.code] += 1
                if error.code not in EXPECTED:
                    self.failures.append(error)
            except BaseException as error:
                self.failures.append(error)
        if actor == self._rank:
            self._done.append(number)

    def _rank(self, dice: random.Random, rank: int) -> None:
        step, name = dice.choice(STEPS), NAMES[rank]
        number = self.saves[step]
        ids = SaveIds("run", step, f"save-{number}", rank, 2, overwrite=number % 2 == 1)
        deed = dice.randrange(20)
        if deed < 12:
            data = dice.randbytes(dice.choice(SIZES))
            self.put[step, name].add(data)
            self.node.put(ids, name, data)
        elif deed < 15:
            self.node.checkpoints.seal(ids, 2)
        elif deed < 16:
            self.node.checkpoints.abort_rank(ids)
        elif deed < 17:
            self.node.checkpoints.delete_step("run", step)
        else:
            self.saves[step] = number + 1

    def _reader(self, dice: random.Random, _number: int) -> None:
        step, name = dice.choice(STEPS), dice.choice(NAMES)
        data = self.node.get("run", step, name, timeout_seconds=30.0)
        assert data in self.put[step, name], "bytes that nobody put"

    def _drain(self, dice: random.Random, _number: int) -> None:
        if dice.random() < 0.7:
            self.node.drain.drain_one()
        else:
            self.node.drain.publish_all()

    def _evictor(self, dice: random.Random, _number: int) -> None:
        if dice.random() < 0.8:
            for row in self.node.rows():
                self.node.evict(row)
        else:
            self.node.evictor.make_room()
            self.node.evictor.collect()


@pytest.fixture
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


def descriptors() -> int:
    """Count those of this test: what earlier ones left to the collector is collected first."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("seed", share_of(range(10)))
def test_actors_at_once_neither_mix_bytes_nor_leak_room_or_descriptors(
    tmp_path: Path, vfs: str, seed: int
) -> None:
    remote = MemoryObjectStore(minimum_part_bytes=1)
    clock = FakeClock()
    node = Node(tmp_path / "cache", remote, clock, capacity_bytes=CAPACITY_BYTES, vfs=vfs)
    node.put(SaveIds("warm", 1, "up"), "x", bytes(SIZES[1]))
    before = descriptors()
    race = Race(node, seed)

    race.run(turns=120)

    node.look()
    assert descriptors() == before
    judge_bytes(node)
    judge_rows(node)
    assert node.store.space.wanted_bytes == 0
    assert {"_rank", "_reader", "_drain", "_evictor"} <= set(race.answers)
    node.close()
    again = Node(tmp_path / "cache", remote, clock, capacity_bytes=CAPACITY_BYTES, vfs=vfs)
    assert again.recovered.lost_shards == 0
    judge_bytes(again)
    judge_rows(again)
    again.die()
