"""The seek table is the one of zstd's seekable format, and nobody else's."""

from __future__ import annotations

import io
import struct

import pytest
import zstandard
from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES, table_bytes
from cachetier_client.io.digests import BLOCK_BYTES
from hypothesis import given
from hypothesis import strategies as st

from cachetier.codec.frames import FrameEncoder
from cachetier.codec.seek_table import decode_table, encode_table
from cachetier.errors import IntegrityError

SIZES = st.lists(st.integers(1, FRAME_LIMIT_BYTES), min_size=1, max_size=50)


def raw_bytes_of(frames: int, last: int) -> int:
    return (frames - 1) * BLOCK_BYTES + last


@given(SIZES, st.integers(1, BLOCK_BYTES))
def test_a_table_comes_back_as_it_was(sizes: list[int], last: int) -> None:
    raw_bytes = raw_bytes_of(len(sizes), last)
    table = encode_table(sizes, raw_bytes)

    assert len(table) == table_bytes(len(sizes))
    assert decode_table(table, raw_bytes) == tuple(sizes)


def test_a_table_is_laid_out_as_the_format_says() -> None:
    table = encode_table([1000, 24], BLOCK_BYTES + 7)

    assert table == struct.pack(
        "<IIIIIIIBI", 0x184D2A5E, 25, 1000, BLOCK_BYTES, 24, 7, 2, 0, 0x8F92EAB1
    )


def test_zstd_passes_over_the_table() -> None:
    encoder = FrameEncoder(3)
    blocks = [bytes(BLOCK_BYTES), b"the rest"]
    frames = [encoder.encode(block) for block in blocks]
    table = encode_table([len(frame) for frame in frames], BLOCK_BYTES + 8)
    body = io.BytesIO(b"".join(frames) + table)

    reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)

    assert reader.read() == b"".join(blocks)


@given(SIZES, st.data())
def test_a_changed_table_is_an_error_or_other_sizes(sizes: list[int], data: st.DataObject) -> None:
    raw_bytes = raw_bytes_of(len(sizes), BLOCK_BYTES)
    table = bytearray(encode_table(sizes, raw_bytes))
    table[data.draw(st.integers(0, len(table) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    try:
        assert decode_table(bytes(table), raw_bytes) != tuple(sizes)
    except IntegrityError:
        pass


@pytest.mark.parametrize("raw_bytes", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES + 1, 1 << 40])
def test_the_table_of_another_shard_is_an_error(raw_bytes: int) -> None:
    with pytest.raises(IntegrityError):
        decode_table(encode_table([5], BLOCK_BYTES), raw_bytes)
