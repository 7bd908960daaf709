"""Frames in order into parts: every byte once, whole frames only, checked before they are sent."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import zstandard
from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES, table_bytes
from cachetier_client.bucket_format.uploads import PART_BYTES, UploadedPart
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, digest_of

from cachetier.carriers.checked_file import DamagedError
from cachetier.codec.frames import FrameEncoder
from cachetier.drain.upload import frame_packer
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.compressor import Compressor, Recipe
from cachetier.drain.upload.encoding import Encoding
from cachetier.drain.upload.frame_packer import Packer
from cachetier.drain.upload.part_room import PartRoom
from tests.fakes.bodies import noise
from tests.unit.drain.shards import NOISE_BYTES, Memory

LEAST_ROOM = FRAME_LIMIT_BYTES


@pytest.fixture
def zstd() -> Iterator[Encoding]:
    compressor = Compressor(threads=2)
    yield Encoding(compressor, Recipe(1))
    compressor.close()


def packed(packer: Packer, room: int = PART_BYTES) -> list[tuple[UploadedPart, bytes]]:
    parts = []
    while not packer.ended:
        made = packer.next_part(PartRoom(Buffers(), room))
        parts.append((made.part, b"".join(made.body)))
    return parts


def decoded(parts: list[tuple[UploadedPart, bytes]]) -> bytes:
    body = io.BytesIO(b"".join(body for _, body in parts))
    return zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True).read()


SIZES = [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, NOISE_BYTES]


@pytest.mark.parametrize("room", [LEAST_ROOM, 2 * LEAST_ROOM, PART_BYTES])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_parts_cover_a_shard_and_decode_to_it(zstd: Encoding, size_bytes: int, room: int) -> None:
    data = noise(NOISE_BYTES)[:size_bytes]
    parts = packed(Packer(zstd, Memory(data), size_bytes), room)

    assert decoded(parts) == data
    assert [part.number for part, _ in parts] == list(range(1, len(parts) + 1))
    reached = 0
    for part, body in parts:
        assert part.raw_start == reached
        assert part.digest == digest_of(body)
        reached += part.raw_bytes
    assert reached == size_bytes
    sizes = [frame.size_bytes for part, _ in parts for frame in part.frames]
    assert len(sizes) == len(block_lengths(size_bytes))
    assert sum(sizes) + table_bytes(len(sizes)) == sum(len(body) for _, body in parts)


def test_a_part_is_full_once_another_frame_might_not_fit(zstd: Encoding) -> None:
    parts = packed(Packer(zstd, Memory(noise(NOISE_BYTES)), NOISE_BYTES))

    assert [len(part.frames) for part, _ in parts] == [3, 3, 1]
    assert all(len(body) > PART_BYTES - FRAME_LIMIT_BYTES for _, body in parts[:-1])


def test_a_table_that_does_not_fit_is_a_part_of_its_own(
    zstd: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = noise(NOISE_BYTES)[:BLOCK_BYTES]
    frame = FrameEncoder(1).encode(block)
    monkeypatch.setattr(frame_packer, "FRAME_LIMIT_BYTES", len(frame))  # no byte to spare
    room = 2 * len(frame) + table_bytes(2) - 1
    parts = packed(Packer(zstd, Memory(block * 2), 2 * BLOCK_BYTES), room)

    assert [len(part.frames) for part, _ in parts] == [2, 0]
    assert parts[1][0].raw_bytes == 0
    assert decoded(parts) == block * 2


def test_packing_goes_on_where_the_last_part_ended(zstd: Encoding) -> None:
    source = Memory(noise(NOISE_BYTES))
    before = packed(Packer(zstd, source, NOISE_BYTES))
    first = before[0][0]

    after = packed(Packer(zstd, source, NOISE_BYTES, first.frames, parts=1))

    assert [body for _, body in after] == [body for _, body in before[1:]]
    assert after[0][0].number == 2


def test_only_the_table_is_left_when_every_frame_was_sent(zstd: Encoding) -> None:
    source = Memory(noise(NOISE_BYTES))
    sizes = [
        frame for part, _ in packed(Packer(zstd, source, NOISE_BYTES)) for frame in part.frames
    ]

    ((part, body),) = packed(Packer(zstd, source, NOISE_BYTES, sizes, parts=2))

    assert (part.number, part.frames, len(body)) == (3, (), table_bytes(len(sizes)))


@pytest.mark.parametrize("damaged", [0, 2, 6])
def test_a_damaged_block_ends_it(zstd: Encoding, damaged: int) -> None:
    packer = Packer(zstd, Memory(noise(NOISE_BYTES), damaged), NOISE_BYTES)

    with pytest.raises(DamagedError):
        packed(packer)

    assert packer.ended


def test_frames_beyond_the_most_of_a_part_go_into_the_next(
    zstd: Encoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_packer, "FRAMES_A_PART", 4)
    zeros = bytes(10 * BLOCK_BYTES)
    parts = packed(Packer(zstd, Memory(zeros), len(zeros)))

    assert [len(part.frames) for part, _ in parts] == [4, 4, 2]
