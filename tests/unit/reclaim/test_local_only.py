"""Steps that a policy keeps on the node: restorable, not drained, and never lost in silence."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.snapshot import unfinished
from cachetier.local.catalog import figures, saves
from cachetier.local.catalog.figures import NodeTotals
from cachetier.model.levels import Level
from cachetier.model.lifecycle import SaveState
from cachetier.model.policy import Policy
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.waiting import waited
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, code_of, ids, latest, save_step


@pytest.fixture
def every_tenth(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Node]:
    """A node that drains every tenth step."""
    node = Node(tmp_path / "tenth", remote, clock, vfs=vfs, policy=Policy(durable_every=10))
    yield node
    node.close()


@pytest.fixture
def superseding(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Node]:
    """A node that skips what a published step made old."""
    node = Node(tmp_path / "superseding", remote, clock, vfs=vfs, policy=Policy(supersede=True))
    yield node
    node.close()


def state_of(node: Node, step: int, save: str = "save") -> SaveState:
    found = node.store.read(lambda sql: saves.save_named(sql, "run", step, save))
    assert found is not None
    return found.state


def looked(node: Node) -> NodeTotals:
    return node.store.look(lambda sql: figures.node_totals(sql, [], 0.0))


def kept(node: Node) -> tuple[int, int, int, int]:
    """Return the steps, shards and bytes that a policy keeps here, and how many steps it did."""
    found = looked(node)
    return found.policy.now, found.kept.shards, found.kept.size_bytes, found.policy.ever


def test_a_step_that_is_not_divisible_is_whole_here_and_never_sent(
    every_tenth: Node, remote: MemoryObjectStore
) -> None:
    save_step(every_tenth, 7)
    every_tenth.drain.drain_all()

    assert every_tenth.checkpoints.step("run", 7)[0].state == "local_only"
    assert latest(every_tenth, Level.LOCAL) == 7
    assert latest(every_tenth, Level.DURABLE) is None
    assert every_tenth.get("run", 7, "rank-1") == LARGE
    assert not remote.list("").keys
    assert unfinished(every_tenth.store, RemoteState(every_tenth.store), {}, lambda *_: None) == []


def test_a_step_that_is_divisible_is_drained(every_tenth: Node) -> None:
    save_step(every_tenth, 20)
    every_tenth.drain.drain_all()

    assert latest(every_tenth, Level.DURABLE) == 20


def test_local_only_bytes_are_counted_apart_from_dirty_ones(every_tenth: Node) -> None:
    save_step(every_tenth, 7)
    save_step(every_tenth, 10)
    dirty = looked(every_tenth).dirty
    size_bytes = len(LARGE) + len(b"save of 7")

    assert (dirty.shards, dirty.size_bytes) == (2, size_bytes + 1)
    assert kept(every_tenth) == (1, 2, size_bytes, 1)
    local_bytes = every_tenth.store.read(figures.local_bytes)
    assert local_bytes == every_tenth.store.space.used_bytes


def test_an_unsealed_step_says_so_whatever_the_policy(every_tenth: Node) -> None:
    every_tenth.put(ids(7), "rank-0", b"x")

    assert every_tenth.checkpoints.step("run", 7)[0].state == "open"
    assert latest(every_tenth, Level.LOCAL) is None


def test_waiting_for_a_local_only_step_fails_at_once_and_says_what_to_do(
    every_tenth: Node,
) -> None:
    save_step(every_tenth, 7)
    wait = partial(waited, every_tenth.checkpoints)

    assert code_of(lambda: wait("run", 7, None, Level.DURABLE, 99.0)) == "local_only"
    assert code_of(lambda: wait("run", 7, "rank-0", Level.DURABLE, 99.0)) == "local_only"
    assert wait("run", 7, None, Level.LOCAL, 0.0) == 0.0


def test_a_flush_of_everything_is_done_with_local_only_steps(every_tenth: Node) -> None:
    save_step(every_tenth, 7)

    assert not every_tenth.checkpoints.flush(None, None, 0.0)
    assert not every_tenth.checkpoints.flush("run", None, 0.0)
    assert state_of(every_tenth, 7) is SaveState.LOCAL_ONLY


def test_a_flush_of_the_very_step_sends_it_after_all(every_tenth: Node) -> None:
    save_step(every_tenth, 7)

    left = every_tenth.checkpoints.flush("run", 7, 0.0)
    assert (left.shards, state_of(every_tenth, 7)) == (2, SaveState.OPEN)
    every_tenth.drain.drain_all()

    assert latest(every_tenth, Level.DURABLE) == 7
    assert not every_tenth.checkpoints.flush("run", 7, 0.0)
    assert kept(every_tenth) == (0, 0, 0, 1)


def test_what_was_decided_survives_a_restart(
    every_tenth: Node, tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    save_step(every_tenth, 7)
    save_step(every_tenth, 8)
    every_tenth.checkpoints.flush("run", 8, 0.0)
    every_tenth.die()

    again = Node(tmp_path / "tenth", remote, clock, vfs=vfs, policy=Policy())
    again.drain.drain_all()
    assert (state_of(again, 7), state_of(again, 8)) == (SaveState.LOCAL_ONLY, SaveState.PUBLISHED)
    again.die()
    every_tenth.__init__(tmp_path / "tenth", remote, clock, vfs=vfs)  # type: ignore[misc]


def test_a_newer_save_of_a_local_only_step_supersedes_it(every_tenth: Node) -> None:
    save_step(every_tenth, 7, save="one")
    save_step(every_tenth, 7, save="two")

    assert state_of(every_tenth, 7, "one") is SaveState.SUPERSEDED
    assert every_tenth.get("run", 7, "rank-0") == b"two of 7"
    assert code_of(lambda: every_tenth.put(ids(7, save="one"), "late", b"x")) == "save_superseded"


def test_a_local_only_step_can_be_deleted(every_tenth: Node) -> None:
    save_step(every_tenth, 7)

    assert every_tenth.checkpoints.delete_step("run", 7) == 2
    assert every_tenth.store.space.used_bytes == 0


def test_a_published_step_makes_older_ones_local_only_in_one_go(superseding: Node) -> None:
    for step in (1, 2, 3):
        save_step(superseding, step)
    superseding.drain.drain_one()  # step 1 is started
    superseding.checkpoints.flush("run", 3, 0.0)
    while superseding.drain.drain_step("run", 3):
        pass

    assert [state_of(superseding, step) for step in (1, 2, 3)] == [
        SaveState.OPEN,
        SaveState.LOCAL_ONLY,
        SaveState.PUBLISHED,
    ]
    assert kept(superseding)[0] == 1
    superseding.drain.drain_all()
    assert latest(superseding, Level.DURABLE) == 3
    assert [view.step for view in superseding.checkpoints.steps("run", Level.DURABLE)] == [1, 3]


def test_a_step_published_elsewhere_and_learnt_of_supersedes_too(
    superseding: Node, elsewhere: Node, clock: FakeClock
) -> None:
    save_step(superseding, 1)
    clock.advance(1.0)
    save_step(elsewhere, 2)
    elsewhere.drain.drain_all()

    assert superseding.get("run", 2, "rank-0") == b"save of 2"
    assert state_of(superseding, 1) is SaveState.LOCAL_ONLY


def test_a_run_of_which_no_step_is_divisible_is_found(every_tenth: Node) -> None:
    def never_durable() -> list[str]:
        return every_tenth.store.read(lambda sql: saves.never_durable_runs(sql, 10, 3))

    save_step(every_tenth, 1)
    save_step(every_tenth, 2)
    assert never_durable() == []
    save_step(every_tenth, 3)
    assert never_durable() == ["run"]
    save_step(every_tenth, 10)
    assert never_durable() == []


@pytest.fixture
def elsewhere(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Node]:
    """Another node of the same bucket."""
    elsewhere = Node(tmp_path / "elsewhere", remote, clock, vfs=vfs)
    yield elsewhere
    elsewhere.close()
