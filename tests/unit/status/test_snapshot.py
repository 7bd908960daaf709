"""One look at a node: what is dirty, kept or unwanted, what remotes are owed, and since when."""

from __future__ import annotations

from typing import Any

from cachetier_client.identity.names import SaveIds

from cachetier.drain.serve.stats import DrainSnapshot, RemoteSnapshot
from cachetier.local.catalog import copies, figures, saves
from cachetier.local.catalog.copies import Lag
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.policy import Policy
from cachetier.status.exposure import RunExposure
from cachetier.status.snapshot import NodeSnapshot, RemoteProgress, ServiceSnapshot, snapshot_of
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, ids, save_step

STEP_BYTES = len(LARGE) + len(b"save of 1")


def look(node: Node, clock: FakeClock, *drains: DrainSnapshot) -> NodeSnapshot:
    """Return the snapshot; ``drains`` is what the drains say of themselves and their remotes."""
    space = node.store.space
    service = ServiceSnapshot(
        used_bytes=space.used_bytes,
        started_at=clock.now() - 10_000,
        drains={each.remote.name: each for each in drains or (drain_to("durable"),)},
    )
    return snapshot_of(node.store, clock, service)


def drain_to(remote: str, rate: float | None = None, **seen: Any) -> DrainSnapshot:
    return DrainSnapshot(RemoteSnapshot(remote, **seen), rate_bytes_per_second=rate)


def test_an_empty_node_owes_nobody_anything(node: Node, clock: FakeClock) -> None:
    found = look(node, clock)

    assert (found.totals.dirty.size_bytes, found.runs, found.incomplete.steps) == (0, (), 0)
    assert found.remotes == (RemoteProgress("durable", eta_seconds=0.0),)


def test_a_save_is_dirty_until_it_is_published(node: Node, clock: FakeClock) -> None:
    save_step(node)
    clock.advance(40)
    before = look(node, clock)
    node.drain.drain_all()
    after = look(node, clock)

    assert (before.totals.dirty.size_bytes, before.totals.dirty.shards) == (STEP_BYTES, 2)
    assert before.oldest_dirty_seconds == 40.0
    assert before.runs == (RunExposure("run", None, None, 40.0, STEP_BYTES),)
    assert before.service.used_bytes == STEP_BYTES
    assert (after.totals.dirty.size_bytes, after.totals.clean_bytes) == (0, STEP_BYTES)
    assert after.runs == (RunExposure("run", 1, 40.0, 0.0, 0),)


def test_the_exposure_counts_from_the_save_that_is_durable(node: Node, clock: FakeClock) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    clock.advance(100)
    save_step(node, 2)
    clock.advance(7)

    assert look(node, clock).runs == (RunExposure("run", 1, 107.0, 107.0, STEP_BYTES),)


def test_the_eta_is_what_is_owed_at_the_measured_rate(node: Node, clock: FakeClock) -> None:
    save_step(node)

    (known,) = look(node, clock, drain_to("durable", STEP_BYTES / 4)).remotes
    (unknown,) = look(node, clock, drain_to("durable", None)).remotes
    assert known.pending == Lag(steps=1, shards=2, size_bytes=STEP_BYTES, since=clock.now())
    assert known.eta_seconds == 4.0
    assert unknown.eta_seconds is None


def test_a_standstill_counts_from_the_seal_or_from_the_last_progress(
    node: Node, clock: FakeClock
) -> None:
    save_step(node)
    clock.advance(60)
    began = look(node, clock)
    progressed: dict[str, Any] = {"state": "unreachable", "progressed_at": clock.now() - 5}
    went_on = look(node, clock, drain_to("durable", **progressed))
    paused = {**progressed, "pace": {"bytes_per_second": 0}}
    stands = look(node, clock, drain_to("durable", **paused))

    assert began.remotes[0].last_progress_seconds == 60.0
    assert went_on.remotes[0].last_progress_seconds == 5.0
    assert stands.remotes[0].last_progress_seconds == 0.0


def test_an_unsealed_save_is_no_work_for_the_drain_to_stand_still_at(
    node: Node, clock: FakeClock
) -> None:
    node.put(ids(), "x", b"x")
    clock.advance(60)

    (remote,) = look(node, clock).remotes
    assert (remote.pending.shards, remote.last_progress_seconds) == (1, 0.0)


def test_a_rank_that_never_seals_makes_its_step_incomplete(node: Node, clock: FakeClock) -> None:
    of = ids(rank=0)
    node.put(of, "x", b"x")
    node.checkpoints.seal(of, 2)
    clock.advance(1700)
    early = look(node, clock)
    clock.advance(101)
    late = look(node, clock)

    assert (early.incomplete.steps, early.runs[0].exposure_seconds) == (0, 1700.0)
    assert (late.incomplete.steps, late.incomplete.oldest_seconds) == (1, 1801.0)
    assert late.runs[0].exposure_seconds == 0.0


def test_what_a_run_saved_and_deleted_long_ago_exposes_nothing(
    node: Node, clock: FakeClock
) -> None:
    save_step(node, 1)
    node.checkpoints.delete_step("run", 1)
    clock.advance(90_000)
    save_step(node, 2)
    clock.advance(5)

    assert look(node, clock).runs[0].exposure_seconds == 5.0


