"""What is pinned stays: not evicted, not trimmed, not deleted, until it is unpinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachetier.errors import PinnedError
from cachetier.local.catalog import copies
from cachetier.local.catalog.notes import PinTotals, pin_totals
from cachetier.model.lifecycle import ShardState
from cachetier.model.policy import Policy
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.invariants import judge_bytes, judge_rows
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, code_of, save_step


def states(node: Node, step: int) -> set[ShardState]:
    return {row.state for row in node.rows() if row.step == step}


def test_a_pinned_step_is_not_evicted_and_an_unpinned_one_is(node: Node, clock: FakeClock) -> None:
    pins = node.checkpoints
    save_step(node, 1)
    save_step(node, 2)
    node.drain.drain_all()
    pins.pin("run", 1)

    evicted = {row.step for row in node.rows() if node.evict(row)}

    assert evicted == {2}
    assert states(node, 1) == {ShardState.CLEAN}
    assert pins.unpin("run", 1)
    assert not pins.unpin("run", 1)
    assert all(node.evict(row) for row in node.rows() if row.step == 1)
    judge_bytes(node)
    judge_rows(node)


def test_room_is_made_from_other_steps(node: Node, clock: FakeClock) -> None:
    for step in range(1, 9):
        save_step(node, step)
    node.drain.drain_all()
    node.checkpoints.pin("run", 1)

    assert node.store.space.reserve(600_000, 0.0, lambda: _ignore(node.evictor.make_room()))

    assert states(node, 1) == {ShardState.CLEAN}, "the least recently used of all"
    assert states(node, 2) == {ShardState.EVICTED}
    node.store.space.release(600_000)


def _ignore(_freed_bytes: int) -> None:
    pass


def test_a_pin_that_arrives_while_the_remote_is_asked_still_holds(
    node: Node, clock: FakeClock
) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    row = node.rows()[0]
    node.checkpoints.pin("run", 1)

    with pytest.raises(PinnedError):
        node.store.evict(row)

    assert states(node, 1) == {ShardState.CLEAN}


def test_keep_local_leaves_a_pinned_step_beside_those_it_keeps(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    node = Node(tmp_path / "n", remote, clock, vfs=vfs, policy=Policy(3, keep_local=1))
    for step in (1, 2, 3, 4, 5):
        save_step(node, step)
    node.drain.drain_all()
    node.checkpoints.pin("run", 1)  # local-only: it is nowhere else

    node.retention.trim()

    assert {row.step for row in node.rows() if row.state is not ShardState.EVICTED} == {1, 3, 5}
    assert node.get("run", 1, "rank-1") == LARGE
    node.checkpoints.unpin("run", 1)
    node.retention.trim()
    assert states(node, 1) == set()
    node.close()


def test_a_pinned_step_is_not_deleted(node: Node, clock: FakeClock) -> None:
    pins = node.checkpoints
    save_step(node, 1)
    pins.pin("run", 1)

    assert code_of(lambda: node.checkpoints.delete_step("run", 1)) == "pinned"
    assert node.get("run", 1, "rank-1") == LARGE
    assert node.checkpoints.step("run", 1)[0].pinned

    pins.unpin("run", 1)
    assert node.checkpoints.delete_step("run", 1) == 2


def test_a_step_that_nobody_knows_cannot_be_pinned(node: Node, clock: FakeClock) -> None:
    assert code_of(lambda: node.checkpoints.pin("run", 9)) == "not_found"
    assert code_of(lambda: node.checkpoints.pin("../run", 9)) == "invalid_name"
    assert node.checkpoints.pins() == []


def test_a_pin_says_what_is_here_and_since_when(node: Node, clock: FakeClock) -> None:
    pins = node.checkpoints
    save_step(node, 1)
    node.drain.drain_all()
    node.evict(next(row for row in node.rows() if row.name == "rank-1"))

    first = pins.pin("run", 1)
    clock.advance(60.0)
    again = pins.pin("run", 1)

    small = len(b"save of 1")
    assert first == again
    assert (first.shards, first.local_shards) == (2, 1)
    assert (first.size_bytes, first.local_bytes) == (len(LARGE) + small, small)
    assert node.store.read(pin_totals) == PinTotals(1, small)


def test_a_pin_outlives_a_restart_and_a_new_save_of_the_step(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    node = Node(tmp_path / "n", remote, clock, vfs=vfs)
    save_step(node, 1)
    node.drain.drain_all()
    node.checkpoints.pin("run", 1)
    node.die()

    node = Node(tmp_path / "n", remote, clock, vfs=vfs)
    save_step(node, 1, save="newer", overwrite=True)
    node.drain.drain_all()
    assert [node.evict(row) for row in node.rows() if row.save_id == "newer"] == [False, False]
    assert node.get("run", 1, "rank-0") == b"newer of 1"
    node.close()


def test_a_step_that_was_deleted_elsewhere_takes_its_pin_along(
    node: Node, clock: FakeClock
) -> None:
    from cachetier.model.lifecycle import SaveState

    save_step(node, 1)
    node.checkpoints.pin("run", 1)
    number = node.store.read(lambda sql: sql.execute("SELECT number FROM saves").get)

    node.store.drop(
        node.store.write(
            copies.record_outcome, node.store.policy, number, SaveState.DELETED, None, 0.0
        )
    )

    assert node.checkpoints.pins() == []
    save_step(node, 1, save="another")
    assert not node.checkpoints.step("run", 1)[0].pinned
