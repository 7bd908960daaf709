"""A published step lost a shard that this node only ever read: it is sent again, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.tasks import TaskKind
from cachetier.local.catalog import copies
from cachetier.model.levels import Level
from cachetier.model.names import DURABLE
from cachetier.reclaim.evict import Evictor
from cachetier.remote.bucket import Remote
from cachetier.restore.knowledge import Knowledge
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node


@pytest.fixture
def other(tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str) -> Iterator[Node]:
    other = Node(tmp_path / "other", remote, clock, vfs=vfs)
    yield other
    other.close()


def test_a_step_that_is_published_is_not_published_again_before_what_it_lacks_is_sent(
    node: Node, other: Node, remote: MemoryObjectStore, clock: FakeClock
) -> None:
    for rank, each in enumerate((node, other)):
        ids = SaveIds("run", 1, "save", rank, 2)
        each.put(ids, f"rank-{rank}", b"bytes")
        each.checkpoints.seal(ids, 1)
    for each in (node, other, node):
        clock.advance(60.0)
        each.real_drain.drain_all()
    assert node.bucket.published("run", 1) is not None
    assert node.get("run", 1, "rank-1") == b"bytes"
    remote.delete("tier/run/1/rank-1")
    missing = Knowledge(node.store, Remote(DURABLE, node.bucket), clock)
    evictor = Evictor(node.store, clock, node._still_remote, look_into=missing.look_into)
    for row in node.rows():
        evictor.evict(row)

    kinds: list[TaskKind] = []
    while len(kinds) < 10 and (task := node.real_drain.next_task()) is not None:
        kinds.append(task.kind)
        node.real_drain.perform(task)

    assert remote.head("tier/run/1/rank-1") is not None
    assert kinds.count(TaskKind.PUBLISH) <= 1


def test_a_published_step_that_lost_a_shard_is_not_durable_until_it_is_sent_again(
    node: Node, clock: FakeClock
) -> None:
    ids = SaveIds("run", 1, "save", 0, 1)
    node.put(ids, "rank-0", b"bytes")
    node.checkpoints.seal(ids, 1)
    clock.advance(60.0)
    node.real_drain.drain_all()
    assert Level.DURABLE in node.checkpoints.step("run", 1)[0].levels

    node.store.write(copies.record_lost, node.rows()[0].version, DURABLE)
    assert node.checkpoints.step("run", 1)[0].levels == (Level.LOCAL,)

    node.real_drain.drain_all()
    assert Level.DURABLE in node.checkpoints.step("run", 1)[0].levels