def test_a_step_that_waits_for_no_other_node_is_exposed_until_it_is_published(
    node: Node, clock: FakeClock
) -> None:
    save_step(node, 1)
    for shard in node.rows():
        node.store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], clock.now())
    for rank in (0, 1):
        node.store.write(copies.record_part, node.rows()[0].save, rank, uploaded=True)
    clock.advance(3000)
    found = look(node, clock)

    assert (found.totals.dirty.shards, found.incomplete.steps) == (0, 0)
    assert found.runs[0].exposure_seconds == 3000.0


def test_bytes_of_a_superseded_save_are_unwanted_and_not_dirty(
    node: Node, clock: FakeClock
) -> None:
    node.put(ids(1, save="first"), "a", LARGE)
    node.put(ids(1, save="first"), "b", b"of a rank that died before it sealed")
    clock.advance(50)
    save_step(node, 1, "second")
    found = look(node, clock)

    assert (found.totals.unwanted.shards, found.totals.unwanted_saves) == (2, (("run", 1),))
    assert found.totals.dirty.shards == 2
    assert found.oldest_dirty_seconds == 0.0
    kinds = found.totals.dirty, found.totals.unwanted
    assert found.service.used_bytes == sum(each.size_bytes for each in kinds)


def test_local_only_bytes_are_not_dirty(node: Node, clock: FakeClock) -> None:
    node.store.policy = Policy(durable_every=2)
    save_step(node, 1)
    clock.advance(9)
    found = look(node, clock)

    assert (found.totals.kept.size_bytes, found.totals.kept.shards) == (STEP_BYTES, 2)
    assert (found.totals.policy.now, found.totals.policy.ever) == (1, 1)
    assert (found.totals.dirty.size_bytes, found.remotes[0].pending.size_bytes) == (0, 0)
    assert found.runs[0].exposure_seconds == 0.0  # nothing is known of what came before it


def test_a_run_that_ends_on_a_step_of_a_policy_grows_no_more_exposed(
    node: Node, clock: FakeClock
) -> None:
    node.store.policy = Policy(durable_every=2)
    save_step(node, 2)
    node.drain.drain_all()
    clock.advance(600)
    save_step(node, 3)
    exposed = []
    for _ in range(3):
        clock.advance(7200)
        exposed.append(look(node, clock).runs[0].exposure_seconds)
    assert exposed == [600.0] * 3

    (save,) = node.store.read(lambda sql: saves.saves_of(sql, "run", 3))
    node.store.write(saves.want, save.number)
    late = look(node, clock).runs[0].exposure_seconds
    node.drain.drain_all()

    assert late == 600.0 + 3 * 7200  # somebody asked for it, so it is late now
    assert look(node, clock).runs[0].exposure_seconds == 0.0


def test_a_save_that_still_receives_shards_is_not_stuck_however_long_it_takes(
    node: Node, clock: FakeClock
) -> None:
    for number in range(4):
        node.put(ids(), f"x-{number}", b"x" * 100)
        clock.advance(1000)
    slow = look(node, clock)
    clock.advance(801)
    stuck = look(node, clock)

    assert (slow.incomplete.steps, slow.runs[0].exposure_seconds) == (0, 4000.0)
    assert (stuck.incomplete.steps, stuck.incomplete.oldest_seconds) == (1, 4801.0)


def test_a_hidden_run_and_one_that_was_deleted_are_in_no_table(
    node: Node, clock: FakeClock
) -> None:
    for run in (".bench", "gone", "run"):
        node.put(SaveIds(run, 1, "s", 0, 1), "x", b"x")
    node.checkpoints.delete_step("gone", 1)

    found = look(node, clock)
    assert [run.run for run in found.runs] == ["run"]
    assert found.totals.dirty.shards == 2


def test_a_run_that_ended_long_ago_is_shown_only_while_it_is_not_durable(
    node: Node, clock: FakeClock
) -> None:
    save_step(node, 1)
    clock.advance(90_000)
    stranded = look(node, clock)
    node.drain.drain_all()
    safe = look(node, clock)

    assert [run.run for run in stranded.runs] == ["run"]
    assert safe.runs == ()


def test_a_replica_is_owed_what_the_durable_remote_may_have(node: Node, clock: FakeClock) -> None:
    node.store.configure_replicas({"near": True})
    save_step(node, 1)
    for shard in node.rows():
        node.store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], clock.now())
    clock.advance(30)
    durable, near = look(node, clock, drain_to("durable"), drain_to("near")).remotes

    assert (durable.pending.size_bytes, durable.eta_seconds) == (0, 0.0)
    assert (near.pending.steps, near.pending.size_bytes) == (1, STEP_BYTES)
    assert near.last_progress_seconds == 30.0
    assert look(node, clock).totals.dirty.shards == 2


def test_the_look_and_the_totals_agree(node: Node, clock: FakeClock) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    save_step(node, 2)
    found = look(node, clock).totals
    dirty = [row.content.size_bytes for row in node.rows() if row.state is ShardState.DIRTY]

    assert (found.dirty.size_bytes, found.dirty.shards) == (sum(dirty), len(dirty))
    assert found.clean_bytes == node.store.read(figures.local_bytes) - sum(dirty)
