"""The catalog takes no report for a while: it is locked from outside, or the disk is full."""

from __future__ import annotations

import apsw
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.tasks import TaskKind
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)


def test_an_upload_that_cannot_be_recorded_is_put_off_and_not_sent_again_at_once(
    node: Node, clock: FakeClock
) -> None:
    node.put(IDS, "x", bytes(100_000))
    while (task := node.real_drain.next_task()) and task.kind is not TaskKind.UPLOAD:
        node.real_drain.perform(task)
    assert task is not None
    node.store._committer._connection.set_busy_timeout(0)
    other = apsw.Connection(str(node.cache_dir / "catalog.db"))
    other.execute("BEGIN IMMEDIATE")

    node.real_drain.perform(task)

    assert node.real_drain.next_task() is None
    assert node.store.fenced is None
    other.execute("ROLLBACK")
    other.close()
    clock.advance(60.0)
    node.checkpoints.seal(IDS, 1)
    node.real_drain.drain_all()
    assert node.bucket.published("run", 1) is not None
