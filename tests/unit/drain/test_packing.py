"""Frames in order into parts: every byte once, whole frames only, checked before they are sent."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zstandard
from cachetier_client.digests import block_lengths, digest_of

from cachetier.codec.frames import FrameEncoder
from cachetier.drain import packing
from cachetier.drain.packing import Compressor, Packed, Packer
from cachetier.drain.source import DamagedError
from cachetier.errors import CachetierError
from cachetier.model.shard import BLOCK_BYTES
from cachetier.model.stored import FRAME_LIMIT_BYTES, table_bytes
from cachetier.model.uploads import PART_BYTES, PartRange

NOISE = random.Random(0).randbytes(6 * BLOCK_BYTES + 11)
LEAST_ROOM = FRAME_LIMIT_BYTES


class Memory:
    """A shard in memory; ``damaged`` names a block that fails its digest."""

    def __init__(self, data: bytes, damaged: int = -1) -> None:
        self._data = data
        self._damaged = damaged

    def read(self, part: PartRange, buffer: memoryview) -> tuple[memoryview, int]:
        if part.first_block == self._damaged:
            raise DamagedError("planned")
        buffer[: part.size_bytes] = self._data[part.start : part.start + part.size_bytes]
        view = buffer[: part.size_bytes]
        return view, digest_of(view)


@pytest.fixture
def compressor() -> Iterator[Compressor]:
    compressor = Compressor(1, threads=2)
    yield compressor
    compressor.close()


def packed(packer: Packer, room: int = PART_BYTES) -> list[tuple[Packed, bytes]]:
    parts = []
    while not packer.ended:
        buffer = memoryview(bytearray(room))
        part = packer.next_part(buffer)
        parts.append((part, bytes(part.view)))
    return parts


def decoded(parts: list[tuple[Packed, bytes]]) -> bytes:
    body = io.BytesIO(b"".join(body for _, body in parts))
    return zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True).read()


SIZES = [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, len(NOISE)]


@pytest.mark.parametrize("room", [LEAST_ROOM, 2 * LEAST_ROOM, PART_BYTES])
@pytest.mark.parametrize("size_bytes", SIZES)
def test_parts_cover_a_shard_and_decode_to_it(
    compressor: Compressor, size_bytes: int, room: int
) -> None:
    data = NOISE[:size_bytes]
    parts = packed(Packer(compressor, Memory(data), size_bytes), room)

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


def test_a_part_is_full_once_another_frame_might_not_fit(compressor: Compressor) -> None:
    parts = packed(Packer(compressor, Memory(NOISE), len(NOISE)))

    assert [len(part.frames) for part, _ in parts] == [3, 3, 1]
    assert all(len(body) > PART_BYTES - FRAME_LIMIT_BYTES for _, body in parts[:-1])


def test_a_table_that_does_not_fit_is_a_part_of_its_own(
    compressor: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = NOISE[:BLOCK_BYTES]
    frame = FrameEncoder(1).encode(block)
    monkeypatch.setattr(packing, "FRAME_LIMIT_BYTES", len(frame))  # no byte to spare
    room = 2 * len(frame) + table_bytes(2) - 1
    parts = packed(Packer(compressor, Memory(block * 2), 2 * BLOCK_BYTES), room)

    assert [len(part.frames) for part, _ in parts] == [2, 0]
    assert parts[1][0].raw_bytes == 0
    assert decoded(parts) == block * 2


def test_packing_goes_on_where_the_last_part_ended(compressor: Compressor) -> None:
    source = Memory(NOISE)
    before = packed(Packer(compressor, source, len(NOISE)))
    first = before[0][0]

    after = packed(Packer(compressor, source, len(NOISE), first.frames, parts=1))

    assert [body for _, body in after] == [body for _, body in before[1:]]
    assert after[0][0].number == 2


def test_only_the_table_is_left_when_every_frame_was_sent(compressor: Compressor) -> None:
    source = Memory(NOISE)
    sizes = [
        frame for part, _ in packed(Packer(compressor, source, len(NOISE))) for frame in part.frames
    ]

    ((part, body),) = packed(Packer(compressor, source, len(NOISE), sizes, parts=2))

    assert (part.number, part.frames, len(body)) == (3, (), table_bytes(len(sizes)))


@pytest.mark.parametrize("damaged", [0, 2, 6])
def test_a_damaged_block_ends_it(compressor: Compressor, damaged: int) -> None:
    packer = Packer(compressor, Memory(NOISE, damaged), len(NOISE))

    with pytest.raises(DamagedError):
        packed(packer)

    assert packer.ended


def test_a_frame_that_does_not_decode_to_its_block_is_never_sent(
    compressor: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: FrameEncoder, block: memoryview) -> bytes:
        changed = bytearray(block)
        changed[0] ^= 1
        return genuine(self, memoryview(changed))

    genuine = FrameEncoder.encode
    monkeypatch.setattr(FrameEncoder, "encode", encode)

    with pytest.raises(CachetierError, match="does not decode to it"):
        packed(Packer(compressor, Memory(NOISE), len(NOISE)))


def test_frames_beyond_the_most_of_a_part_go_into_the_next(
    compressor: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "FRAMES_A_PART", 4)
    zeros = bytes(10 * BLOCK_BYTES)
    parts = packed(Packer(compressor, Memory(zeros), len(zeros)))

    assert [len(part.frames) for part, _ in parts] == [4, 4, 2]


def test_each_frame_is_compressed_in_a_slot() -> None:
    entered, lock = [0], threading.Lock()

    @contextmanager
    def slot() -> Iterator[None]:
        with lock:
            entered[0] += 1
            yield

    compressor = Compressor(1, threads=4, slot=slot)
    packed(Packer(compressor, Memory(NOISE), len(NOISE)))
    compressor.close()

    assert entered[0] == len(block_lengths(len(NOISE)))


def test_what_shrinks_pays_and_noise_does_not(compressor: Compressor) -> None:
    zeros = bytes(len(NOISE))

    assert compressor.pays(Memory(zeros), len(zeros))
    assert not compressor.pays(Memory(NOISE), len(NOISE))
    assert compressor.pays(Memory(NOISE[:BLOCK_BYTES] + zeros * 3), BLOCK_BYTES * 16)
