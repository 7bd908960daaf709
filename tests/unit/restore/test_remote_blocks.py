"""When a shard that is read in ranges is better brought back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.bucket_format.stored import Content
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.restore.link import Link
from cachetier.restore.readahead import REMEMBERED_SHARDS, RangeReads, RemoteBlocks
from tests.stateful.node import Node

BLOCKS = 40
SHARD = Shard(
    version=1,
    save=1,
    run="r",
    step=1,
    save_id="s",
    name="x",
    rank=0,
    content=Content(BLOCKS * BLOCK_BYTES, 0, (0,) * BLOCKS),
    state=ShardState.EVICTED,
    file_id=None,
    inline=False,
    committed_at=0.0,
)


@pytest.mark.parametrize(("blocks", "stays"), [(1, 9), (3, 3), (9, 1), (10, 0), (40, 0)])
def test_less_than_a_quarter_of_it_may_be_read_in_ranges(blocks: int, stays: int) -> None:
    reads = RangeReads()

    answers = [reads.leave_remote(SHARD, blocks) for _ in range(stays + 1)]

    assert answers == [True] * stays + [False]


def test_opening_it_counts_nothing() -> None:
    reads = RangeReads()

    assert all(reads.leave_remote(SHARD, 0) for _ in range(1000))


def test_what_was_brought_back_and_evicted_again_starts_anew() -> None:
    reads = RangeReads()
    assert not reads.leave_remote(SHARD, 10)

    assert reads.leave_remote(SHARD, 9)


def test_other_shards_count_apart() -> None:
    reads = RangeReads()
    assert reads.leave_remote(SHARD, 9)

    assert reads.leave_remote(replace(SHARD, version=2), 9)
    assert not reads.leave_remote(SHARD, 1)


def test_only_so_many_shards_are_remembered() -> None:
    reads = RangeReads()
    assert reads.leave_remote(SHARD, 9)
    for version in range(2, REMEMBERED_SHARDS + 2):
        assert reads.leave_remote(replace(SHARD, version=version), 1)

    assert reads.leave_remote(SHARD, 9)


@pytest.mark.parametrize("number", [-1, BLOCKS])
def test_a_block_that_the_shard_does_not_have_is_asked_of_nobody(node: Node, number: int) -> None:
    blocks = RemoteBlocks(SHARD, node.restore.sources, Link())

    with pytest.raises(IndexError, match=f"x has no block {number}"):
        blocks.read(number)
