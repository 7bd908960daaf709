"""The catalog forgets what ended and left nothing here, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
from cachetier_client.bucket_format.stored import Content, Stored
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.errors import NotFoundError, PinnedError
from cachetier.local.catalog import copies, figures, manifests, notes, saves
from cachetier.local.catalog.rows import IncidentRecord, NewShard, RemoteCopy
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.policy import Policy
from cachetier.reclaim.prune import (
    DAY_SECONDS,
    IDLE_SECONDS,
    KEPT_INCIDENTS,
    KEPT_SAVES,
    prune_catalog,
)
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

BLOCK = bytes(1000)
CONTENT = Content(len(BLOCK), digest_of(BLOCK), (digest_of(BLOCK),))
COPY = RemoteCopy(DURABLE, Stored.raw(CONTENT))


def saved(node: Node, clock: FakeClock, step: int, *, evict: bool = True) -> SaveIds:
    """Save a step, have it published, and evict it."""
    ids = SaveIds("run", step, f"s{step}", 0, 1)
    node.put(ids, "a", b"bytes of it")
    node.checkpoints.seal(ids, None)
    while node.drain.drain_one():
        pass
    node.drain.publish_all()
    for save in node.store.read(copies.due_saves, DURABLE):
        node.store.write(copies.record_swept, save.number)
    if evict:
        for row in node.rows():
            if row.step == step:
                assert node.evict(row)
    clock.advance(1.0)
    return ids


def passed(node: Node, clock: FakeClock, after_seconds: float = DAY_SECONDS) -> None:
    """Let newer steps be published elsewhere and read here, so that older saves may go."""
    for step in range(10_000, 10_000 + KEPT_SAVES):
        found(node, clock, step, 1)
    clock.advance(after_seconds)


def found(node: Node, clock: FakeClock, step: int, shards: int) -> None:
    now = clock.now()
    published = SaveState.PUBLISHED
    save = Save(0, "run", step, f"s{step}", published, 1, False, now, f"{step}", now)
    new = [
        NewShard(f"model/{n}", 0, CONTENT, state=ShardState.EVICTED, copies=(COPY,))
        for n in range(shards)
    ]
    node.store.write(manifests.adopt, node.store.policy, save, new, now)
    clock.advance(1.0)


def steps(node: Node) -> list[int]:
    return [save.step for save in node.store.read(saves.saves_of_run, "run")]


def prune(node: Node, clock: FakeClock) -> int:
    return prune_catalog(node.store, clock.now())


def pages(node: Node) -> int:
    return node.store.read(lambda sql: int(sql.pragma("page_count")))


def test_two_thousand_steps_take_no_more_room_than_a_day_of_them(
    node: Node, clock: FakeClock
) -> None:
    a_day = 200
    seen = []
    for day in range(10):
        for step in range(day * a_day, (day + 1) * a_day):
            found(node, clock, step, shards=4)
        clock.advance(DAY_SECONDS)
        while prune(node, clock):
            pass
        seen.append(pages(node))

    assert len(steps(node)) < 2 * a_day
    assert seen[-1] <= 1.1 * seen[1], "freed pages are used again"
    assert steps(node)[-1] == 10 * a_day - 1


def test_a_forgotten_step_is_read_from_the_bucket(node: Node, clock: FakeClock) -> None:
    saved(node, clock, 1)
    passed(node, clock)

    assert prune(node, clock) == 1

    assert 1 not in steps(node)
    assert node.get("run", 1, "a", 5.0) == b"bytes of it"
    assert 1 in steps(node)


def test_the_newest_saves_stay_however_old_they_are(node: Node, clock: FakeClock) -> None:
    for step in range(3):
        saved(node, clock, step)
    clock.advance(10 * DAY_SECONDS)

    assert prune(node, clock) == 0


def test_of_a_run_that_is_over_the_newest_published_step_stays(
    node: Node, clock: FakeClock
) -> None:
    for step in range(3):
        saved(node, clock, step)
    clock.advance(IDLE_SECONDS + 1)

    assert prune(node, clock) == 2

    assert steps(node) == [2]


def test_what_is_younger_than_a_day_stays(node: Node, clock: FakeClock) -> None:
    saved(node, clock, 1)
    passed(node, clock, after_seconds=DAY_SECONDS / 2)

    assert prune(node, clock) == 0


def test_what_has_bytes_here_stays(node: Node, clock: FakeClock) -> None:
    saved(node, clock, 1, evict=False)
    passed(node, clock)

    assert prune(node, clock) == 0
    assert node.get("run", 1, "a") == b"bytes of it"


def test_a_pinned_step_stays(node: Node, clock: FakeClock) -> None:
    saved(node, clock, 1)
    node.checkpoints.pin("run", 1)
    passed(node, clock)

    assert prune(node, clock) == 0
    with pytest.raises(PinnedError):
        node.checkpoints.delete_step("run", 1)


def test_a_save_that_is_not_swept_yet_stays(node: Node, clock: FakeClock) -> None:
    saved(node, clock, 1)
    passed(node, clock)
    node.store.write(lambda sql: sql.execute("UPDATE copies SET due = 1 WHERE save = 1").fetchall())

    assert prune(node, clock) == 0


def test_a_deletion_that_the_bucket_has_not_seen_stays_and_goes_once_it_has(
    node: Node, clock: FakeClock
) -> None:
    saved(node, clock, 1)
    node.checkpoints.delete_step("run", 1)
    passed(node, clock)
    assert prune(node, clock) == 0, "its row says what is to be deleted there"

    node.drain.delete_all()

    assert prune(node, clock) == 1
    with pytest.raises(NotFoundError):
        node.get("run", 1, "a", 5.0)


def test_an_open_save_keeps_those_that_it_replaced(node: Node, clock: FakeClock) -> None:
    for save_id in ("older", "newer"):
        node.put(SaveIds("run", 1, save_id, 0, 1), "a", b"x")
    node.evictor.collect()
    passed(node, clock)
    node.evictor.collect()

    assert prune(node, clock) == 0
    newer = node.store.read(saves.save_named, "run", 1, "newer")
    assert newer is not None
    assert node.store.read(saves.claimant, newer).replaced == ("older",)


def test_a_save_of_many_shards_goes_in_several_transactions(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.reclaim.prune.AT_ONCE", 3)
    found(node, clock, 1, shards=10)
    passed(node, clock)

    assert prune(node, clock) == 1
    assert 1 not in steps(node)


def test_incidents_go_by_age_and_number_and_the_count_of_damage_goes_on(
    node: Node, clock: FakeClock
) -> None:
    def tell(count: int) -> None:
        damage = IncidentRecord("integrity", "damaged", "", "run", 1, "a")

        def insert(sql: object) -> None:
            for _ in range(count):
                notes.insert_incident(sql, damage, clock.now())  # type: ignore[arg-type]

        node.store.write(insert)

    tell(KEPT_INCIDENTS + 7)
    newest = node.store.read(notes.newest_incident)
    prune(node, clock)
    assert len(node.store.read(notes.incidents_after, 0, 20_000)) == KEPT_INCIDENTS

    clock.advance(IDLE_SECONDS + 1)
    for _ in range(20):
        prune(node, clock)

    assert node.store.read(notes.newest_incident) == newest, "numbers never begin anew"
    assert len(node.store.read(notes.incidents_after, 0)) == 1
    assert node.store.read(figures.damage).ever == KEPT_INCIDENTS + 7


def test_steps_that_a_policy_kept_here_are_counted_for_ever(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> None:
    node = Node(tmp_path / "other", remote, clock, vfs=vfs, policy=Policy(10, False, 1))
    try:
        for step in (1, 2, 3):
            ids = SaveIds("run", step, f"s{step}", 0, 1)
            node.put(ids, "a", b"x")
            node.checkpoints.seal(ids, None)
            node.retention.trim()
            clock.advance(1.0)
        passed(node, clock)

        assert prune(node, clock) == 2
        assert node.store.read(figures.kept_by_policy).ever == 3
    finally:
        node.close()


def test_a_save_that_is_pinned_after_it_was_looked_at_stays(node: Node, clock: FakeClock) -> None:
    saved(node, clock, 1)
    passed(node, clock)
    which = "run", clock.now() - DAY_SECONDS, 1, 10
    number = node.store.read(saves.forgettable_saves, *which)[0]
    node.checkpoints.pin("run", 1)

    assert node.store.write(saves.forget_some, number, clock.now(), 10), "done with it"

    assert node.get("run", 1, "a") == b"bytes of it"


def test_what_counts_again_when_its_turn_comes_is_not_forgotten(
    node: Node, clock: FakeClock
) -> None:
    ids = SaveIds("run", 1, "open", 0, 1)
    node.put(ids, "a", b"not yet durable")
    number = node.rows()[0].save
    clock.advance(10 * DAY_SECONDS)

    assert node.store.write(saves.forget_some, number, clock.now(), 10)
    assert [row.save for row in node.rows()] == [number]
    assert node.get("run", 1, "a") == b"not yet durable"
