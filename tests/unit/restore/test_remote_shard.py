"""Ranges of a remote shard: raw or frames, every block checked, a lie is an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame, frames_bytes
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, combine, digest_of
from hypothesis import given
from hypothesis import strategies as st

from cachetier.codec.frames import FrameEncoder
from cachetier.codec.seek_table import encode_table
from cachetier.errors import IntegrityError
from cachetier.restore.remote_shard import RANGE_BLOCKS, TURN_RANGES, RemoteShard
from tests.fakes.bodies import noise
from tests.fakes.memory_store import MemoryObjectStore

SIZE_BYTES = 6 * BLOCK_BYTES + 8


def pieces(data: bytes) -> list[bytes]:
    return [
        data[number * BLOCK_BYTES : number * BLOCK_BYTES + length]
        for number, length in enumerate(block_lengths(len(data)))
    ]


def remote(data: bytes, codec: Codec) -> RemoteShard:
    digests = tuple(digest_of(block) for block in pieces(data))
    content = Content(len(data), combine(digests, len(data)), digests)
    body, made = data, tuple[StoredFrame, ...]()
    if codec is Codec.ZSTD:
        frames = [FrameEncoder(1).encode(block) for block in pieces(data)]
        made = tuple(StoredFrame(len(frame), digest_of(frame)) for frame in frames)
        body = b"".join(frames) + encode_table(list(map(len, frames)), len(data))
    store = MemoryObjectStore()
    store.put("key", body, digest=digest_of(body))
    return RemoteShard(store, "key", content, Stored(codec, len(body), digest_of(body), made))


def read(shard: RemoteShard) -> bytes:
    data = bytearray(shard.content.size_bytes)
    for wanted in shard.ranges():
        for offset, block in shard.read(wanted):
            data[offset : offset + len(block)] = block
    return bytes(data)


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES, 4 * BLOCK_BYTES + 1, SIZE_BYTES])
def test_every_range_comes_back(codec: Codec, size_bytes: int) -> None:
    data = noise(SIZE_BYTES)[:size_bytes]

    assert read(remote(data, codec)) == data


@given(st.integers(0, 100), st.integers(0, 1 << 32))
def test_a_turn_changes_where_ranges_begin_but_not_what_comes_nor_far(
    blocks: int, turn: int
) -> None:
    content = Content(blocks * BLOCK_BYTES, 0, (0,) * blocks)
    shard = RemoteShard(MemoryObjectStore(), "key", content, Stored.raw(content))
    in_order, turned = list(shard.ranges()), list(shard.ranges(turn))

    assert sorted(turned, key=lambda each: each.start) == in_order
    assert all(abs(turned.index(each) - at) < TURN_RANGES for at, each in enumerate(in_order))


def test_nodes_with_other_turns_begin_at_other_ranges() -> None:
    content = Content(100 * BLOCK_BYTES, 0, (0,) * 100)
    shard = RemoteShard(MemoryObjectStore(), "key", content, Stored.raw(content))

    firsts = {next(shard.ranges(turn)).start for turn in range(TURN_RANGES)}
    assert len(firsts) == TURN_RANGES


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
@pytest.mark.parametrize(("first", "count"), [(0, 1), (3, 1), (6, 1), (2, 5), (0, 7)])
def test_just_some_blocks_are_read(codec: Codec, first: int, count: int) -> None:
    shard = remote(noise(SIZE_BYTES), codec)
    wanted = shard.blocks(first, count)

    read_back = b"".join(bytes(block) for _offset, block in shard.read(wanted))

    assert read_back == noise(SIZE_BYTES)[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES]
    assert sum(wanted.sizes) <= count * (BLOCK_BYTES + (BLOCK_BYTES >> 8))


def test_ranges_of_frames_are_read_alone() -> None:
    shard = remote(noise(SIZE_BYTES), Codec.ZSTD)
    second = list(shard.ranges())[1]

    blocks = {at: bytes(block) for at, block in shard.read(second)}

    assert second.first_block == RANGE_BLOCKS
    assert second.start == frames_bytes(shard.stored.frames[:RANGE_BLOCKS])
    assert blocks == {number * BLOCK_BYTES: pieces(noise(SIZE_BYTES))[number] for number in (2, 3)}


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
@pytest.mark.parametrize("size_bytes", [1, BLOCK_BYTES, SIZE_BYTES])
def test_what_is_brought_is_written_where_it_belongs_and_told_of_once_it_is_sound(
    codec: Codec, size_bytes: int
) -> None:
    data = noise(SIZE_BYTES)[:size_bytes]
    shard, written, came = remote(data, codec), bytearray(size_bytes), list[int]()

    def write(piece: bytes | bytearray | memoryview, offset: int) -> None:
        written[offset : offset + len(piece)] = piece

    def note(block: int) -> None:
        start = block * BLOCK_BYTES
        assert written[start : start + BLOCK_BYTES] == data[start : start + BLOCK_BYTES]
        came.append(block)

    for wanted in shard.ranges():
        shard.bring(wanted, write, note)

    assert (bytes(written), came) == (data, list(range(len(pieces(data)))))


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
def test_a_block_that_is_damaged_is_never_told_of(codec: Codec) -> None:
    shard, came = remote(noise(SIZE_BYTES), codec), list[int]()
    body = bytearray(shard.objects.get("key", 0, shard.stored.size_bytes))
    body[BLOCK_BYTES + BLOCK_BYTES // 2] ^= 1
    shard.objects.put("key", bytes(body), digest=digest_of(body))

    with pytest.raises(IntegrityError):
        shard.bring(next(shard.ranges()), lambda _piece, _offset: None, came.append)

    assert came == [0]


@given(st.integers(0, 2**20), st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_changes_nothing(at: int, bit: int) -> None:
    data = b"words and more words " * 5000
    shard = remote(data, Codec.ZSTD)
    body = bytearray(shard.objects.get("key"))
    body[at % len(body)] ^= 1 << bit
    shard.objects.put("key", bytes(body), digest=digest_of(body))

    try:
        assert read(shard) == data
    except IntegrityError:
        pass


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
def test_a_missing_or_shorter_object_is_an_error(codec: Codec) -> None:
    shard = remote(noise(SIZE_BYTES), codec)
    shard.objects.put("key", b"short", digest=digest_of(b"short"))
    with pytest.raises(IntegrityError, match="damaged"):
        read(shard)

    shard.objects.delete("key")
    with pytest.raises(IntegrityError, match="damaged"):
        read(shard)


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
def test_other_bytes_of_the_same_size_are_an_error(codec: Codec) -> None:
    shard = remote(noise(SIZE_BYTES), codec)
    digests = list(shard.content.block_digests)
    digests[2] ^= 1
    other = replace(shard, content=replace(shard.content, block_digests=tuple(digests)))

    with pytest.raises(IntegrityError, match="block 2 differs"):
        read(other)


def test_frame_sizes_that_lie_are_an_error() -> None:
    shard = remote(noise(SIZE_BYTES), Codec.ZSTD)
    first, second, *rest = shard.stored.frames
    lies = (
        first._replace(size_bytes=first.size_bytes - 1),
        second._replace(size_bytes=second.size_bytes + 1),
    )
    stored = replace(shard.stored, frames=(*lies, *rest))

    with pytest.raises(IntegrityError, match="damaged"):
        read(replace(shard, stored=stored))
