"""One look at a node: what is dirty, kept or unwanted, what remotes are owed, and since when."""

from __future__ import annotations

from typing import Any

from cachetier.local.catalog import queries
from cachetier.model.names import DURABLE
from cachetier.model.policy import Policy
from cachetier.model.shard import SaveIds
from cachetier.status.collect import Facts, survey
from cachetier.telemetry.node_snapshot import Levels, RemoteLevel, RunLevel
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node
from tests.unit.steps.test_operations import LARGE, ids, save_step

STEP_BYTES = len(LARGE) + len(b"save of 1")


def look(node: Node, clock: FakeClock, *remotes: str, **drain: Any) -> Levels:
    """Return the levels; ``drain`` is what the drain says of itself and its remotes."""
    facts = Facts(
        remotes=remotes or ("durable",),
        drain=drain,
        connections=3,
        busy_ranks=2,
        exposure_objective_seconds=1800.0,
        started_at=clock.now() - 10_000,
    )
    return survey(node.store, clock, facts)


def test_an_empty_node_owes_nobody_anything(node: Node, clock: FakeClock) -> None:
    found = look(node, clock)

    assert (found.dirty_bytes, found.runs, found.incomplete_steps) == (0, (), 0)
    assert found.remotes == (RemoteLevel("durable", eta_seconds=0.0),)
    assert (found.standing.open_connections, found.standing.busy_ranks) == (3, 2)


def test_a_save_is_dirty_until_it_is_published(node: Node, clock: FakeClock) -> None:
    save_step(node)
    clock.advance(40)
    before = look(node, clock)
    node.drain.drain_all()
    after = look(node, clock)

    assert (before.dirty_bytes, before.dirty_shards) == (STEP_BYTES, 2)
    assert before.oldest_dirty_seconds == 40.0
    assert before.runs == (RunLevel("run", None, None, 40.0, STEP_BYTES),)
    assert before.standing.used_bytes == STEP_BYTES
    assert (after.dirty_bytes, after.clean_bytes) == (0, STEP_BYTES)
    assert after.runs == (RunLevel("run", 1, 40.0, 0.0, 0),)


def test_the_exposure_counts_from_the_save_that_is_durable(node: Node, clock: FakeClock) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    clock.advance(100)
    save_step(node, 2)
    clock.advance(7)

    assert look(node, clock).runs == (RunLevel("run", 1, 107.0, 107.0, STEP_BYTES),)


def test_the_eta_is_what_is_owed_at_the_measured_rate(node: Node, clock: FakeClock) -> None:
    save_step(node)

    (known,) = look(node, clock, rate_bytes_per_second=STEP_BYTES / 4).remotes
    (unknown,) = look(node, clock, rate_bytes_per_second=None).remotes
    assert (known.pending_steps, known.pending_shards, known.pending_bytes) == (1, 2, STEP_BYTES)
    assert known.eta_seconds == 4.0
    assert unknown.eta_seconds is None


def test_a_standstill_counts_from_the_seal_or_from_the_last_progress(
    node: Node, clock: FakeClock
) -> None:
    save_step(node)
    clock.advance(60)
    began = look(node, clock)
    progressed = {"name": "durable", "state": "unreachable", "progressed_at": clock.now() - 5}
    went_on = look(node, clock, remotes=[progressed])
    paused = {**progressed, "pace": {"bytes_per_second": 0}}
    stands = look(node, clock, remotes=[paused])

    assert began.remotes[0].last_progress_seconds == 60.0
    assert went_on.remotes[0].last_progress_seconds == 5.0
    assert went_on.remotes[0].state == "unreachable"
    assert stands.remotes[0].last_progress_seconds == 0.0


def test_an_unsealed_save_is_no_work_for_the_drain_to_stand_still_at(
    node: Node, clock: FakeClock
) -> None:
    node.put(ids(), "x", b"x")
    clock.advance(60)

    (remote,) = look(node, clock).remotes
    assert (remote.pending_shards, remote.last_progress_seconds) == (1, 0.0)


