"""What leaves the node by policy or for room, and what never does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachetier.local.catalog import copies, figures, saves
from cachetier.model.checkpoint import Save
from cachetier.model.levels import Level
from cachetier.model.lifecycle import SaveState
from cachetier.model.names import PEERS_NAME
from cachetier.model.policy import Policy
from cachetier.reclaim.retention import Retention
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.waiting import waited
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, code_of, ids, latest, save_step

STEP_BYTES = len(LARGE) + len(b"save of 1")
MakeNode = Callable[..., Node]


@pytest.fixture
def make(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[MakeNode]:
    nodes: list[Node] = []

    def make(policy: Policy, capacity_bytes: int = 1 << 30) -> Node:
        directory = tmp_path / f"node-{len(nodes)}"
        nodes.append(
            Node(directory, remote, clock, vfs=vfs, policy=policy, capacity_bytes=capacity_bytes)
        )
        return nodes[-1]

    yield make
    for node in nodes:
        judge_bytes(node)
        node.close()


def steps_here(node: Node) -> list[int]:
    """Return the steps with bytes on the node."""
    return [save.step for save in node.store.read(saves.saves_with_bytes)]


def retention_of(node: Node, keep_local: int) -> tuple[Retention, list[int], list[str]]:
    removed: list[int] = []
    wanted: list[str] = []

    def on_removed(save: Save, size_bytes: int) -> None:
        assert size_bytes > 0
        removed.append(save.step)

    retention = Retention(
        node.store,
        keep_local,
        node.evictor.evict,
        on_removed=on_removed,
        on_wanted=lambda: wanted.append("drain"),
    )
    return retention, removed, wanted


def test_without_a_limit_everything_stays(make: MakeNode) -> None:
    node = make(Policy(durable_every=100))
    for step in (1, 2, 3):
        save_step(node, step)

    assert retention_of(node, 0)[0].trim() == 0
    assert steps_here(node) == [1, 2, 3]


def test_of_local_only_steps_the_newest_stay_and_the_others_are_told(make: MakeNode) -> None:
    node = make(Policy(durable_every=100))
    for step in (1, 2, 3, 4):
        save_step(node, step)
    retention, removed, _ = retention_of(node, 2)

    assert retention.trim() == 0, "they are removed, not evicted"
    assert (removed, steps_here(node)) == ([1, 2], [3, 4])
    assert [view.step for view in node.checkpoints.steps("run")] == [3, 4]
    assert latest(node, Level.LOCAL) == 4
    assert node.store.read(figures.kept_by_policy).ever == 4


def test_a_step_that_is_removed_for_room_stays_in_the_bucket(make: MakeNode) -> None:
    node = make(Policy(durable_every=100))
    for step in (1, 2):
        save_step(node, step)
    first = node.store.read(lambda sql: saves.saves_of(sql, "run", 1))[0]
    node.store.write(copies.record_location, first.number, "1")  # another node went on
    retention, removed, _ = retention_of(node, 1)
    retention.trim()

    assert removed == [1]
    drained = node.store.read(saves.unfinished_saves)
    assert first.number not in {save.number for save in drained}, "the drain deletes nothing"


@pytest.mark.parametrize("was_copied", [False, True])
def test_a_copy_of_a_removed_step_goes_from_the_peers(make: MakeNode, was_copied: bool) -> None:
    """They would keep it until the bucket has the step, which never gets it."""
    node = make(Policy(durable_every=100))
    node.store.write(copies.configure_replicas, {PEERS_NAME: False})
    for step in (1, 2):
        save_step(node, step)
    first = node.store.read(lambda sql: saves.saves_of(sql, "run", 1))[0]
    if was_copied:  # before a newer step was durable
        node.store.write(copies.record_location, first.number, "1", PEERS_NAME)
    retention_of(node, 1)[0].trim()

    due = node.store.read(copies.due_saves, PEERS_NAME)
    assert [(save.number, save.state) for save in due if save.step == 1] == (
        [(first.number, SaveState.DELETED)] if was_copied else []
    )


def test_a_step_that_was_removed_is_gone_for_good_and_says_why(make: MakeNode) -> None:
    node = make(Policy(durable_every=100))
    save_step(node, 1)
    save_step(node, 2)
    retention_of(node, 1)[0].trim()

    assert code_of(lambda: node.put(ids(1), "late", b"x")) == "aborted"
    assert code_of(lambda: node.checkpoints.flush("run", 1, 9.0)) == "aborted"
    assert code_of(lambda: waited(node.checkpoints, "run", 1, None, Level.LOCAL, 9.0)) == "aborted"
    save_step(node, 1, save="again")
    assert node.get("run", 1, "rank-0") == b"again of 1"


def test_published_steps_leave_the_node_and_stay_readable(make: MakeNode) -> None:
    node = make(Policy())
    for step in (1, 2, 3):
        save_step(node, step)
    node.drain.drain_all()
    retention, removed, _ = retention_of(node, 1)

    assert retention.trim() == 2 * STEP_BYTES
    assert (removed, steps_here(node)) == ([], [3])
    assert node.get("run", 1, "rank-1") == LARGE


def test_what_the_remote_lost_stays_here(make: MakeNode, remote: MemoryObjectStore) -> None:
    node = make(Policy())
    for step in (1, 2):
        save_step(node, step)
    node.drain.drain_all()
    remote.delete(node.bucket.layout.shard_key("run", "1", "rank-1"))

    assert retention_of(node, 1)[0].trim() == len(b"save of 1")
    assert steps_here(node) == [1, 2]


def test_dirty_steps_never_go(make: MakeNode) -> None:
    node = make(Policy())
    for step in (1, 2, 3):
        save_step(node, step)
    retention, removed, _ = retention_of(node, 1)
    retention.trim()
    retention.make_room()

    assert (removed, steps_here(node)) == ([], [1, 2, 3])


def test_a_step_that_is_wanted_is_not_removed(make: MakeNode) -> None:
    node = make(Policy(durable_every=100))
    for step in (1, 2, 3):
        save_step(node, step)
    node.checkpoints.flush("run", 1, 0.0)
    number = node.store.read(lambda sql: saves.saves_of(sql, "run", 1))[0].number
    retention, removed, _ = retention_of(node, 1)
    retention.trim()

    assert removed == [2]
    assert node.store.write(saves.delete_local_only, number) == []
    assert steps_here(node) == [1, 3]


def test_each_run_keeps_its_own(make: MakeNode) -> None:
    node = make(Policy(durable_every=100))
    for run in ("a", "b"):
        for step in (1, 2):
            of = ids(step)
            of = type(of)(run, step, "save", 0, 1)
            node.put(of, "x", LARGE)
            node.checkpoints.seal(of, 1)
    retention, removed, _ = retention_of(node, 1)
    retention.trim()

    assert removed == [1, 1]


def test_a_put_that_needs_room_gets_that_of_the_oldest_local_only_steps(make: MakeNode) -> None:
    node = make(Policy(durable_every=100), capacity_bytes=3 * STEP_BYTES)
    for step in (1, 2, 3):
        save_step(node, step)
    save_step(node, 4)

    assert steps_here(node) == [2, 3, 4]
    assert latest(node, Level.LOCAL) == 4


def test_the_newest_complete_step_stays_even_for_room_and_is_drained_instead(
    make: MakeNode,
) -> None:
    node = make(Policy(durable_every=100), capacity_bytes=3 * STEP_BYTES // 2)
    save_step(node, 1)
    assert code_of(lambda: save_step(node, 2)) == "backpressure"

    found = {save.step: save.state for save in node.store.read(saves.unfinished_saves)}
    assert found == {1: SaveState.OPEN}, "the only way on is to drain it"
    node.drain.drain_all()
    save_step(node, 2)
    assert latest(node, Level.DURABLE) == 1
    assert steps_here(node) == [2]


def test_nothing_is_drained_for_room_while_something_else_is(make: MakeNode) -> None:
    node = make(Policy(durable_every=2), capacity_bytes=5 * STEP_BYTES // 2)
    save_step(node, 2)
    save_step(node, 3)
    assert code_of(lambda: save_step(node, 5)) == "backpressure"

    found = {save.step: save.state for save in node.store.read(saves.saves_with_bytes)}
    assert found[2] is SaveState.OPEN, "to drain it is enough"
    assert found[3] is SaveState.LOCAL_ONLY
