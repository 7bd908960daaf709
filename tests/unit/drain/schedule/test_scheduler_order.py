"""Whole checkpoints, fair shares, and nothing that starves, over long schedules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from cachetier_client.bucket_format.stored import Content
from hypothesis import given
from hypothesis import strategies as st

from cachetier.drain.schedule.queue_state import (
    EQUAL,
    ITEM_BYTES,
    Fairness,
    Group,
    Situation,
    Weights,
)
from cachetier.drain.schedule.scheduler import OVERDUE_SECONDS, SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind, Work
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import PartState, SaveState, ShardState
from cachetier.model.shard import Shard

NOW = 1_000_000.0
MIB = 1 << 20


def view_of(
    number: int,
    run: str,
    sizes: list[int],
    *,
    age_seconds: float = 1.0,
    complete: bool = True,
    now: float = NOW,
) -> SaveView:
    """Return a save with shards of ``sizes``; of an incomplete one a second rank writes on."""
    at = now - age_seconds
    save = Save(number, run, number, f"s{number}", SaveState.OPEN, 2, False, at, location="x")
    parts = [RankPart(0, PartState.SEALED, None, at, uploaded=False)]
    if not complete:
        parts.append(RankPart(1, PartState.OPEN, None, None, uploaded=False))
    dirty = tuple(
        Shard(
            version=number * 1000 + index,
            save=number,
            run=run,
            step=number,
            save_id=save.save_id,
            name=f"shard-{index}",
            rank=0,
            content=Content(size_bytes, 1, (1,)),
            state=ShardState.DIRTY,
            file_id=None,
            inline=True,
            committed_at=at,
        )
        for index, size_bytes in enumerate(sizes)
    )
    return SaveView(save, tuple(parts), dirty)


@dataclass
class Link:
    """Sends what is planned, a batch at a time, until all is sent or the time is up."""

    views: dict[int, SaveView]
    weights: Weights = EQUAL
    hurried: str = ""
    batch: int = 4
    bytes_per_second: float = MIB
    now: float = NOW
    sent: list[Work] = field(default_factory=list)
    sent_at: dict[int, float] = field(default_factory=dict)
    _fairness: Fairness = field(default_factory=Fairness)

    def send(self, batches: int) -> None:
        for _ in range(batches):
            situation = Situation(
                self.now,
                0.0,
                hurried=lambda save: save.run == self.hurried,
                fairness=self._fairness,
                weights=self.weights,
            )
            found = plan(list(self.views.values()), situation, self.batch)
            self._fairness = found.fairness
            for work in found.work:
                self._finish(work)

    def _finish(self, work: Work) -> None:
        self.now += (work.size_bytes + ITEM_BYTES) / self.bytes_per_second
        self.sent.append(work)
        view = self.views[work.save.number]
        if work.shard is None:
            del self.views[work.save.number]  # its part is written: the others publish it
            return
        self.sent_at[work.shard.version] = self.now
        rest = tuple(shard for shard in view.dirty if shard is not work.shard)
        self.views[work.save.number] = SaveView(view.save, view.parts, rest)

    def uploads(self, run: str) -> list[int]:
        """Return the saves of the uploads of ``run``, in order."""
        works = (work for work in self.sent if work.kind is TaskKind.UPLOAD)
        return [work.save.number for work in works if work.save.run == run]


SAVES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(0, 8 * MIB), min_size=1, max_size=6),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(saves=SAVES, batch=st.integers(1, 16))
def test_a_run_sends_one_checkpoint_after_the_other_complete_ones_first(
    saves: list[tuple[str, list[int], bool]], batch: int
) -> None:
    views = {
        number: view_of(number, run, sizes, complete=complete)
        for number, (run, sizes, complete) in enumerate(saves, 1)
    }
    link = Link(dict(views), batch=batch, bytes_per_second=1e12)
    link.send(batches=200)

    for run in ("a", "b", "c"):
        order = list(dict.fromkeys(link.uploads(run)))
        of_run = [n for n, view in views.items() if view.save.run == run]
        incomplete = {n for n in of_run if len(views[n].parts) == 2}
        assert order == sorted(of_run, key=lambda n: (n in incomplete, n))
        grouped = [n for n in order for _ in views[n].dirty]
        assert link.uploads(run) == grouped, "checkpoints are interleaved"


@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=4),
    sizes=st.lists(st.integers(0, 8 * MIB), min_size=4, max_size=8),
    batch=st.integers(1, 16),
)
def test_runs_with_work_get_bytes_by_their_weights(
    weights: list[float], sizes: list[int], batch: int
) -> None:
    patterns = tuple((f"run-{number}", weight) for number, weight in enumerate(weights))
    link = Link({}, weights=Weights(patterns), batch=batch)
    for number in range(1, 41):
        run = f"run-{number % len(weights)}"
        link.views[number] = view_of(number, run, sizes)
    link.send(batches=40 // batch)

    shares = {
        run: sum(
            (work.size_bytes + ITEM_BYTES) / weight for work in link.sent if work.save.run == run
        )
        for run, weight in patterns
    }
    bound = (max(sizes) + ITEM_BYTES) * 2 / min(weights)
    assert max(shares.values()) - min(shares.values()) <= bound


def test_ten_runs_of_one_tenant_are_not_ten_shares() -> None:
    weights = Weights((), (Group("a", ("a-*",), 1.0), Group("b", ("b-*",), 1.0)))
    link = Link({n: view_of(n, f"a-{n % 10}", [MIB] * 10) for n in range(1, 11)}, weights=weights)
    link.views[30] = view_of(30, "b-run", [MIB] * 40)
    link.send(batches=10)

    assert len(link.uploads("b-run")) == pytest.approx(20, abs=1)


@given(
    patterns=st.lists(st.sampled_from([("a", 2.0), ("b", 0.5), ("*", 3.0)]), max_size=2),
    saves=SAVES,
    batch=st.integers(1, 8),
)
def test_tenants_who_have_no_run_here_change_nothing(
    patterns: list[tuple[str, float]], saves: list[tuple[str, list[int], bool]], batch: int
) -> None:
    def order(groups: tuple[Group, ...]) -> list[Work]:
        link = Link({}, weights=Weights(tuple(patterns), groups), batch=batch)
        for number, (run, sizes, complete) in enumerate(saves, 1):
            link.views[number] = view_of(number, run, sizes, complete=complete)
        link.send(batches=12)
        return link.sent

    named_as_a_run = Group("a", ("other-*",), 5.0)
    assert order(()) == order((named_as_a_run,))


def test_the_run_that_saves_more_does_not_hold_up_the_other() -> None:
    link = Link({n: view_of(n, "busy", [8 * MIB] * 4) for n in range(1, 50)})
    link.views[50] = view_of(50, "modest", [8 * MIB] * 4)
    link.send(batches=3)

    assert len(link.uploads("modest")) == 4
    assert link.uploads("busy")[:4] == [1, 1, 1, 1]


def test_what_is_flushed_goes_first_and_a_quarter_is_left_for_what_is_overdue() -> None:
    link = Link({1: view_of(1, "old", [MIB] * 400, age_seconds=OVERDUE_SECONDS + 1)})
    link.views[2] = view_of(2, "flushed", [MIB] * 400)
    link.hurried = "flushed"
    link.send(batches=50)

    assert len(link.uploads("flushed")) == pytest.approx(150, abs=2)
    assert len(link.uploads("old")) == pytest.approx(50, abs=2)


def test_a_flush_waits_for_no_backlog_of_its_own_run() -> None:
    overdue = view_of(1, "run", [MIB] * 100, age_seconds=OVERDUE_SECONDS + 1)
    flushed = view_of(2, "run", [MIB] * 30)
    situation = Situation(NOW, 0.0, hurried=lambda save: save.number == 2)
    work = plan([overdue, flushed], situation, 40).work

    assert sum(item.save.number == 2 for item in work) == pytest.approx(30, abs=1)


@given(seed_sizes=st.lists(st.integers(1, 4 * MIB), min_size=3, max_size=5))
def test_under_a_flush_without_end_every_other_shard_goes_within_a_bound(
    seed_sizes: list[int],
) -> None:
    """A run that is always flushed and always has more: the others are sent all the same."""
    link = Link({}, hurried="greedy", batch=4, bytes_per_second=MIB)
    others = [view_of(n, run, seed_sizes) for n, run in ((1, "a"), (2, "b"), (3, "a"))]
    link.views = {view.save.number: view for view in others}
    number = 10
    for _ in range(150):
        if not any(view.save.run == "greedy" for view in link.views.values()):
            number += 1
            link.views[number] = view_of(number, "greedy", seed_sizes, now=link.now)
        link.send(batches=1)
    versions = [shard.version for view in others for shard in view.dirty]
    volume = sum(size + ITEM_BYTES for size in seed_sizes) * len(others)
    largest = max(seed_sizes) + ITEM_BYTES
    # From the age bound on, the others have a quarter of the link, up to an item or batch each.
    bound = OVERDUE_SECONDS + (4 * volume + 16 * largest) / link.bytes_per_second

    assert all(link.sent_at[version] - NOW <= bound for version in versions)


def test_an_incomplete_save_does_not_starve_behind_complete_ones() -> None:
    stuck = view_of(1, "run", [MIB], age_seconds=OVERDUE_SECONDS + 1, complete=False)
    complete = [view_of(n, "run", [MIB] * 4, age_seconds=OVERDUE_SECONDS + 1) for n in (2, 3)]

    assert plan([*complete, stuck], Situation(NOW, 0.0), 1).work[0].save.number == 1


def test_the_documents_that_finish_a_save_go_before_the_next_save() -> None:
    finished = view_of(1, "run", [])
    following = view_of(2, "run", [MIB] * 3)
    kinds = [work.kind for work in plan([following, finished], Situation(NOW, 0.0), 2).work]

    assert kinds == [TaskKind.WRITE_PART, TaskKind.UPLOAD]


def unclaimed(number: int, run: str, shards: int) -> SaveView:
    view = view_of(number, run, [MIB] * shards)
    return replace(view, save=replace(view.save, location=None))


def test_a_save_is_claimed_when_its_turn_comes_and_not_before() -> None:
    first, second, third = (unclaimed(number, "run", 8) for number in (1, 2, 3))
    claim = Work(TaskKind.CLAIM, first.save)
    at_once = plan([first, second, third], Situation(NOW, 0.0), 8).work
    meanwhile = plan([first, second, third], Situation(NOW, 0.0, in_flight={claim.key}), 8).work
    claimed = view_of(1, "run", [MIB] * 2)
    then = plan([claimed, second, third], Situation(NOW, 0.0), 8).work

    assert (at_once, meanwhile) == ((claim,), ())
    assert [(work.kind, work.save.number) for work in then] == [
        (TaskKind.UPLOAD, 1),
        (TaskKind.UPLOAD, 1),
        (TaskKind.CLAIM, 2),
    ]


def test_so_many_small_saves_are_claimed_together_as_keep_the_drain_busy() -> None:
    saves = [unclaimed(number, "run", 2) for number in range(1, 9)]
    work = plan(saves, Situation(NOW, 0.0), 8).work

    assert [item.save.number for item in work] == [1, 2, 3, 4]


def test_what_is_flushed_is_claimed_beside_anything_else() -> None:
    first, second = unclaimed(1, "run", 2), unclaimed(2, "run", 2)
    situation = Situation(
        NOW,
        0.0,
        in_flight={Work(TaskKind.CLAIM, first.save).key},
        hurried=lambda save: save.number == 2,
    )

    assert plan([first, second], situation, 10).work == (Work(TaskKind.CLAIM, second.save),)