def test_a_rank_that_never_seals_makes_its_step_incomplete(node: Node, clock: FakeClock) -> None:
    of = ids(rank=0)
    node.put(of, "x", b"x")
    node.checkpoints.seal(of, 2)
    clock.advance(1700)
    early = look(node, clock)
    clock.advance(101)
    late = look(node, clock)

    assert (early.incomplete_steps, early.runs[0].exposure_seconds) == (0, 1700.0)
    assert (late.incomplete_steps, late.oldest_incomplete_seconds) == (1, 1801.0)
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
        node.store.drain_log.record_verified(shard.version, DURABLE, [DURABLE], clock.now())
    node.store._committer.run(lambda sql: sql.execute("UPDATE parts SET uploaded = 1"))
    clock.advance(3000)
    found = look(node, clock)

    assert (found.dirty_shards, found.incomplete_steps) == (0, 0)
    assert found.runs[0].exposure_seconds == 3000.0


def test_bytes_of_a_superseded_save_are_unwanted_and_not_dirty(
    node: Node, clock: FakeClock
) -> None:
    save_step(node, 1, "first")
    clock.advance(50)
    save_step(node, 1, "second")
    found = look(node, clock)

    assert (found.unwanted_shards, found.unwanted_saves) == (2, (("run", 1),))
    assert found.dirty_shards == 2
    assert found.oldest_dirty_seconds == 0.0
    assert found.standing.used_bytes == found.dirty_bytes + found.unwanted_bytes


def test_local_only_bytes_are_not_dirty(node: Node, clock: FakeClock) -> None:
    node.store.catalog._policy = Policy(durable_every=2)
    save_step(node, 1)
    clock.advance(9)
    found = look(node, clock)

    assert (found.local_only_bytes, found.local_only_shards) == (STEP_BYTES, 2)
    assert (found.local_only_steps, found.local_only_total) == (1, 1)
    assert (found.dirty_bytes, found.remotes[0].pending_bytes) == (0, 0)
    assert found.runs[0].exposure_seconds == 0.0  # nothing is known of what came before it


def test_a_run_that_ends_on_a_step_of_a_policy_grows_no_more_exposed(
    node: Node, clock: FakeClock
) -> None:
    node.store.catalog._policy = Policy(durable_every=2)
    save_step(node, 2)
    node.drain.drain_all()
    clock.advance(600)
    save_step(node, 3)
    exposed = []
    for _ in range(3):
        clock.advance(7200)
        exposed.append(look(node, clock).runs[0].exposure_seconds)
    assert exposed == [600.0] * 3

    (save,) = node.store.read(lambda sql: queries.saves_of(sql, "run", 3))
    node.store.policy_log.want(save.number)
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

    assert (slow.incomplete_steps, slow.runs[0].exposure_seconds) == (0, 4000.0)
    assert (stuck.incomplete_steps, stuck.oldest_incomplete_seconds) == (1, 4801.0)


def test_a_hidden_run_and_one_that_was_deleted_are_in_no_table(
    node: Node, clock: FakeClock
) -> None:
    for run in (".bench", "gone", "run"):
        node.put(SaveIds(run, 1, "s", 0, 1), "x", b"x")
    node.checkpoints.delete_step("gone", 1)

    found = look(node, clock)
    assert [run.run for run in found.runs] == ["run"]
    assert found.dirty_shards == 2


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
        node.store.drain_log.record_verified(shard.version, DURABLE, [DURABLE], clock.now())
    clock.advance(30)
    durable, near = look(node, clock, "durable", "near").remotes

    assert (durable.pending_bytes, durable.eta_seconds) == (0, 0.0)
    assert (near.pending_steps, near.pending_bytes) == (1, STEP_BYTES)
    assert near.last_progress_seconds == 30.0
    assert look(node, clock).dirty_shards == 2


def test_the_look_and_the_totals_agree(node: Node, clock: FakeClock) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    save_step(node, 2)
    found, totals = look(node, clock), node.store.read(queries.totals)

    assert (found.dirty_bytes, found.dirty_shards) == (totals.dirty_bytes, totals.dirty_shards)
    assert found.clean_bytes == totals.local_bytes - totals.dirty_bytes
