"""A step that is deleted and saved again at once: the new save must not meet the old one."""

from __future__ import annotations

from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.queue_state import Situation
from cachetier.drain.schedule.scheduler import SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.snapshot import unfinished
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node


def views(node: Node) -> list[SaveView]:
    return unfinished(node.store, RemoteState(node.store), {}, lambda *_damage: None)


def planned(node: Node, clock: FakeClock) -> list[tuple[TaskKind, str]]:
    work = plan(views(node), Situation(clock.now(), clock.monotonic()), 10).work
    return [(item.kind, item.save.save_id) for item in work]


def save(node: Node, save_id: str, step: int = 1) -> None:
    ids = SaveIds("run", step, save_id, 0, 1)
    node.put(ids, "a", save_id.encode())
    node.checkpoints.seal(ids, 1)


def test_the_new_save_claims_the_step_only_after_the_deletion_is_in_the_bucket(
    node: Node, clock: FakeClock
) -> None:
    save(node, "old")
    node.drain.drain_all()
    node.checkpoints.delete_step("run", 1)
    clock.advance(1.0)
    save(node, "new")
    save(node, "other", step=2)

    assert planned(node, clock) == [(TaskKind.DELETE, "old"), (TaskKind.CLAIM, "other")]
    node.drain.delete_all()
    assert planned(node, clock) == [(TaskKind.CLAIM, "new"), (TaskKind.CLAIM, "other")]
    node.drain.drain_all()
    assert node.get("run", 1, "a") == b"new"
    assert node.checkpoints.step("run", 1)[0].state == "published"
