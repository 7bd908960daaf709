"""What an object may be of a shard, and what the setting may say."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import (
    FRAME_LIMIT_BYTES,
    SHARD_LIMIT_BYTES,
    Codec,
    Content,
    Stored,
    StoredFrame,
    is_worthwhile,
    limit_bytes,
    pack_frames,
    table_bytes,
    unpack_frames,
)
from cachetier_client.bucket_format.uploads import (
    LARGE_PART_BYTES,
    PART_BYTES,
    PART_LIMIT,
    SMALL_PART_BYTES,
    packed_upload_part_bytes_for,
)
from cachetier_client.io.digests import BLOCK_BYTES
from hypothesis import given
from hypothesis import strategies as st

RAW = 2 * BLOCK_BYTES + 5


def frames(*sizes: int, extra_bytes: int = 0) -> Stored:
    size_bytes = sum(sizes) + table_bytes(len(sizes)) + extra_bytes
    return Stored(Codec.ZSTD, size_bytes, 1, tuple(StoredFrame(size, 1) for size in sizes))


def test_an_object_of_one_frame_for_each_block_and_a_table_is_accepted() -> None:
    frames(100, FRAME_LIMIT_BYTES, 1).check(RAW)
    Stored.raw(Content(RAW, 1, (1, 2, 3))).check(RAW)


LIES = {
    "a frame too few": frames(100, 100),
    "a frame too many": frames(1, 2, 3, 4),
    "no frame": frames(),
    "an empty frame": frames(1, 0, 1),
    "a frame beyond the bound": frames(1, FRAME_LIMIT_BYTES + 1, 1),
    "bytes that are in no frame": frames(1, 2, 3, extra_bytes=1),
    "bytes that are not there": frames(1, 2, 3, extra_bytes=-1),
    "raw, of another size": Stored(Codec.RAW, RAW - 1, 1),
    "raw, with frames": Stored(Codec.RAW, RAW, 1, (StoredFrame(RAW, 1),)),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_contradicts_the_shard_is_refused(lie: str) -> None:
    with pytest.raises(ValueError):
        LIES[lie].check(RAW)


@given(st.lists(st.builds(StoredFrame, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))))
def test_packed_frames_come_back(packed: list[StoredFrame]) -> None:
    assert unpack_frames(pack_frames(packed)) == tuple(packed)


def test_half_a_frame_is_refused() -> None:
    with pytest.raises(ValueError):
        unpack_frames(b"12345678901")


@pytest.mark.parametrize(("stored_bytes", "pays"), [(970, True), (971, False), (1001, False)])
def test_a_few_percent_do_not_pay(stored_bytes: int, pays: bool) -> None:
    assert is_worthwhile(stored_bytes, 1000) is pays


@pytest.mark.parametrize("usual_bytes", [SMALL_PART_BYTES, PART_BYTES, LARGE_PART_BYTES])
@pytest.mark.parametrize("size_bytes", [1, PART_BYTES, 117 << 30, 118 << 30, SHARD_LIMIT_BYTES])
def test_parts_of_frames_keep_to_the_limits_of_s3_however_badly_they_compress(
    size_bytes: int, usual_bytes: int
) -> None:
    room = packed_upload_part_bytes_for(size_bytes, usual_bytes)
    least = room - FRAME_LIMIT_BYTES + 1  # cut only when another frame might not fit

    assert least >= 5 << 20
    assert -(-limit_bytes(size_bytes) // least) <= PART_LIMIT
    assert room <= 96 << 20, "a part is held in memory whole"
