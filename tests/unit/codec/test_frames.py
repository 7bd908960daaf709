"""Frames: what was put in comes out, any zstd tool reads them, and nothing else gets through."""

from __future__ import annotations

import io
import random

import pytest
import zstandard
from cachetier_client.bucket_format.stored import FRAME_LIMIT_BYTES
from cachetier_client.io.digests import BLOCK_BYTES
from hypothesis import given
from hypothesis import strategies as st

from cachetier.codec.frames import FrameDecoder, FrameEncoder, encoder_bytes, stored_frame
from cachetier.errors import IntegrityError
from cachetier.model.compression import LEVELS

ENCODER, DECODER = FrameEncoder(1), FrameDecoder()
TEXT = b"a checkpoint, " * 1000


def unread(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True)
    return reader.read()


@given(st.binary(min_size=1, max_size=4096), st.integers(1, 64), st.sampled_from([1, 3, 9]))
def test_a_block_comes_back_as_it_was(piece: bytes, times: int, level: int) -> None:
    block = piece * times
    frame = FrameEncoder(level).encode(memoryview(block))

    assert bytes(DECODER.decode(memoryview(frame), len(block))) == block
    assert unread(frame) == block


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_makes_frames_that_we_accept(level: int) -> None:
    block = bytes(BLOCK_BYTES) if level > 9 else random.Random(level).randbytes(BLOCK_BYTES)
    frame = FrameEncoder(level).encode(block)

    assert len(frame) <= FRAME_LIMIT_BYTES
    assert bytes(DECODER.decode(frame, BLOCK_BYTES)) == block
    assert encoder_bytes(level) <= 72 << 20


@given(st.data())
def test_a_truncated_frame_is_an_error(data: st.DataObject) -> None:
    frame = ENCODER.encode(TEXT)
    length = data.draw(st.integers(0, len(frame) - 1))

    with pytest.raises(IntegrityError):
        DECODER.decode(frame[:length], len(TEXT))


@given(st.data())
def test_a_flipped_bit_gives_an_error_or_the_same_bytes(data: st.DataObject) -> None:
    frame = bytearray(ENCODER.encode(TEXT))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    try:
        assert bytes(DECODER.decode(bytes(frame), len(TEXT))) == TEXT
    except IntegrityError:
        pass


@given(st.binary(max_size=200), st.integers(0, BLOCK_BYTES))
def test_noise_is_an_error(noise: bytes, raw_bytes: int) -> None:
    with pytest.raises(IntegrityError):
        DECODER.decode(noise, raw_bytes)


def bomb(size_bytes: int, *, declared: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(size_bytes))


def long_window() -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=True)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(256 << 20))


def lying(frame: bytes, raw_bytes: int) -> bytes:
    """Return ``frame``, of a size in four bytes, declaring ``raw_bytes`` instead."""
    header = zstandard.frame_header_size(frame)
    return frame[: header - 4] + raw_bytes.to_bytes(4, "little") + frame[header:]


def with_dictionary() -> bytes:
    words: list[bytes | bytearray | memoryview] = [
        f"shard-{number} of the optimizer's state".encode() * 3 for number in range(500)
    ]
    dictionary = zstandard.train_dictionary(4096, words)
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(bytes(words[0]))


def skippable(body: bytes) -> bytes:
    return b"\x50\x2a\x4d\x18" + len(body).to_bytes(4, "little") + body


FRAME = ENCODER.encode(TEXT)
CRAFTED = {
    "a bomb that says so": (bomb(1 << 30), BLOCK_BYTES),
    "a bomb that does not say so": (bomb(64 << 20, declared=False), BLOCK_BYTES),
    "a bomb that lies": (lying(bomb(1 << 30), BLOCK_BYTES), BLOCK_BYTES),
    "a window beyond the block": (long_window(), 256 << 20),
    "two frames": (FRAME + FRAME, len(TEXT)),
    "a frame in a frame": (ENCODER.encode(FRAME), len(TEXT)),
    "a frame and some bytes": (FRAME + b"x", len(TEXT)),
    "a frame behind a skippable one": (skippable(b"x") + FRAME, len(TEXT)),
    "a skippable frame": (skippable(bytes(100)), 100),
    "a frame of fewer bytes": (FRAME, len(TEXT) + 1),
    "a frame of more bytes": (FRAME, len(TEXT) - 1),
    "a frame that needs a dictionary": (with_dictionary(), 99),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_frames_are_errors(name: str) -> None:
    frame, raw_bytes = CRAFTED[name]

    with pytest.raises(IntegrityError):
        DECODER.decode(frame, raw_bytes)

    assert bytes(DECODER.decode(FRAME, len(TEXT))) == TEXT  # and the decoder goes on


@pytest.mark.parametrize("behind", [b"\0", b"junk" * 100, FRAME])
def test_nothing_may_come_behind_a_frame(behind: bytes) -> None:
    with pytest.raises(IntegrityError):
        DECODER.decode(FRAME + behind, len(TEXT))


def test_a_block_is_decoded_into_the_memory_of_the_last() -> None:
    first = DECODER.decode(FRAME, len(TEXT))
    second = DECODER.decode(stored_frame(TEXT[::-1]), len(TEXT))

    assert bytes(second) == bytes(first) == TEXT[::-1]
