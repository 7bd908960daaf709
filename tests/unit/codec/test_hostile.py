"""Forged frames, tables and documents: a named error in little memory, and never a wrong byte."""

from __future__ import annotations

import functools
import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from cachetier_client.bucket_format.documents import PartDocument, ShardEntry, decode, encode
from cachetier_client.bucket_format.stored import (
    FRAME_LIMIT_BYTES,
    Codec,
    Content,
    Stored,
    StoredFrame,
)
from cachetier_client.bucket_format.uploads import compressed_metadata
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of
from hypothesis import given, settings
from hypothesis import strategies as st

from cachetier.codec import planes
from cachetier.codec.frames import FrameDecoder, FrameEncoder, stored_frame
from cachetier.codec.seek_table import decode_table, encode_table
from cachetier.drain.upload.target import frames_read_back
from cachetier.errors import IntegrityError
from cachetier.restore.remote_shard import RemoteShard
from tests.fakes.memory_store import MemoryObjectStore

RAW = b"".join(number.to_bytes(4, "little") for number in range(3000))
SIZES = [BLOCK_BYTES, BLOCK_BYTES, len(RAW)]
BLOCKS = [RAW * (BLOCK_BYTES // len(RAW)) + RAW[: BLOCK_BYTES % len(RAW)], bytes(BLOCK_BYTES), RAW]
DIGESTS = tuple(map(digest_of, BLOCKS))
CONTENT = Content(sum(SIZES), combine(DIGESTS, sum(SIZES)), DIGESTS)
KEY = "shard"


@functools.cache
def frames_of(codec: Codec) -> tuple[bytes, ...]:
    encoder = FrameEncoder(1)
    if codec is Codec.PLANES:
        return tuple(encoder.encode(planes.split(block, 4)) for block in BLOCKS)
    return encoder.encode(BLOCKS[0]), stored_frame(BLOCKS[1]), encoder.encode(BLOCKS[2])


def shard_of(frames: tuple[bytes, ...], codec: Codec, element_size: int) -> RemoteShard:
    """Return a shard as documents describe it that believe in ``frames``, and an object of them."""
    table = encode_table([len(frame) for frame in frames], CONTENT.size_bytes)
    body = b"".join(frames) + table
    objects = MemoryObjectStore()
    metadata = compressed_metadata({}, CONTENT.size_bytes, codec, element_size)
    objects.put(KEY, body, digest=digest_of(body), metadata=metadata)
    known = tuple(StoredFrame(len(frame), digest_of(frame)) for frame in frames)
    return RemoteShard(
        objects, KEY, CONTENT, Stored(codec, len(body), digest_of(body), known, element_size)
    )


def read(shard: RemoteShard) -> bytes:
    return b"".join(bytes(block) for each in shard.ranges() for _, block in shard.read(each))


def is_read_back(shard: RemoteShard) -> bool:
    """Return whether a node without any record takes the object for the shard."""
    info = shard.objects.head(KEY)
    assert info is not None

    class Lent:
        def __enter__(self) -> memoryview:
            return memoryview(bytearray(16 << 20))

        def __exit__(self, *_: object) -> None:
            """Nothing to do."""

    return frames_read_back(shard.objects, info, CONTENT, lambda _size: Lent()) is not None


@pytest.mark.parametrize(("codec", "element_size"), [(Codec.ZSTD, 0), (Codec.PLANES, 4)])
def test_honest_frames_are_read(codec: Codec, element_size: int) -> None:
    shard = shard_of(frames_of(codec), codec, element_size)

    assert read(shard) == b"".join(BLOCKS)
    assert is_read_back(shard)


LONE = zstandard.ZstdCompressor(level=1)


@functools.cache
def zeros(size_bytes: int, *, declared: bool = True) -> bytes:
    """Return a bomb: so many zeros in one frame, a 32,000th of their size."""
    compressor = zstandard.ZstdCompressor(level=1, write_content_size=declared)
    made = compressor.compressobj(size=size_bytes if declared else -1)
    piece = bytes(1 << 20)
    return b"".join(made.compress(piece) for _ in range(size_bytes >> 20)) + made.flush()


FORGERIES: dict[str, Callable[[tuple[bytes, ...]], tuple[bytes, ...]]] = {
    "truncated": lambda frames: (frames[0][:-20], *frames[1:]),
    "empty": lambda frames: (b"", *frames[1:]),
    "reordered": lambda frames: (frames[1], frames[0], frames[2]),
    "too long": lambda frames: (frames[0] + b"x", *frames[1:]),
    "two in one": lambda frames: (frames[0] + frames[2], *frames[1:]),
    "a skippable one": lambda frames: (b"\x50\x2a\x4d\x18" + bytes(60), *frames[1:]),
    "a bomb": lambda frames: (zeros(1 << 30), *frames[1:]),
    "a bomb that declares nothing": lambda frames: (zeros(1 << 30, declared=False), *frames[1:]),
    "a block too much": lambda frames: (zeros(8 << 20), *frames[1:]),
    "of another block": lambda frames: (*frames[:2], LONE.compress(bytes(len(RAW)))),
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize(("codec", "element_size"), [(Codec.ZSTD, 0), (Codec.PLANES, 4)])
def test_forged_frames_are_an_integrity_error_in_little_memory(
    codec: Codec, element_size: int, forgery: str
) -> None:
    shard = shard_of(FORGERIES[forgery](frames_of(codec)), codec, element_size)

    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match=f"the remote copy {KEY} is damaged"):
            read(shard)
        assert not is_read_back(shard)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 64 << 20  # the bomb makes a thousand MiB


@pytest.mark.parametrize(
    ("codec", "element_size", "claimed", "claimed_size"),
    [
        (Codec.PLANES, 4, Codec.PLANES, 2),
        (Codec.PLANES, 4, Codec.PLANES, 8),
        (Codec.PLANES, 4, Codec.ZSTD, 0),
        (Codec.ZSTD, 0, Codec.PLANES, 4),
    ],
)
def test_a_wrong_codec_or_element_size_is_an_integrity_error(
    codec: Codec, element_size: int, claimed: Codec, claimed_size: int
) -> None:
    assert read(shard_of(frames_of(codec), codec, element_size)) == b"".join(BLOCKS)
    lie = shard_of(frames_of(codec), claimed, claimed_size)

    with pytest.raises(IntegrityError, match="damaged"):
        read(lie)
    assert not is_read_back(lie)


def test_frames_larger_than_any_block_needs_are_refused_before_a_byte_is_read() -> None:
    honest = shard_of(frames_of(Codec.ZSTD), Codec.ZSTD, 0).stored
    frames = (StoredFrame(FRAME_LIMIT_BYTES + 1, 0), *honest.frames[1:])
    more = frames[0].size_bytes - honest.frames[0].size_bytes

    with pytest.raises(ValueError, match="a frame has more than"):
        Stored(Codec.ZSTD, honest.size_bytes + more, 0, frames).check(CONTENT.size_bytes)


# --- whatever somebody changes ------------------------------------------------------------------

spots = st.integers(0, 1 << 30)
changes = st.lists(st.tuples(spots, st.binary(max_size=9)), min_size=1, max_size=4)


def changed(body: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    """Return ``body`` with some of its bytes overwritten; an empty edit cuts it off there."""
    for spot, new in edits:
        at = spot % (len(body) + 1)
        body = body[:at] + new + body[at + len(new) :] if new else body[:at]
    return body


@settings(deadline=None)
@given(changes, st.sampled_from([0, 2, 4, 8]), st.booleans())
def test_a_changed_frame_decodes_to_its_size_or_not_at_all(
    edits: list[tuple[int, bytes]], element_size: int, stored: bool
) -> None:
    genuine = stored_frame(RAW) if stored else frames_of(Codec.ZSTD)[2]
    try:
        block = FrameDecoder().decode(changed(genuine, edits), len(RAW), element_size)
    except IntegrityError:
        return
    assert len(block) == len(RAW)


@settings(deadline=None, max_examples=50)
@given(changes, st.integers(0, 2), st.sampled_from([(Codec.ZSTD, 0), (Codec.PLANES, 4)]))
def test_a_shard_with_a_changed_frame_gives_its_bytes_or_an_error(
    edits: list[tuple[int, bytes]], which: int, how: tuple[Codec, int]
) -> None:
    frames = list(frames_of(how[0]))
    frames[which] = changed(frames[which], edits)
    try:
        data = read(shard_of(tuple(frames), *how))
    except IntegrityError:
        return
    assert data == b"".join(BLOCKS)


@given(changes)
def test_a_changed_seek_table_is_the_genuine_one_or_an_error(
    edits: list[tuple[int, bytes]],
) -> None:
    genuine = encode_table([7, 8, 9], CONTENT.size_bytes)
    try:
        sizes = decode_table(changed(genuine, edits), CONTENT.size_bytes)
    except IntegrityError:
        return
    assert encode_table(sizes, CONTENT.size_bytes) == changed(genuine, edits)


@settings(deadline=None)
@given(changes)
def test_a_changed_part_describes_shards_that_add_up_or_is_an_error(
    edits: list[tuple[int, bytes]],
) -> None:
    stored = shard_of(frames_of(Codec.PLANES), Codec.PLANES, 4).stored
    entry = ShardEntry.of("a", 0, CONTENT, stored)
    part = PartDocument(run="r", step=1, save_id="s", rank=0, world_size=1, shards=(entry,))
    try:
        read_part = decode(PartDocument, changed(encode(part), edits), "part")
    except IntegrityError:
        return
    for shard in read_part.shards:
        shard.stored().check(shard.size_bytes)
