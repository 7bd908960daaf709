"""Frames that a donor has are left out of what is packed, and the parts still make the object."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES, StoredFrame
from cachetier_client.bucket_format.uploads import MINIMUM_PART_BYTES, PART_BYTES
from cachetier_client.io.digests import BLOCK_BYTES, digest_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cachetier.codec.seek_table import encode_table
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.encoding import Encoding
from cachetier.drain.upload.frame_packer import Packer
from cachetier.drain.upload.part_room import PartRoom
from cachetier.drain.upload.source import ShardSource
from cachetier.model.composing import DonorFrames
from tests.fakes.bodies import noise
from tests.unit.drain.shards import Memory

NOTHING: ShardSource = Memory(b"")


class Made(Encoding):
    """Hands out frames that are there already, and remembers for which blocks it was asked."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.asked: list[int] = []

    def submit(self, source: ShardSource, size_bytes: int, block: int) -> Future[bytes]:
        self.asked.append(block)
        return self.again(source, size_bytes, block)

    def again(self, source: ShardSource, size_bytes: int, block: int) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_result(self.frames[block])
        return future


def frame_of(size_bytes: int, seed: int) -> bytes:
    return noise(FRAME_LIMIT_BYTES + 64)[seed : seed + size_bytes]


def object_of(frames: list[bytes]) -> bytes:
    table = encode_table([len(frame) for frame in frames], len(frames) * BLOCK_BYTES)
    return b"".join(frames) + table


def described_of(frames: Sequence[bytes]) -> list[StoredFrame]:
    return [StoredFrame(len(frame), digest_of(frame)) for frame in frames]


def donor_of(frames: list[bytes], unchanged: list[bool]) -> DonorFrames:
    """Return what a shard of ``unchanged`` blocks has of an object with ``frames``."""
    return DonorFrames(described_of(frames), unchanged, len(unchanged) * BLOCK_BYTES)


def composed(
    made: Made, donor: DonorFrames, there: bytes, before: Sequence[bytes] = ()
) -> list[tuple[bool, bytes]]:
    """Return the bytes of each part behind ``before``, and whether it was copied."""
    size_bytes, frames = len(made.frames) * BLOCK_BYTES, described_of(before)
    packer = Packer(made, NOTHING, size_bytes, frames, len(before), donor=donor)
    parts, reached = [], len(before) * BLOCK_BYTES
    while not packer.ended:
        copied = packer.next_copied()
        if copied is not None:
            part = copied.part
            body = there[copied.start : copied.start + part.size_bytes]
        else:
            packed = packer.next_part(PartRoom(Buffers(), PART_BYTES))
            part, body = packed.part, b"".join(packed.body)
        parts.append((copied is not None, body))
        assert (part.digest, part.size_bytes) == (digest_of(body), len(body))
        assert part.raw_start == reached
        reached += part.raw_bytes
    return parts


@given(
    st.lists(
        st.tuples(st.integers(1 << 20, FRAME_LIMIT_BYTES), st.integers(1, 6), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
@settings(max_examples=40)
def test_copied_and_packed_parts_make_the_object_within_the_limits(
    runs: list[tuple[int, int, bool]], deterministic: bool
) -> None:
    """Frames that are made anew of unchanged blocks are the donor's, or (another level) are not."""
    sizes = [(size, same) for size, length, same in runs for _ in range(length)]
    unchanged = [same for _, same in sizes]
    old = [frame_of(size, 0) for size, _ in sizes]
    new = [frame_of(size, 0 if same and deterministic else 32) for size, same in sizes]
    made, there = Made(new), object_of(old)

    parts = composed(made, donor_of(old, unchanged), there)

    body = b"".join(part for _, part in parts)
    assert len(body) == len(there)  # old and new frames are of the same sizes here
    at = 0
    for number, (before, after) in enumerate(zip(old, new, strict=True)):
        found = body[at : at + len(before)]
        assert found in ((before, after) if unchanged[number] else (after,))
        at += len(before)
    assert body[at:] == there[at:]
    assert all(len(part) >= MINIMUM_PART_BYTES for _, part in parts[:-1])


def test_a_frame_that_is_cut_is_sent_only_as_far_as_its_part_needs_it() -> None:
    three = 3 << 20
    old = [frame_of(three, 0)] * 6
    new = [*old[:2], frame_of(three, 32), *old[3:]]
    parts = composed(
        Made(new), donor_of(old, [True, True, False, True, True, True]), object_of(old)
    )

    assert [(copied, len(body)) for copied, body in parts[:3]] == [
        (True, 2 * three),
        (False, MINIMUM_PART_BYTES),
        (True, 4 * three - MINIMUM_PART_BYTES),
    ]
    assert b"".join(body for _, body in parts) == object_of(new)


def test_a_frame_that_came_out_otherwise_is_sent_whole() -> None:
    three = 3 << 20
    old = [frame_of(three, 0)] * 6
    new = [frame_of(three, 32)] * 6  # as of another level
    parts = composed(
        Made(new), donor_of(old, [True, True, False, True, True, True]), object_of(old)
    )

    assert [(copied, len(body)) for copied, body in parts[:3]] == [
        (True, 2 * three),
        (False, 2 * three),
        (True, 2 * three),
    ]


def test_of_a_twin_the_seek_table_is_copied_as_well() -> None:
    old = [frame_of(3 << 20, 0)] * 4
    made = Made(old)

    parts = composed(made, donor_of(old, [True] * 4), object_of(old))

    assert parts == [(True, object_of(old))]
    assert made.asked == []


def test_blocks_that_are_copied_are_not_compressed() -> None:
    old = [frame_of(3 << 20, 0)] * 8
    made = Made([*old[:7], frame_of(3 << 20, 32)])

    composed(made, donor_of(old, [True] * 7 + [False]), object_of(old))

    assert made.asked == [7]


def test_a_shard_that_has_grown_takes_over_what_it_has_in_common_with_the_donor() -> None:
    old = [frame_of(3 << 20, 0)] * 4
    new = [*old[:3], *[frame_of(3 << 20, 32)] * 5]

    parts = composed(Made(new), donor_of(old, [True] * 3 + [False] * 5), object_of(old))

    assert parts[0] == (True, b"".join(old[:3]))
    assert b"".join(body for _, body in parts) == object_of(new)


def test_behind_frames_of_another_level_the_seek_table_of_a_twin_is_not_copied() -> None:
    old = [frame_of(3 << 20, 0)] * 6
    before = [frame_of((3 << 20) + 9, 32)] * 2

    parts = composed(Made(old), donor_of(old, [True] * 6), object_of(old), before)

    new = [*before, *old[2:]]
    assert [copied for copied, _ in parts] == [True, False]
    assert b"".join([*before, *(body for _, body in parts)]) == object_of(new)


def test_a_frame_is_not_cut_where_too_little_would_be_left_to_copy() -> None:
    three = 3 << 20
    old = [frame_of(three, 0)] * 5
    new = [*old[:2], frame_of(three, 32), *old[3:]]
    parts = composed(Made(new), donor_of(old, [True, True, False, True, True]), object_of(old))

    assert [copied for copied, _ in parts] == [True, False]
    assert b"".join(body for _, body in parts) == object_of(new)
