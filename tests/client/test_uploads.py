"""How objects are cut into parts, and what an object that is already there is."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import SHARD_LIMIT_BYTES, Content
from cachetier_client.bucket_format.uploads import (
    PART_BYTES,
    PART_LIMIT,
    Existing,
    compressed_metadata,
    judge_existing,
    object_metadata,
    upload_part_bytes_for,
    usual_upload_part_bytes,
)
from cachetier_client.fallback.direct.sink import stream_part_bytes
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.model.composing import pieces

GIB = 1 << 30
LARGEST_PART_BYTES = 5 * GIB  # S3's
SMALLEST_PART_BYTES = 5 << 20  # S3's, for every part but the last

SIZES = [
    0,
    1,
    BLOCK_BYTES,
    PART_BYTES - 1,
    PART_BYTES,
    PART_BYTES + 1,
    5 * GIB - 1,
    5 * GIB + 1,
    PART_BYTES * PART_LIMIT - 1,
    PART_BYTES * PART_LIMIT,
    PART_BYTES * PART_LIMIT + 1,
    625 * GIB,
    SHARD_LIMIT_BYTES,
]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_parts_cover_an_object_without_gap_or_overlap(size_bytes: int) -> None:
    part_bytes = upload_part_bytes_for(size_bytes)
    parts = list(pieces(size_bytes, part_bytes))

    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert [part.start for part in parts] == [part_bytes * n for n in range(len(parts))]
    assert sum(part.size_bytes for part in parts) == size_bytes
    assert all(part.size_bytes == part_bytes for part in parts[:-1])


@pytest.mark.parametrize("size_bytes", SIZES)
def test_parts_keep_to_the_limits_of_s3_and_end_at_whole_blocks(size_bytes: int) -> None:
    part_bytes = upload_part_bytes_for(size_bytes)
    parts = list(pieces(size_bytes, part_bytes))

    assert len(parts) <= PART_LIMIT
    assert SMALLEST_PART_BYTES <= part_bytes <= LARGEST_PART_BYTES
    assert part_bytes % BLOCK_BYTES == 0
    assert part_bytes <= 64 << 20, "a part is held in memory whole"
    assert sum(part.blocks for part in parts) == -(-size_bytes // BLOCK_BYTES)
    assert all(part.first_block * BLOCK_BYTES == part.start for part in parts)


@pytest.mark.parametrize(
    ("bytes_per_second", "scarce", "mebibytes"),
    [
        (None, False, 16),
        (9e6, False, 16),
        (20e6, False, 32),
        (40e6, False, 64),
        (0.5e6, False, 8),
        (0.5e6, True, 32),
        (None, True, 32),
    ],
)
def test_parts_are_small_on_a_slow_link_and_large_where_requests_are_scarce(
    bytes_per_second: float | None, scarce: bool, mebibytes: int
) -> None:
    usual = usual_upload_part_bytes(bytes_per_second, requests_are_scarce=scarce)
    assert usual == mebibytes << 20
    assert upload_part_bytes_for(1, usual) == usual
    assert upload_part_bytes_for(usual * PART_LIMIT + 1, usual) == usual + BLOCK_BYTES


def test_objects_up_to_ten_thousand_usual_parts_use_usual_parts() -> None:
    assert upload_part_bytes_for(PART_BYTES * PART_LIMIT) == PART_BYTES
    assert upload_part_bytes_for(PART_BYTES * PART_LIMIT + 1) == PART_BYTES + BLOCK_BYTES


OURS = object_metadata("save", "store", 7, Content(10, 0xAB, (0xAB,)))


def other(**changed: str) -> dict[str, str]:
    names = {"save": "cachetier-save", "store": "cachetier-store"}
    names |= {"version": "cachetier-version", "digest": "cachetier-digest"}
    return {**OURS, **{names[name]: value for name, value in changed.items()}}


FRAMES = compressed_metadata(OURS, 10)


@pytest.mark.parametrize(
    ("found", "size_bytes", "verdict"),
    [
        (FRAMES, 7, Existing.OURS),
        (FRAMES, 70, Existing.OURS),
        (compressed_metadata(OURS, 11), 10, Existing.STRAY),
        (compressed_metadata(other(digest="cd", version="6"), 10), 10, Existing.OLDER),
        ({**OURS, "cachetier-raw-bytes": "10"}, 7, Existing.STRAY),
        ({**FRAMES, "cachetier-codec": "rot13"}, 7, Existing.UNKNOWN_CODEC),
        ({**OURS, "cachetier-codec": "rot13"}, 10, Existing.UNKNOWN_CODEC),
        ({**FRAMES, "cachetier-codec": "zstd-planes-1"}, 7, Existing.UNKNOWN_CODEC),
        ({**FRAMES, "cachetier-save": "another"}, 7, Existing.FOREIGN),
    ],
    ids=[
        "the same bytes, compressed",
        "the same bytes, compressed otherwise",
        "compressed, but of another size",
        "our older put, compressed",
        "raw, of another size",
        "a codec that nobody knows",
        "a codec that nobody knows, of the size of the raw bytes",
        "planes of elements of no size",
        "another save's",
    ],
)
def test_a_compressed_object_is_judged_by_the_bytes_it_was_made_of(
    found: dict[str, str], size_bytes: int, verdict: Existing
) -> None:
    assert judge_existing(found, size_bytes, OURS, 10) is verdict


@pytest.mark.parametrize(
    ("found", "size_bytes", "verdict"),
    [
        (OURS, 10, Existing.OURS),
        (other(store="another", version="3"), 10, Existing.OURS),
        (OURS, 11, Existing.STRAY),
        (other(digest="00000000000000cd", version="6"), 10, Existing.OLDER),
        (other(digest="00000000000000cd", version="8"), 10, Existing.STRAY),
        (other(digest="00000000000000cd", store="another"), 10, Existing.FOREIGN),
        (other(save="another"), 10, Existing.FOREIGN),
        (other(digest="cd", version="x"), 10, Existing.FOREIGN),
        (other(digest="cd", version="-1"), 10, Existing.FOREIGN),
        (other(digest="cd", version="\u0663"), 10, Existing.FOREIGN),
        (other(digest="cd", version=""), 10, Existing.FOREIGN),
        ({}, 10, Existing.FOREIGN),
        ({"cachetier-save": "save"}, 10, Existing.FOREIGN),
    ],
    ids=[
        "our own write, its reply lost",
        "the same bytes by another node",
        "our version, but another size",
        "our older put",
        "our newer put",
        "another node's other bytes",
        "another save's",
        "a version that is no number",
        "a negative version",
        "a version in other digits",
        "no version",
        "somebody else's object",
        "half of our metadata",
    ],
)
def test_an_object_under_our_key_is_ours_older_newer_or_foreign(
    found: dict[str, str], size_bytes: int, verdict: Existing
) -> None:
    assert judge_existing(found, size_bytes, OURS, 10) is verdict


def test_the_parts_of_a_stream_grow_so_that_ten_thousand_hold_any_shard() -> None:
    sizes = [stream_part_bytes(sent) for sent in range(10_000)]
    assert sizes[0] == sizes[999] == 16 << 20
    assert sizes == sorted(sizes)
    assert sum(sizes) > 10_000 * (64 << 20)
