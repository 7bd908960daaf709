"""When the drain sweeps up after a save: once it has ended and nothing of it is under way."""

from __future__ import annotations

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.drain.schedule.queue_state import Situation
from cachetier.drain.schedule.scheduler import OVERDUE_SECONDS, SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind, Work, name_key
from cachetier.local.catalog import copies, manifests, parts, uploads
from cachetier.local.store import Store
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import DECIDED_SAVES, PartState, SaveState
from cachetier.model.names import DURABLE
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node

NOW = 10_000.0


def save_of(state: SaveState, number: int = 1, age_seconds: float = 5.0) -> Save:
    started_at = NOW - age_seconds
    return Save(number, "run", number, f"save-{number}", state, 1, False, started_at, "7")


@pytest.mark.parametrize("state", [SaveState.PUBLISHED, SaveState.SUPERSEDED, SaveState.REFUSED])
def test_a_save_that_ended_is_swept_up_after(state: SaveState) -> None:
    save = save_of(state)

    assert plan([SaveView(save)], Situation(NOW, NOW), 5).work == (Work(TaskKind.SWEEP, save),)


def test_nothing_is_swept_from_under_an_upload() -> None:
    busy = frozenset({name_key(1, "shard")})
    view = SaveView(save_of(SaveState.SUPERSEDED))

    assert plan([view], Situation(NOW, NOW, in_flight=busy), 5).work == ()


def test_what_carries_bytes_goes_first_but_not_for_ever() -> None:
    sealed = SaveView(save_of(SaveState.OPEN, 2), (RankPart(0, PartState.SEALED, 1, NOW, True),))
    young, old = (
        SaveView(save_of(SaveState.PUBLISHED, 1, age)) for age in (5.0, OVERDUE_SECONDS + 1)
    )

    def kinds(ended: SaveView) -> list[TaskKind]:
        return [work.kind for work in plan([ended, sealed], Situation(NOW, NOW), 5).work]

    assert kinds(young) == [TaskKind.PUBLISH, TaskKind.SWEEP]
    assert kinds(old) == [TaskKind.SWEEP, TaskKind.PUBLISH]


# --- what the catalog remembers for it ------------------------------------------------------------


@pytest.fixture
def store(node: Node) -> Store:
    return node.store


def ours(store: Store, number: int, *names: str) -> list[str]:
    return store.read(lambda sql: uploads.names_of_save(sql, number, names))


def unswept(store: Store) -> list[int]:
    due = store.read(copies.due_saves, DURABLE)
    return [save.number for save in due if save.state in DECIDED_SAVES]


def test_names_are_remembered_until_the_save_is_swept_up_after(
    node: Node, store: Store, clock: FakeClock
) -> None:
    ids = SaveIds("run", 1, "save-1", 0, 1)
    node.put(ids, "kept", b"a")
    number = store.write(parts.admit, store.policy, ids, clock.now()).number
    node.put(ids, "early", b"b")
    node.checkpoints.delete_shard("run", 1, "early")
    store.write(copies.record_location, number, "1")
    node.put(ids, "gone", b"b")
    node.checkpoints.delete_shard("run", 1, "gone")

    # Before the save had a location nothing was sent, so nothing can have been left behind.
    assert ours(store, number, "kept", "early", "gone", "theirs") == ["kept", "gone"]
    assert unswept(store) == []
    store.write(copies.record_outcome, store.policy, number, SaveState.PUBLISHED, None, clock.now())
    assert unswept(store) == [number]
    store.write(copies.record_swept, number)
    assert unswept(store) == []
    assert ours(store, number, "kept", "gone") == ["kept"]


def test_a_save_adopted_from_the_bucket_needs_no_sweep(store: Store, clock: FakeClock) -> None:
    store.write(manifests.adopt, store.policy, save_of(SaveState.PUBLISHED), (), clock.now())

    assert unswept(store) == []


def test_names_of_a_deleted_save_are_known_until_its_objects_are_gone(
    node: Node, store: Store, clock: FakeClock
) -> None:
    ids = SaveIds("run", 1, "save-1", 0, 1)
    node.put(ids, "a", b"a")
    number = store.write(parts.admit, store.policy, ids, clock.now()).number
    store.write(copies.record_location, number, "1")
    node.checkpoints.delete_step("run", 1)

    assert ours(store, number, "a") == ["a"]
    store.write(copies.forget_save, number)
    assert ours(store, number, "a") == []
