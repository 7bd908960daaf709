"""Plans of composed objects: every byte once, within S3's limits, as few sent as these allow."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES, SHARD_LIMIT_BYTES, StoredFrame
from cachetier_client.bucket_format.uploads import (
    MINIMUM_PART_BYTES,
    PART_BYTES,
    PART_LIMIT,
    upload_part_bytes_for,
)
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cachetier.model import composing
from cachetier.model.composing import DonorFrames, SourcePiece

MIB = 1 << 20
C, S = True, False  # how ``shape`` shows a copied and a sent part


def planned(unchanged: list[bool], size_bytes: int | None = None) -> list[SourcePiece]:
    whole = len(unchanged) * BLOCK_BYTES if size_bytes is None else size_bytes
    part_bytes = composing.composed_upload_part_bytes_for(whole, PART_BYTES)
    return list(composing.pieces(whole, part_bytes, unchanged))


def rest_of(
    done: list[SourcePiece], size_bytes: int, part_bytes: int, unchanged: Sequence[bool] = ()
) -> Iterator[SourcePiece]:
    start = done[-1].end if done else 0
    number = len(done) + 1
    return composing.pieces(size_bytes, part_bytes, unchanged, number=number, start=start)


def shape(plan: list[SourcePiece]) -> list[tuple[bool, float]]:
    return [(piece.copied, piece.size_bytes / MIB) for piece in plan]


def sent_bytes(plan: list[SourcePiece]) -> int:
    return sum(piece.size_bytes for piece in plan if not piece.copied)


def test_a_changed_block_takes_along_what_its_part_lacks_of_the_next_one() -> None:
    assert shape(planned([C] * 4 + [S] + [C] * 5)) == [(C, 16), (S, 5), (C, 19)]


def test_a_changed_block_at_the_end_is_a_part_of_its_own() -> None:
    assert shape(planned([C, C, S])) == [(C, 8), (S, 4)]


def test_one_unchanged_block_is_too_small_to_be_copied() -> None:
    assert shape(planned([S, C, S, C, C, C])) == [(S, 12), (C, 12)]


def test_two_unchanged_blocks_are_copied_though_a_neighbour_takes_of_them() -> None:
    assert shape(planned([S, C, C, S])) == [(S, 5), (C, 7), (S, 4)]


def test_a_long_changed_run_is_cut_into_usual_parts() -> None:
    assert shape(planned([C, C] + [S] * 9 + [C] * 3)) == [
        *((C, 8), (S, 16), (S, 16)),
        *((S, 5), (C, 11)),
    ]


def test_a_long_unchanged_run_is_copied_in_even_parts() -> None:
    sizes = [piece.size_bytes for piece in planned([C] * 130)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) <= 2 * BLOCK_BYTES


def test_the_last_block_is_never_cut() -> None:
    size_bytes = 4 * BLOCK_BYTES + 3 * MIB
    assert shape(planned([C, C, C, S, C], size_bytes)) == [(C, 12), (S, 7)]


def test_without_a_donor_the_parts_are_the_usual_ones() -> None:
    size_bytes = 100 * MIB + 17
    plan = list(composing.pieces(size_bytes, PART_BYTES))
    assert all(piece.size_bytes == PART_BYTES for piece in plan[:-1])
    assert sum(piece.size_bytes for piece in plan) == size_bytes
    starts = range(0, size_bytes, PART_BYTES)
    assert [(piece.number, piece.start) for piece in plan] == list(enumerate(starts, start=1))


def test_parts_too_small_for_a_composed_object_are_all_sent() -> None:
    plan = composing.pieces(100 * MIB, 8 * MIB, [C] * 25)
    assert not any(piece.copied for piece in plan)


@pytest.mark.parametrize("seed", range(5))
def test_with_a_tenth_of_the_blocks_changed_at_most_15_percent_are_sent(seed: int) -> None:
    blocks = 256
    changed = set(random.Random(seed).sample(range(blocks), blocks // 10))

    plan = planned([block not in changed for block in range(blocks)])

    assert sent_bytes(plan) <= 0.15 * blocks * BLOCK_BYTES


sizes = st.integers(1, 60 * BLOCK_BYTES)


@st.composite
def shards(draw: st.DrawFn) -> tuple[int, list[bool]]:
    """A size, and which of its blocks are unchanged: mostly long runs, as it is in truth."""
    size_bytes = draw(sizes)
    runs = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=60, max_size=60))
    unchanged = [same for same, length in runs for _ in range(length)]
    return size_bytes, unchanged[: blocks_of(size_bytes)]


@given(shards(), st.sampled_from([8 * MIB, PART_BYTES, 32 * MIB]))
def test_a_plan_covers_every_byte_once_and_keeps_to_the_limits(
    shard: tuple[int, list[bool]], usual: int
) -> None:
    size_bytes, unchanged = shard
    part_bytes = composing.composed_upload_part_bytes_for(size_bytes, usual)
    plan = list(composing.pieces(size_bytes, part_bytes, unchanged))

    assert plan[0].start == 0
    assert plan[-1].end == size_bytes
    assert [piece.number for piece in plan] == list(range(1, len(plan) + 1))
    assert all(one.end == other.start for one, other in pairwise(plan))
    assert all(piece.size_bytes >= MINIMUM_PART_BYTES for piece in plan[:-1])
    for piece in plan:
        blocks = range(piece.first_block, piece.first_block + piece.blocks)
        if piece.copied:
            assert all(unchanged[block] for block in blocks)
            assert piece.size_bytes >= MINIMUM_PART_BYTES
        else:
            assert piece.size_bytes <= part_bytes


@given(shards(), st.data())
def test_going_on_behind_parts_that_are_there_comes_to_the_same_parts(
    shard: tuple[int, list[bool]], data: st.DataObject
) -> None:
    size_bytes, unchanged = shard
    part_bytes = composing.composed_upload_part_bytes_for(size_bytes, PART_BYTES)
    plan = list(composing.pieces(size_bytes, part_bytes, unchanged))
    done = data.draw(st.integers(0, len(plan)))

    assert list(rest_of(plan[:done], size_bytes, part_bytes, unchanged)) == plan[done:]


@given(shards(), st.data())
def test_without_the_donor_the_rest_is_sent_behind_what_is_there(
    shard: tuple[int, list[bool]], data: st.DataObject
) -> None:
    size_bytes, unchanged = shard
    part_bytes = composing.composed_upload_part_bytes_for(size_bytes, PART_BYTES)
    plan = list(composing.pieces(size_bytes, part_bytes, unchanged))
    done = plan[: data.draw(st.integers(0, len(plan)))]

    rest = list(rest_of(done, size_bytes, part_bytes))

    assert sum(piece.size_bytes for piece in [*done, *rest]) == size_bytes
    assert not any(piece.copied for piece in rest)
    assert all(piece.size_bytes >= MINIMUM_PART_BYTES for piece in [*done, *rest][:-1])


@given(shards(), st.binary(min_size=8, max_size=8))
@settings(max_examples=20)
def test_applying_a_plan_gives_the_bytes(shard: tuple[int, list[bool]], salt: bytes) -> None:
    """A byte stands for each KiB, as the rules know nothing of bytes but how many there are."""
    size_bytes, unchanged = shard
    donor = random.Random(salt).randbytes(size_bytes)
    body = bytearray(donor)
    for block, same in enumerate(unchanged):
        if not same:
            body[block * BLOCK_BYTES] ^= 1
    part_bytes = composing.composed_upload_part_bytes_for(size_bytes, PART_BYTES)

    composed = b"".join(
        (donor if piece.copied else body)[piece.start : piece.end]
        for piece in composing.pieces(size_bytes, part_bytes, unchanged)
    )

    assert composed == body


def test_the_largest_shard_has_no_more_parts_than_s3_takes_even_after_a_change_of_plan() -> None:
    size_bytes = SHARD_LIMIT_BYTES
    blocks = blocks_of(size_bytes)
    least = composing.least_upload_part_bytes(size_bytes)
    part_bytes = composing.composed_upload_part_bytes_for(size_bytes, PART_BYTES)
    stride = 2 * (blocks_of(least) + 1)
    unchanged = [block % stride != 0 for block in range(blocks)]

    plan = list(composing.pieces(size_bytes, part_bytes, unchanged))
    half = plan[: len(plan) // 2]
    rest = sum(1 for _ in rest_of(half, size_bytes, part_bytes))

    assert any(piece.copied for piece in plan)
    assert len(plan) <= PART_LIMIT
    assert len(half) + rest <= PART_LIMIT
    assert part_bytes <= upload_part_bytes_for(size_bytes) + 3 * BLOCK_BYTES  # memory stays bounded


# --- frames ----------------------------------------------------------------------------------


def frames_of(*sizes_mib: float) -> list[StoredFrame]:
    return [StoredFrame(int(size * MIB), number) for number, size in enumerate(sizes_mib)]


def test_a_run_of_frames_is_copied_whole() -> None:
    donor = DonorFrames(frames_of(3, 3, 3, 3), [S, C, C, S], 4 * BLOCK_BYTES)

    run = donor.run_at(1)

    assert run is not None
    assert (run.start, run.size_bytes, len(run.frames)) == (3 * MIB, 6 * MIB, 2)
    assert donor.run_at(0) is None
    assert donor.run_at(3) is None
    assert donor.run_at(4) is None
    assert not donor.has_table_of(frames_of(3, 3, 3, 3))


def test_frames_of_less_than_a_part_are_not_copied() -> None:
    donor = DonorFrames(frames_of(1, 1, 1, 1), [C] * 4, 4 * BLOCK_BYTES)
    assert list(donor.runs()) == []
    assert donor.has_table_of(frames_of(1, 1, 1, 1))
    assert not donor.has_table_of(frames_of(1, 2, 1, 1))


@given(st.lists(st.tuples(st.integers(1, FRAME_LIMIT_BYTES), st.booleans()), max_size=300))
def test_runs_of_frames_are_unchanged_and_keep_to_the_limits(
    blocks: list[tuple[int, bool]],
) -> None:
    frames = [StoredFrame(size, number) for number, (size, _) in enumerate(blocks)]
    unchanged = [same for _, same in blocks]
    donor = DonorFrames(frames, unchanged, len(blocks) * BLOCK_BYTES)

    for run in donor.runs():
        first = run.frames[0].digest
        assert run.frames == tuple(frames[first : first + len(run.frames)])
        assert all(unchanged[first : first + len(run.frames)])
        assert run.start == sum(frame.size_bytes for frame in frames[:first])
        assert run.size_bytes == sum(frame.size_bytes for frame in run.frames)
        limit = composing.COPY_PART_BYTES + FRAME_LIMIT_BYTES
        assert MINIMUM_PART_BYTES <= run.size_bytes <= limit


def test_frames_that_are_all_unchanged_are_copied_to_the_last_one() -> None:
    donor = DonorFrames(frames_of(*[4] * 66), [C] * 66, 66 * BLOCK_BYTES)  # 264 MiB

    runs = list(donor.runs())

    assert [len(run.frames) for run in runs] == [33, 33]


# --- is it worth it? -------------------------------------------------------------------------


def test_a_plan_is_worth_it_when_it_saves_more_than_its_requests_cost() -> None:
    tenth = planned([block % 10 != 3 for block in range(100)])
    little = planned([S, C, C, S, S])  # 7 MiB less to send, and two requests more

    assert composing.is_plan_worthwhile(tenth, 400 * MIB, PART_BYTES)
    assert any(piece.copied for piece in little)
    assert not composing.is_plan_worthwhile(little, 20 * MIB, PART_BYTES)


def test_a_plan_that_copies_nothing_is_not_worth_it() -> None:
    assert not composing.is_plan_worthwhile(planned([S] * 100), 400 * MIB, PART_BYTES)
