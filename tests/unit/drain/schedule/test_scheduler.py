"""What the drain does next, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.bucket_format.stored import Content

from cachetier.drain.schedule.queue_state import Situation
from cachetier.drain.schedule.scheduler import OVERDUE_SECONDS, UNSEALED_SECONDS, SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind, Work
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import PartState, SaveState, ShardState
from cachetier.model.shard import Shard

NOW = 10_000.0


def save_of(
    number: int = 1, *, location: str | None = "7", state: SaveState = SaveState.OPEN
) -> Save:
    return Save(
        number=number,
        run="run",
        step=number,
        save_id=f"save-{number}",
        state=state,
        world_size=2,
        overwrite=False,
        started_at=NOW - 5,
        location=location,
    )


def shard_of(version: int, rank: int = 0, age_seconds: float = 1.0, name: str = "") -> Shard:
    return Shard(
        version=version,
        save=1,
        run="run",
        step=1,
        save_id="save",
        name=name or f"shard-{version}",
        rank=rank,
        content=Content(1, 1, (1,)),
        state=ShardState.DIRTY,
        file_id=None,
        inline=True,
        committed_at=NOW - age_seconds,
    )


def sealed(rank: int = 0, *, uploaded: bool = False, age_seconds: float = 1.0) -> RankPart:
    return RankPart(rank, PartState.SEALED, 1, NOW - age_seconds, uploaded)


def open_part(rank: int = 0) -> RankPart:
    return RankPart(rank, PartState.OPEN, None, None, uploaded=False)


def planned(
    *views: SaveView, count: int = 100, situation: Situation | None = None
) -> list[tuple[TaskKind, int, int | None]]:
    """Return (kind, save, version or rank) of what is planned."""
    work = plan(views, situation or Situation(NOW, 0.0), count).work
    return [(item.kind, item.save.number, _which(item)) for item in work]


def _which(item: Work) -> int | None:
    return item.shard.version if item.shard is not None else item.rank


def test_nothing_is_planned_for_nothing() -> None:
    assert plan([], Situation(NOW, 0.0), 10).work == ()
    assert plan([], Situation(NOW, 0.0), 10).due_in_seconds is None


def test_a_save_without_a_location_is_claimed_before_anything_else() -> None:
    view = SaveView(save_of(location=None), (sealed(),), (shard_of(1),))

    assert planned(view) == [(TaskKind.CLAIM, 1, None)]


def test_a_sealed_part_without_shards_is_claimed_too() -> None:
    assert planned(SaveView(save_of(location=None), (sealed(),))) == [(TaskKind.CLAIM, 1, None)]


def test_an_empty_save_needs_nothing() -> None:
    assert planned(SaveView(save_of(location=None))) == []


def test_shards_of_sealed_ranks_go_oldest_first() -> None:
    view = SaveView(save_of(), (sealed(),), (shard_of(1), shard_of(2), shard_of(3)))

    assert planned(view, count=2) == [(TaskKind.UPLOAD, 1, 1), (TaskKind.UPLOAD, 1, 2)]


def test_older_saves_go_before_newer_ones() -> None:
    newer = SaveView(save_of(9), (sealed(),), (shard_of(1),))
    older = SaveView(save_of(3), (sealed(),), (shard_of(2),))

    assert planned(newer, older) == [(TaskKind.UPLOAD, 3, 2), (TaskKind.UPLOAD, 9, 1)]


def test_a_part_is_written_once_all_shards_of_its_rank_are_clean() -> None:
    view = SaveView(save_of(), (sealed(0), sealed(1)), (shard_of(5, rank=1),))

    assert planned(view) == [(TaskKind.WRITE_PART, 1, 0), (TaskKind.UPLOAD, 1, 5)]


def test_a_part_that_follows_waits_for_rank_0_and_is_looked_after_once_it_is_drained() -> None:
    follower = replace(sealed(1), follows=True)
    drained = SaveView(save_of(1), (follower,))
    draining = SaveView(save_of(2), (follower,), (shard_of(5, rank=1),))
    beside = SaveView(save_of(3), (sealed(0, uploaded=True), follower))

    assert planned(drained, draining, beside) == [
        (TaskKind.FOLLOW, 1, None),
        (TaskKind.UPLOAD, 2, 5),
        (TaskKind.FOLLOW, 3, None),
    ]


def test_no_part_is_written_while_shards_may_be_hidden_from_view() -> None:
    view = SaveView(save_of(), (sealed(0), sealed(1)), (shard_of(5, rank=1),), has_all=False)

    assert planned(view) == [(TaskKind.UPLOAD, 1, 5)]


def test_no_part_is_written_over_a_damaged_shard() -> None:
    assert planned(SaveView(save_of(), (sealed(),), unsound=frozenset({0}))) == []


def test_an_open_part_is_not_written() -> None:
    assert planned(SaveView(save_of(), (open_part(),))) == []


def test_publishing_begins_when_every_sealed_part_here_is_in_the_bucket() -> None:
    half = SaveView(save_of(1), (sealed(0, uploaded=True), sealed(1)))
    whole = SaveView(save_of(2), (sealed(0, uploaded=True), open_part(1)))

    assert planned(half, whole) == [(TaskKind.WRITE_PART, 1, 1), (TaskKind.PUBLISH, 2, None)]


def test_an_unsealed_shard_waits_for_its_seal_until_it_is_old_enough() -> None:
    young = SaveView(save_of(), (open_part(),), (shard_of(1, age_seconds=10),))
    found = plan([young], Situation(NOW, 0.0), 10)

    assert found.work == ()
    assert found.due_in_seconds == pytest.approx(UNSEALED_SECONDS - 10)
    old = SaveView(save_of(), (open_part(),), (shard_of(1, age_seconds=UNSEALED_SECONDS + 1),))
    assert planned(old) == [(TaskKind.UPLOAD, 1, 1)]


def test_an_unsealed_save_is_claimed_only_with_its_shards() -> None:
    young = SaveView(save_of(location=None), (open_part(),), (shard_of(1),))
    old = SaveView(save_of(location=None), (open_part(),), (shard_of(1, age_seconds=31),))

    assert planned(young) == []
    assert planned(old) == [(TaskKind.CLAIM, 1, None)]


def test_unsealed_shards_go_last_when_a_put_waits_for_room() -> None:
    unsealed = SaveView(save_of(1), (open_part(),), (shard_of(1),))
    whole = SaveView(save_of(2), (sealed(),), (shard_of(2),))
    situation = Situation(NOW, 0.0, wants_room=True)

    assert planned(unsealed, whole, situation=situation) == [
        (TaskKind.UPLOAD, 2, 2),
        (TaskKind.UPLOAD, 1, 1),
    ]


def test_unsealed_shards_of_a_run_go_when_a_put_waits_for_its_share() -> None:
    own = SaveView(save_of(1), (open_part(),), (shard_of(1),))
    situation = Situation(NOW, 0.0, starved=lambda run: run == own.save.run)

    assert planned(own, situation=situation) == [(TaskKind.UPLOAD, 1, 1)]
    assert planned(own, situation=replace(situation, starved=lambda _run: False)) == []


def test_what_somebody_waits_for_goes_first_sealed_or_not() -> None:
    older = SaveView(save_of(1), (sealed(),), (shard_of(1),))
    hurried = SaveView(save_of(2), (open_part(),), (shard_of(2),))
    situation = Situation(NOW, 0.0, hurried=lambda save: save.number == 2)

    assert planned(older, hurried, situation=situation)[0] == (TaskKind.UPLOAD, 2, 2)


def test_nothing_starves_behind_what_is_hurried() -> None:
    overdue = SaveView(save_of(1), (sealed(),), (shard_of(1, age_seconds=OVERDUE_SECONDS + 1),))
    publishing = SaveView(save_of(2), (sealed(uploaded=True, age_seconds=OVERDUE_SECONDS + 1),))
    hurried = SaveView(save_of(3), (sealed(),), (shard_of(2),))
    situation = Situation(NOW, 0.0, hurried=lambda save: save.number == 3)

    assert [item[1] for item in planned(overdue, publishing, hurried, situation=situation)] == [
        3,
        1,
        2,
    ]
    assert [item[1] for item in planned(overdue, publishing, situation=situation)] == [1, 2]


def test_work_in_flight_is_not_handed_out_twice() -> None:
    shard = shard_of(1)
    view = SaveView(save_of(), (sealed(),), (shard,))
    situation = Situation(NOW, 0.0, in_flight={Work(TaskKind.UPLOAD, view.save, shard=shard).key})

    assert planned(view, situation=situation) == []


def test_two_versions_of_a_name_are_never_in_flight_together() -> None:
    replaced, current = shard_of(1, name="model"), shard_of(2, name="model")
    view = SaveView(save_of(), (sealed(),), (current,))
    situation = Situation(
        NOW, 0.0, in_flight={Work(TaskKind.UPLOAD, view.save, shard=replaced).key}
    )

    assert planned(view, situation=situation) == []


def test_what_was_put_off_waits_and_says_how_long() -> None:
    shard, other = shard_of(1), shard_of(2)
    view = SaveView(save_of(), (sealed(),), (shard, other))
    key = Work(TaskKind.UPLOAD, view.save, shard=shard).key
    found = plan([view], Situation(NOW, 100.0, not_before={key: 107.0}), 10)

    assert [item.shard for item in found.work] == [other]
    assert found.due_in_seconds == pytest.approx(7.0)
    later = plan([view], Situation(NOW, 107.0, not_before={key: 107.0}), 10)
    assert [item.shard for item in later.work] == [shard, other]


def test_a_deleted_save_is_removed_once_nothing_of_it_is_in_flight() -> None:
    gone = SaveView(save_of(state=SaveState.DELETED))
    upload = Work(TaskKind.UPLOAD, gone.save, shard=shard_of(1))

    assert planned(gone) == [(TaskKind.DELETE, 1, None)]
    assert planned(gone, situation=Situation(NOW, 0.0, in_flight={upload.key})) == []


def test_a_deleted_save_that_never_reached_the_bucket_needs_nothing() -> None:
    assert planned(SaveView(save_of(location=None, state=SaveState.DELETED))) == []
