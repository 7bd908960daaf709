"""A timeline says who is late with what, who is missing, and what publication waits for."""

from __future__ import annotations

from cachetier.console.steps import RANKS_SHOWN, saved_here, timeline_of
from cachetier.local.catalog.figures import RankProgress
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import PartState, SaveState

BEGUN = 1_000.0


def save(world_size: int, published_at: float | None = None) -> Save:
    state = SaveState.OPEN if published_at is None else SaveState.PUBLISHED
    return Save(
        1,
        "r",
        1,
        "s",
        state,
        world_size,
        False,
        BEGUN,
        published_at=published_at and BEGUN + published_at,
    )


def part(rank: int, sealed: float | None) -> RankPart:
    at = None if sealed is None else BEGUN + sealed
    state = PartState.OPEN if sealed is None else PartState.SEALED
    return RankPart(rank, state, None, at, uploaded=False)


def progress(rank: int, last: float, uploaded: float | None, shards: int = 4) -> RankProgress:
    done = shards if uploaded is not None else 1
    at = BEGUN + (uploaded if uploaded is not None else last)
    return RankProgress(rank, shards, 400, done, 100 * done, 0, BEGUN + 1, BEGUN + last, at)


def test_a_rank_that_seals_long_after_the_others_is_late() -> None:
    parts = [part(rank, 4.0) for rank in range(3)] + [part(3, 60.0)]
    seen = [progress(rank, 3.0, 8.0) for rank in range(3)] + [progress(3, 59.0, 66.0)]
    line = timeline_of(save(4), parts, seen, BEGUN + 70)
    assert [rank.rank for rank in line.ranks] == [3, 0, 1, 2]
    assert line.ranks[0].late == "seal: 56 s behind the median"
    assert "Rank 3 is late with its seal: 56 s behind the median." in line.findings


def test_of_many_late_ranks_the_first_are_named_and_the_others_counted() -> None:
    parts = [part(rank, 4.0) for rank in range(7)] + [part(rank, 60.0) for rank in range(7, 13)]
    seen = [progress(rank, 3.0, 8.0) for rank in range(13)]
    line = timeline_of(save(13), parts, seen, BEGUN + 70)
    assert "1 more rank is late." in line.findings


def test_one_that_has_not_sealed_is_late_until_now() -> None:
    parts = [part(rank, 4.0) for rank in range(3)] + [part(3, None)]
    seen = [progress(rank, 3.0, 8.0) for rank in range(3)] + [progress(3, 2.0, None)]
    line = timeline_of(save(4), parts, seen, BEGUN + 124)
    assert line.ranks[0].late == "seal: not yet, 2.0 min behind the median"
    assert "It waits for rank 3 of this node to seal." in line.findings


def test_nobody_is_late_while_most_are_under_way() -> None:
    parts = [part(0, 4.0), part(1, None), part(2, None)]
    line = timeline_of(save(3), parts, [progress(0, 3.0, None)], BEGUN + 300)
    assert not any(rank.late for rank in line.ranks)


def test_a_slow_upload_is_late_as_well() -> None:
    parts = [part(rank, 4.0) for rank in range(3)]
    seen = [progress(0, 3.0, 10.0), progress(1, 3.0, 11.0), progress(2, 3.0, 40.0)]
    line = timeline_of(save(3, published_at=42.0), parts, seen, BEGUN + 500)
    assert line.ranks[0].late == "upload: 29 s behind the median"
    assert (line.seconds, line.published) == (42.0, 42.0)


def test_a_drain_that_goes_from_rank_to_rank_makes_none_late() -> None:
    parts = [part(rank, 4.0) for rank in range(8)]
    seen = [progress(rank, 3.0, 5.0 + 5.0 * rank) for rank in range(8)]
    line = timeline_of(save(8), parts, seen, BEGUN + 60)
    assert not any(rank.late for rank in line.ranks)


def test_other_nodes_are_named_when_publication_waits_for_them() -> None:
    parts = [part(rank, 4.0) for rank in range(2)]
    seen = [progress(rank, 3.0, 8.0) for rank in range(2)]
    line = timeline_of(save(8), parts, seen, BEGUN + 20)
    assert line.findings == (
        "Nothing of ranks 2-7 came here: they save on other nodes, or never came.",
        "Everything of this node is in S3; publication waits for them.",
    )


def test_ranks_that_never_came_are_named_beside_one_that_has_not_sealed() -> None:
    parts = [part(0, 4.0), part(1, None)]
    line = timeline_of(save(4), parts, [progress(rank, 3.0, 8.0) for rank in range(2)], BEGUN + 20)
    assert line.missing == "ranks 2-3"
    assert line.findings[-2:] == (
        "It waits for rank 1 of this node to seal.",
        "Nothing of ranks 2-3 came here: they save on other nodes, or never came.",
    )


def test_of_ranks_that_are_a_long_list_only_their_number_is_told() -> None:
    seen = [progress(rank, 3.0, 8.0) for rank in range(0, 100, 2)]
    line = timeline_of(save(100), [part(0, 4.0)], seen, BEGUN + 20)
    assert line.missing == "50 ranks"


def test_what_is_in_s3_is_drawn_as_such_also_before_its_rank_sealed() -> None:
    line = timeline_of(save(1), [part(0, None)], [progress(0, 3.0, 8.0)], BEGUN + 20)
    assert (line.ranks[0].sealed, line.ranks[0].uploaded) == (None, 8.0)


def test_a_thousand_ranks_are_cut_down_to_those_who_matter() -> None:
    parts = [part(rank, 4.0) for rank in range(999)] + [part(999, 90.0)]
    seen = [progress(rank, 3.0, 8.0) for rank in range(999)] + [progress(999, 89.0, 95.0)]
    line = timeline_of(save(1000), parts, seen, BEGUN + 100)
    assert line.ranks[0].rank == 999
    assert (len(line.ranks), line.more) == (RANKS_SHOWN, 1000 - RANKS_SHOWN)


def test_a_rank_that_put_nothing_is_whole_when_it_has_sealed() -> None:
    line = timeline_of(save(1), [part(0, 2.0)], [], BEGUN + 9)
    assert (line.ranks[0].sealed, line.ranks[0].uploaded) == (2.0, 2.0)
    assert line.x(line.seconds) == 1000.0


def test_of_a_published_save_only_the_ranks_of_this_node_have_a_history() -> None:
    seen = [progress(rank, 3.0, 8.0) for rank in range(2)]
    assert saved_here(save(2, published_at=9.0), [part(1, 4.0)], seen) == seen[1:]
    assert saved_here(save(2), [], seen) == seen
