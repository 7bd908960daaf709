"""A grid of any number of shards has a bounded number of cells in each window, and none twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.console.steps import LINE_CELLS, ROWS_LIMIT, counts_of, filled, level_of, window_of
from cachetier.local.catalog.figures import RankProgress, ShardCount, ShardPlace
from cachetier.model.lifecycle import ShardState


def rank(number: int, shards: int) -> RankProgress:
    return RankProgress(number, shards, shards * 10, 0, 0, 0, 1.0, 2.0, None)


def place(version: int, **changes: Any) -> ShardPlace:
    fields = {
        "version": version,
        "rank": 0,
        "name": f"layer/{version}",
        "size_bytes": 4_200_000,
        "digest": 1,
        "state": ShardState.DIRTY,
        "committed_at": 90.0,
        "verified_at": None,
        "here": True,
        "copies": 0,
    }
    return ShardPlace(**{**fields, **changes})


@given(
    st.lists(st.integers(1, 300), max_size=12),
    st.integers(-5, 60),
    st.integers(0, 2 * ROWS_LIMIT),
)
def test_windows_hold_each_shard_once_and_no_more_than_their_rows(
    sizes: list[int], first: int, rows: int
) -> None:
    ranks = [rank(number, size) for number, size in enumerate(sizes)]
    window = window_of(ranks, first, rows)
    assert len(window.lines) <= max(1, min(rows, ROWS_LIMIT))
    assert all(0 < count <= LINE_CELLS for count in window.counts)
    whole = [
        window_of(ranks, at, 1) for at in range(window.first, window.first + len(window.lines))
    ]
    assert [each.start for each in whole] == [
        window.start + sum(window.counts[:at]) for at in range(len(whole))
    ]
    assert sum(window_of(ranks, at, 1).shards for at in range(window.total)) == sum(sizes)


def test_ten_thousand_shards_of_one_rank_are_lines_of_which_few_are_shown() -> None:
    window = window_of([rank(3, 10_000)], 100, 24)
    assert window.total == 209
    assert window.shards == 24 * LINE_CELLS
    assert [line.opens for line in window.lines] == [False] * 24


def test_past_the_end_the_last_lines_are_shown() -> None:
    window = window_of([rank(0, 480)], 9_999, 4)
    assert (window.first, window.total) == (6, 10)


@pytest.mark.parametrize(
    ("shard", "level"),
    [
        (place(1), "local"),
        (place(1, copies=1), "replicated"),
        (place(1, state=ShardState.CLEAN, verified_at=95.0), "durable"),
        (place(1, state=ShardState.EVICTED, verified_at=95.0, here=False), "remote"),
        (place(1, state=ShardState.QUARANTINED), "damaged"),
        (place(1, name="sent"), "uploading"),
    ],
)
def test_each_shard_has_one_level(shard: ShardPlace, level: str) -> None:
    assert level_of(shard, {"sent"}) == level


def test_a_cell_says_its_shard_in_a_line() -> None:
    (line,) = filled(window_of([rank(0, 1)], 0, 5), [place(7)], (), 100.0)
    (cell,) = line.cells
    assert cell.title.startswith("layer/7, 4.2 MB: on this node only, acknowledged ")
    assert line.age == "10 s"


def test_counts_are_by_level() -> None:
    counts = [
        ShardCount(ShardState.DIRTY, True, False, False, 3),
        ShardCount(ShardState.CLEAN, True, True, False, 4),
        ShardCount(ShardState.EVICTED, False, True, True, 5),
    ]
    assert counts_of(counts) == {"local": 3, "durable": 4, "remote": 5}
