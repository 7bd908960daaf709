"""Shards of one save with the same bytes: one is sent, the others wait for it to be copied."""

from __future__ import annotations

from dataclasses import replace

from cachetier_client.bucket_format.stored import Content

from cachetier.drain.schedule.queue_state import Situation
from cachetier.drain.schedule.scheduler import SaveView, plan
from cachetier.drain.schedule.tasks import TaskKind, Work
from cachetier.model.composing import DONOR_FROM_BYTES, contents_of_twins, twins_of
from cachetier.model.shard import Shard
from tests.unit.drain.schedule.test_scheduler import NOW, open_part, save_of, sealed, shard_of

SAVE = save_of()
SAME = Content(DONOR_FROM_BYTES, 77, (1, 2, 3, 4, 5))
OTHER = replace(SAME, digest=78)


def twin(version: int, rank: int = 0, content: Content = SAME) -> Shard:
    return replace(shard_of(version, rank), content=content)


def key_of(shard: Shard) -> tuple[int, TaskKind, str]:
    return Work(TaskKind.UPLOAD, SAVE, shard=shard).key


def uploads(
    *dirty: Shard,
    in_flight: tuple[Shard, ...] = (),
    put_off: tuple[Shard, ...] = (),
    unsealed: int | None = None,
    count: int = 10,
) -> list[int]:
    """Return the versions that may go now; all ranks are sealed but ``unsealed``."""
    ranks = sorted({shard.rank for shard in dirty})
    parts = tuple(open_part(rank) if rank == unsealed else sealed(rank) for rank in ranks)
    view = SaveView(SAVE, parts, dirty, twins=frozenset(contents_of_twins(dirty)))
    situation = Situation(
        now=NOW,
        monotonic=0.0,
        in_flight={key_of(shard) for shard in in_flight},
        not_before={key_of(shard): 30.0 for shard in put_off},
    )
    works = plan([view], situation, count).work
    return [work.shard.version for work in works if work.shard is not None]


def test_one_of_several_with_the_same_bytes_goes_first() -> None:
    assert uploads(twin(1), twin(2, rank=1), twin(3, rank=2)) == [1]


def test_the_others_wait_while_it_is_under_way() -> None:
    first = twin(1)
    assert uploads(first, twin(2), twin(3), in_flight=(first,)) == []


def test_whichever_is_under_way_is_waited_for() -> None:
    second = twin(2)
    assert uploads(twin(1), second, in_flight=(second,)) == []


def test_one_that_was_put_off_lets_the_next_go_first() -> None:
    first = twin(1)
    assert uploads(first, twin(2), twin(3), put_off=(first,)) == [2]


def test_one_that_waits_for_its_seal_keeps_nobody_waiting() -> None:
    assert uploads(twin(1, rank=0), twin(2, rank=1), unsealed=0) == [2]


def test_other_bytes_do_not_wait() -> None:
    assert uploads(twin(1), twin(2), twin(3, content=OTHER), shard_of(4)) == [1, 3, 4]


def test_once_the_remote_has_the_bytes_all_others_go_at_once() -> None:
    view = SaveView(SAVE, (sealed(),), (twin(2), twin(3)), twins=frozenset())
    works = plan([view], Situation(now=NOW, monotonic=0.0), 10).work
    assert [work.shard.version for work in works if work.shard is not None] == [2, 3]


def test_the_same_bytes_in_another_save_are_no_twins() -> None:
    other = save_of(2)
    views = [
        SaveView(
            save,
            (sealed(),),
            (twin(10 * save.number), twin(10 * save.number + 1)),
            twins=frozenset({twins_of(twin(1))}),
        )
        for save in (SAVE, other)
    ]
    works = plan(views, Situation(now=NOW, monotonic=0.0), 10).work
    assert [work.shard.version for work in works if work.shard is not None] == [10, 20]


def test_small_shards_are_not_looked_at() -> None:
    small = Content(DONOR_FROM_BYTES - 1, 77, (1, 2, 3, 4))
    assert contents_of_twins([twin(1, content=small), twin(2, content=small)]) == set()
    assert uploads(twin(1, content=small), twin(2, content=small)) == [1, 2]
