"""When small shards go together: the schedule of packs, case by case."""

from __future__ import annotations

from cachetier.drain.schedule.queue_state import Situation
from cachetier.drain.schedule.scheduler import OVERDUE_SECONDS, SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind, Work
from cachetier.model.packs import Packable
from tests.unit.drain.schedule.test_scheduler import (
    NOW,
    open_part,
    planned,
    save_of,
    sealed,
    shard_of,
)


def packable(rank: int = 0, age_seconds: float = 1.0, size_bytes: int = 10) -> Packable:
    return Packable(rank, size_bytes, NOW - age_seconds)


def test_the_small_shards_of_a_sealed_rank_are_one_item() -> None:
    view = SaveView(save_of(), (sealed(),), packable=(packable(),))

    assert planned(view) == [(TaskKind.PACK, 1, 0)]


def test_large_shards_go_beside_the_pack() -> None:
    view = SaveView(save_of(), (sealed(),), (shard_of(1), shard_of(2)), packable=(packable(),))

    assert planned(view) == [
        (TaskKind.PACK, 1, 0),
        (TaskKind.UPLOAD, 1, 1),
        (TaskKind.UPLOAD, 1, 2),
    ]


def test_each_rank_has_a_pack_of_its_own() -> None:
    view = SaveView(save_of(), (sealed(0), sealed(1)), packable=(packable(0), packable(1)))

    assert planned(view) == [(TaskKind.PACK, 1, 0), (TaskKind.PACK, 1, 1)]


def test_a_rank_has_one_pack_on_its_way_at_a_time() -> None:
    view = SaveView(save_of(), (sealed(0), sealed(1)), packable=(packable(0), packable(1)))
    flying = Work(TaskKind.PACK, view.save, rank=0, packable=packable(0))

    assert planned(view, situation=Situation(NOW, 0.0, in_flight={flying.key})) == [
        (TaskKind.PACK, 1, 1)
    ]


def test_no_part_is_written_while_its_rank_has_something_to_pack() -> None:
    view = SaveView(save_of(), (sealed(0), sealed(1)), packable=(packable(1),))

    assert planned(view) == [(TaskKind.WRITE_PART, 1, 0), (TaskKind.PACK, 1, 1)]


def test_a_save_is_claimed_before_it_is_packed() -> None:
    view = SaveView(save_of(location=None), (sealed(),), packable=(packable(),))

    assert planned(view) == [(TaskKind.CLAIM, 1, None)]


def test_unsealed_small_shards_wait_and_go_alone_as_any_others() -> None:
    view = SaveView(save_of(), (open_part(),), (shard_of(1),))

    assert planned(view) == []
    assert planned(view, situation=Situation(NOW, 0.0, wants_room=True)) == [
        (TaskKind.UPLOAD, 1, 1)
    ]


def test_a_pack_counts_with_its_bytes_when_runs_share_the_link() -> None:
    view = SaveView(save_of(), (sealed(),), packable=(packable(size_bytes=1000),))
    work = plan([view], Situation(NOW, 0.0), 10).work

    assert [item.size_bytes for item in work] == [1000]
    assert all(item.uploads for item in work)


def test_an_overdue_pack_goes_before_newer_saves() -> None:
    old = SaveView(save_of(5), (sealed(),), packable=(packable(age_seconds=OVERDUE_SECONDS + 1),))
    young = SaveView(save_of(2), (sealed(),), (shard_of(1),))

    assert [item[1] for item in planned(young, old)] == [5, 2]


def test_a_pack_that_failed_waits_for_its_turn() -> None:
    view = SaveView(save_of(), (sealed(),), packable=(packable(),))
    key = Work(TaskKind.PACK, view.save, rank=0, packable=packable()).key
    found = plan([view], Situation(NOW, 0.0, not_before={key: 5.0}), 10)

    assert found.work == ()
    assert found.due_in_seconds == 5.0
