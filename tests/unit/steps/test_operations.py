"""Whole steps: what this node shows of them, what the bucket does, and what waiting ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CachetierError, NotDurableError, NotFoundError
from cachetier.model.levels import Level
from cachetier.steps.operations import Checkpoints
from cachetier.steps.pending import Pending, PendingStep
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.waiting import waited
from tests.stateful.node import Node

LARGE = bytes(100_000)


def ids(step: int = 1, rank: int = 0, save: str = "save", *, overwrite: bool = False) -> SaveIds:
    return SaveIds("run", step, save, rank, 2, overwrite)


def save_step(node: Node, step: int = 1, save: str = "save", *, overwrite: bool = False) -> None:
    for rank in (0, 1):
        of = ids(step, rank, save, overwrite=overwrite)
        node.put(of, f"rank-{rank}", LARGE if rank else f"{save} of {step}".encode())
        node.checkpoints.seal(of, 2)


def latest(node: Node, level: Level) -> int | None:
    view = node.checkpoints.latest("run", level)
    return view.step if view is not None else None


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(CachetierError) as refusal:
        call()
    return refusal.value.code


@pytest.fixture
def elsewhere(
    tmp_path: Path, remote: MemoryObjectStore, clock: FakeClock, vfs: str
) -> Iterator[Node]:
    """Another node of the same bucket."""
    elsewhere = Node(tmp_path / "elsewhere", remote, clock, vfs=vfs)
    yield elsewhere
    elsewhere.close()


def test_a_step_counts_here_once_both_ranks_have_sealed(node: Node) -> None:
    node.put(ids(), "rank-0", b"x")
    assert node.checkpoints.step("run", 1)[0].state == "open"
    assert node.checkpoints.seal(ids(), 2) == [0]
    assert latest(node, Level.LOCAL) is None
    assert node.checkpoints.seal(ids(rank=1), 2) == [0, 1]

    assert latest(node, Level.LOCAL) == 1
    assert latest(node, Level.DURABLE) is None
    view, shards = node.checkpoints.step("run", 1)
    assert (view.state, view.levels, view.ranks) == ("sealed", ("local",), (0, 1))
    assert (view.shards, view.size_bytes, view.dirty_bytes) == (1, 1, 1)
    assert [(shard.name, shard.state) for shard in shards] == [("rank-0", "dirty")]


def test_a_published_step_counts_at_every_level(node: Node) -> None:
    save_step(node)
    node.drain.drain_all()

    view, _ = node.checkpoints.step("run", 1)
    assert (view.state, view.dirty_bytes) == ("published", 0)
    assert view.levels == ("local", "replicated", "durable")
    assert latest(node, Level.DURABLE) == 1
    assert [v.step for v in node.checkpoints.steps("run", Level.DURABLE)] == [1]


def test_latest_is_the_newest_step_that_can_be_restored_not_the_newest_there_is(
    node: Node,
) -> None:
    save_step(node, 1)
    node.drain.drain_all()
    save_step(node, 2)
    node.put(ids(3), "rank-0", b"x")

    assert (latest(node, Level.LOCAL), latest(node, Level.DURABLE)) == (2, 1)
    assert [v.step for v in node.checkpoints.steps("run")] == [1, 2, 3]
    assert [v.step for v in node.checkpoints.steps("run", Level.LOCAL)] == [1, 2]


def test_a_newer_step_that_is_only_here_is_told_of_beside_the_newest_durable_one(
    node: Node, elsewhere: Node
) -> None:
    def newest(at: Node, level: Level) -> tuple[int | None, int | None]:
        found = at.checkpoints.newest("run", level)
        return found.step.step if found.step else None, found.newer_local

    assert newest(node, Level.DURABLE) == (None, None)
    save_step(node, 1)
    assert newest(node, Level.DURABLE) == (None, 1), "nothing is durable, and a step is here"
    node.drain.drain_all()
    assert newest(node, Level.DURABLE) == (1, None)
    save_step(node, 2)
    node.put(ids(3), "rank-0", b"x")

    assert newest(node, Level.DURABLE) == newest(node, Level.REPLICATED) == (1, 2)
    assert newest(node, Level.LOCAL) == (2, None)
    assert newest(elsewhere, Level.DURABLE) == (1, None)


def test_a_damaged_step_is_no_latest(node: Node) -> None:
    save_step(node, 1)
    save_step(node, 2)
    row = next(row for row in node.rows() if row.step == 2 and row.file_id is not None)
    assert row.file_id is not None
    (node.cache_dir / "data" / row.file_id[:2] / row.file_id).write_bytes(LARGE[:-1] + b"x")
    assert latest(node, Level.LOCAL) == 2, "nobody has looked yet"

    assert code_of(lambda: node.get("run", 2, "rank-1")) == "integrity"

    assert latest(node, Level.LOCAL) == 1
    assert node.checkpoints.step("run", 2)[0].state == "damaged"
    assert (
        code_of(lambda: waited(node.checkpoints, "run", 2, None, Level.LOCAL, 0.0)) == "integrity"
    )


def test_an_aborted_rank_is_shown_and_the_step_does_not_count(node: Node) -> None:
    save_step(node)
    node.put(ids(2), "rank-0", b"x")
    node.checkpoints.seal(ids(2, rank=1), 2)
    node.checkpoints.abort_rank(ids(2))

    assert node.checkpoints.step("run", 2)[0].state == "aborted"
    assert latest(node, Level.LOCAL) == 1


def test_an_overwrite_is_visible_only_once_it_is_whole(node: Node) -> None:
    save_step(node)
    node.drain.drain_all()
    over = ids(save="again", overwrite=True)
    node.put(over, "rank-0", b"new")
    node.drain.drain_all()

    assert node.get("run", 1, "rank-0") == b"save of 1"
    assert node.checkpoints.step("run", 1)[0].save_id == "save"
    node.checkpoints.seal(over, 2)
    node.checkpoints.seal(ids(rank=1, save="again", overwrite=True), 2)
    node.drain.drain_all()
    assert node.get("run", 1, "rank-0") == b"new"
    assert node.checkpoints.step("run", 1)[0].save_id == "again"


def test_a_step_that_only_the_bucket_knows_is_shown_from_there(node: Node, elsewhere: Node) -> None:
    save_step(elsewhere)
    elsewhere.drain.drain_all()

    view, shards = node.checkpoints.step("run", 1)

    assert (view.state, view.levels) == ("published", ("replicated", "durable"))
    assert {(s.name, s.state) for s in shards} == {("rank-0", "remote"), ("rank-1", "remote")}
    assert (latest(node, Level.DURABLE), latest(node, Level.LOCAL)) == (1, None)
    assert node.checkpoints.runs() == []


@pytest.mark.parametrize("run", ["..", "", "a/b"])
def test_a_hostile_run_is_refused(node: Node, run: str) -> None:
    assert code_of(lambda: node.checkpoints.steps(run)) == "invalid_name"
    assert code_of(lambda: node.checkpoints.latest(run, Level.DURABLE)) == "invalid_name"


def test_an_unknown_step_is_not_found(node: Node) -> None:
    with pytest.raises(NotFoundError):
        node.checkpoints.step("run", 1)
    with pytest.raises(NotFoundError):
        node.checkpoints.delete_step("run", 1)


# --- deleting -----------------------------------------------------------------------------------


def test_a_deleted_step_is_gone_here_at_once_and_remotely_after_the_drain(node: Node) -> None:
    save_step(node)
    node.drain.drain_all()

    assert node.checkpoints.delete_step("run", 1) == 2

    assert node.bucket.published("run", 1) is not None, "the bucket has not heard of it yet"
    assert code_of(lambda: node.checkpoints.step("run", 1)) == "not_found"
    assert code_of(lambda: node.get("run", 1, "rank-0")) == "not_found"
    assert (latest(node, Level.LOCAL), latest(node, Level.DURABLE)) == (None, None)
    assert node.checkpoints.steps("run", Level.DURABLE) == []
    assert node.store.space.used_bytes == 0
    assert node.rows() == [], "a read brought rows of the deleted step back"
    node.drain.drain_all()
    assert node.bucket.published("run", 1) is None
    assert node.bucket.objects.list("tier/run/1/").keys == ("tier/run/1/.cachetier/manifest.json",)


def test_a_step_of_another_node_can_be_deleted_here(node: Node, elsewhere: Node) -> None:
    save_step(elsewhere)
    elsewhere.drain.drain_all()

    node.checkpoints.delete_step("run", 1)
    node.drain.drain_all()

    assert node.bucket.published("run", 1) is None


def test_a_step_saved_elsewhere_after_it_was_deleted_here_is_seen_and_can_be_deleted(
    node: Node, elsewhere: Node, clock: FakeClock
) -> None:
    save_step(node)
    node.drain.drain_all()
    node.checkpoints.delete_step("run", 1)
    node.drain.drain_all()
    clock.advance(1.0)
    save_step(elsewhere, save="again")
    elsewhere.drain.drain_all()

    assert latest(node, Level.DURABLE) == 1
    assert node.get("run", 1, "rank-0") == b"again of 1"
    node.checkpoints.delete_step("run", 1)
    node.drain.drain_all()
    assert node.bucket.published("run", 1) is None


def test_deleting_twice_is_no_error(node: Node) -> None:
    save_step(node)

    assert node.checkpoints.delete_step("run", 1) == 2
    assert node.checkpoints.delete_step("run", 1) == 0


def test_a_deleted_step_can_be_saved_again_under_another_save(node: Node) -> None:
    save_step(node)
    node.drain.drain_all()
    node.checkpoints.delete_step("run", 1)
    assert code_of(lambda: node.put(ids(), "rank-0", b"late")) == "aborted"

    save_step(node, save="again")
    node.drain.drain_all()

    assert node.get("run", 1, "rank-0") == b"again of 1"
    assert latest(node, Level.DURABLE) == 1


# --- waiting ------------------------------------------------------------------------------------


def test_waiting_for_what_is_reached_tells_its_age(node: Node, clock: FakeClock) -> None:
    save_step(node)
    clock.advance(12.0)

    assert waited(node.checkpoints, "run", 1, None, Level.LOCAL, 0.0) == 12.0
    assert waited(node.checkpoints, "run", 1, "rank-0", Level.LOCAL, 0.0) == 12.0


def test_waiting_for_what_is_not_reached_ends_at_the_deadline(node: Node) -> None:
    save_step(node)

    assert code_of(lambda: waited(node.checkpoints, "run", 1, None, Level.DURABLE, 0.0)) == (
        "not_durable"
    )
    assert code_of(lambda: waited(node.checkpoints, "run", 1, "rank-0", Level.DURABLE, 0.0)) == (
        "not_durable"
    )
    node.drain.drain_one()
    assert waited(node.checkpoints, "run", 1, "rank-0", Level.DURABLE, 0.0) >= 0.0
    assert code_of(lambda: waited(node.checkpoints, "run", 1, None, Level.DURABLE, 0.0)) == (
        "not_durable"
    ), "one shard makes no step"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda node: node.checkpoints.delete_step("run", 1), "aborted"),
        (lambda node: node.checkpoints.step("run", 9), "not_found"),
    ],
    ids=["deleted", "unknown"],
)
def test_waiting_for_what_never_comes_ends_at_once(
    node: Node, end: Callable[[Node], object], code: str
) -> None:
    save_step(node)
    step = 1
    try:
        end(node)
    except NotFoundError:
        step = 9
    assert code_of(lambda: waited(node.checkpoints, "run", step, None, Level.DURABLE, 99.0)) == code


def test_waiting_for_a_step_that_another_node_published_looks_at_the_bucket(
    node: Node, elsewhere: Node
) -> None:
    save_step(elsewhere)
    elsewhere.drain.drain_all()

    assert waited(node.checkpoints, "run", 1, None, Level.DURABLE, 0.0) == 0.0


def test_who_waits_or_flushes_hurries_the_drain(node: Node, clock: FakeClock) -> None:
    hurried: list[tuple[str | None, int | None]] = []
    checkpoints = Checkpoints(
        node.store, node.bucket, node.changes, clock, hurry=lambda *what: hurried.append(what)
    )
    save_step(node)

    waited(checkpoints, "run", 1, None, Level.LOCAL, 0.0)
    code_of(lambda: waited(checkpoints, "run", 1, None, Level.DURABLE, 0.0))
    checkpoints.flush(None, None, 0.0)

    assert hurried == [("run", 1), (None, None)]


def test_a_flush_tells_what_is_pending(node: Node) -> None:
    save_step(node, 1)
    save_step(node, 2)
    size_bytes = len(LARGE) + len(b"save of 1")

    def flush(run: str | None, step: int | None) -> list[tuple[int, int, int]]:
        left = node.checkpoints.flush(run, step, 0.0)
        return [(each.step, each.shards, each.size_bytes) for each in left.steps]

    assert flush("run", 1) == [(1, 2, size_bytes)]
    assert flush(None, None) == [(1, 2, size_bytes), (2, 2, size_bytes)]
    while node.drain.drain_one():
        pass
    assert flush("run", 1) == [(1, 1, 0)], "sealed, and not published yet"
    node.drain.publish_all()
    assert flush(None, None) == []


def test_a_flush_of_what_nobody_knows_is_never_done(node: Node, elsewhere: Node) -> None:
    """Whoever stops a node on the word of a flush has misspelt the run, or asks another node."""
    save_step(node)
    node.drain.drain_all()
    save_step(elsewhere, 2)

    assert not node.checkpoints.flush("run", 1, 0.0)
    assert code_of(lambda: node.checkpoints.flush("run", 2, 0.0)) == "not_found"
    assert code_of(lambda: node.checkpoints.flush("rum", None, 0.0)) == "not_found"


def test_a_flush_of_what_the_bucket_has_or_a_branch_of_the_run_is_done(
    node: Node, elsewhere: Node
) -> None:
    save_step(elsewhere)
    elsewhere.drain.drain_all()
    of = SaveIds("other~files~a", 3, "save", 0, 1)
    node.put(of, "x", b"x")
    node.checkpoints.seal(of, 1)
    node.drain.drain_all()

    for run, step in (("run", 1), ("run", None), ("other", 3), ("other", None)):
        assert not node.checkpoints.flush(run, step, 0.0)


def test_a_flush_that_cannot_ask_the_bucket_in_time_says_so(node: Node) -> None:
    late = node.checkpoints.drained("rum", 1).late

    with pytest.raises(NotDurableError, match="of step 1 of run rum, and S3 has not answered"):
        late(0.0)


def test_a_flush_on_a_failed_disk_is_done_where_nothing_is_dirty(node: Node) -> None:
    node.store.fence("planned")

    assert not node.checkpoints.flush(None, None, 60.0)


def test_a_flush_of_dirty_bytes_on_a_failed_disk_fails_at_once(node: Node) -> None:
    save_step(node)
    node.store.fence("planned")

    assert code_of(lambda: node.checkpoints.flush(None, None, 60.0)) == "fenced"


def test_a_flush_of_a_step_needs_its_run_and_a_step_that_has_a_future(node: Node) -> None:
    save_step(node)
    node.checkpoints.delete_step("run", 1)

    assert code_of(lambda: node.checkpoints.flush(None, 1, 0.0)) == "invalid_request"
    assert code_of(lambda: node.checkpoints.flush("run", 1, 9.0)) == "aborted"


def test_what_is_pending_is_named_in_words() -> None:
    steps = tuple(PendingStep("run", step, 2, 10**9) for step in range(7))
    left = Pending(steps)

    assert (left.shards, left.size_bytes) == (14, 7 * 10**9)
    assert str(left).startswith("14 shards, 7.0 GB of steps run/0 (2 shards, 1.0 GB), run/1")
    assert str(left).endswith("run/4 (2 shards, 1.0 GB), 2 more")
    assert left.as_json()["pending_steps"][0] == asdict(steps[0])
    assert not Pending()
