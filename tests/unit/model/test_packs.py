"""Which shards travel together, and which are read together."""

from __future__ import annotations

from itertools import pairwise

from cachetier_client.bucket_format.layout import pack_name
from hypothesis import given
from hypothesis import strategies as st

from cachetier.model.packs import (
    GAP_BYTES,
    PACK_BYTES,
    PACK_MEMBERS,
    PACKED_UP_TO_BYTES,
    Member,
    PackedExtent,
    is_packable,
    next_pack,
    read_along,
)

SIZES = st.lists(st.integers(0, PACKED_UP_TO_BYTES), max_size=200)


def members_of(sizes: list[int]) -> list[Member]:
    return [Member(at, f"shard-{at}", size, at) for at, size in enumerate(sizes, start=1)]


def all_packs(members: list[Member]) -> list[list[Member]]:
    """Pack until nothing is left."""
    packs = []
    while members:
        packs.append(next_pack(members))
        members = members[len(packs[-1]) :]
    return packs


@given(SIZES)
def test_every_shard_is_in_one_pack_in_the_order_of_commits(sizes: list[int]) -> None:
    members = members_of(sizes)
    packs = all_packs(members)

    assert [member for pack in packs for member in pack] == members


@given(SIZES)
def test_a_pack_is_as_full_as_it_may_be_and_no_fuller(sizes: list[int]) -> None:
    packs = all_packs(members_of(sizes))

    for pack, following in pairwise(packs):
        size_bytes = sum(member.size_bytes for member in pack)
        assert size_bytes <= PACK_BYTES
        assert size_bytes + following[0].size_bytes > PACK_BYTES


def test_a_pack_has_a_bounded_number_of_members() -> None:
    packs = all_packs(members_of([0] * (PACK_MEMBERS + 3)))

    assert [len(pack) for pack in packs] == [PACK_MEMBERS, 3]


def test_what_a_pack_cannot_hold_goes_alone_rather_than_never() -> None:
    assert len(next_pack(members_of([PACK_BYTES + 1, 1]))) == 1


def test_nothing_makes_no_pack() -> None:
    assert next_pack([]) == []


def test_a_shard_is_small_up_to_a_mebibyte() -> None:
    assert is_packable(0)
    assert is_packable(1 << 20)
    assert not is_packable((1 << 20) + 1)


def test_a_pack_is_named_by_rank_and_digest() -> None:
    assert pack_name(3, 255) == "pack-3-00000000000000ff"


# --- reading along -----------------------------------------------------------------------------


def extents_of(sizes: list[int]) -> list[PackedExtent]:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    found = zip(starts, sizes, strict=True)
    return [PackedExtent(number, start, size) for number, (start, size) in enumerate(found)]


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=50),
    st.data(),
    st.integers(1000, 100_000),
    st.integers(0, 60),
)
def test_what_is_read_along_fits_window_and_limit(
    sizes: list[int], data: st.DataObject, window_bytes: int, limit: int
) -> None:
    extents = extents_of(sizes)
    asked = data.draw(st.sampled_from(extents))
    along = read_along(extents, asked, window_bytes, limit)

    read = [asked, *along]
    assert max(each.end for each in read) - min(each.start for each in read) <= window_bytes
    assert len(along) <= limit
    assert asked not in along
    assert len(set(along)) == len(along)


def test_those_behind_are_read_first_then_those_before() -> None:
    extents = extents_of([10] * 5)

    assert [each.version for each in read_along(extents, extents[2], 30, 9)] == [3, 4]
    assert [each.version for each in read_along(extents, extents[2], 40, 9)] == [3, 4, 1]
    assert [each.version for each in read_along(extents, extents[4], 30, 9)] == [3, 2]
    assert [each.version for each in read_along(extents, extents[2], 50, 1)] == [3]


def test_a_gap_of_shards_that_are_here_counts_towards_the_window() -> None:
    first, far = PackedExtent(1, 0, 10), PackedExtent(2, 1000, 10)

    assert read_along([first, far], first, 1009, 9) == []
    assert read_along([first, far], first, 1010, 9) == [far]


def test_a_gap_is_read_only_where_that_costs_less_than_another_request() -> None:
    at = GAP_BYTES + 10
    near, far = PackedExtent(2, at, 10), PackedExtent(2, at + 1, 10)
    for other, along in ((near, [near]), (far, [])):
        first = PackedExtent(1, 0, 10)
        assert read_along([first, other], first, 4 * GAP_BYTES, 9) == along
        before = [first] if along else []
        assert read_along([first, other], other, 4 * GAP_BYTES, 9) == before
