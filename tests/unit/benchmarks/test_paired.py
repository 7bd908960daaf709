"""The interval of a median, against the tables of order statistics."""

from __future__ import annotations

import pytest

from benchmarks.paired import interval


@pytest.mark.parametrize(
    ("pairs", "rank"),
    [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8)],
)
def test_the_interval_runs_between_the_ranks_of_the_sign_test(pairs: int, rank: int) -> None:
    ratios = [float(value) for value in range(1, pairs + 1)]

    assert interval(list(reversed(ratios))) == (rank, pairs + 1 - rank)


def test_too_few_pairs_give_their_whole_range() -> None:
    assert interval([1.1, 0.9, 1.0]) == (0.9, 1.1)
