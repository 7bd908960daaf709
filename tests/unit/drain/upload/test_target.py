"""A compressed object that nobody recorded is taken for what its every frame decodes to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame
from cachetier_client.bucket_format.uploads import compressed_metadata
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of

from cachetier.codec.frames import FrameEncoder
from cachetier.codec.seek_table import encode_table
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.target import frames_read_back
from tests.fakes.memory_store import MemoryObjectStore

BLOCKS = [random.Random(seed).randbytes(BLOCK_BYTES) for seed in range(4)] + [b"the rest"]
SIZE = 4 * BLOCK_BYTES + 8
DIGESTS = tuple(digest_of(block) for block in BLOCKS)
CONTENT = Content(SIZE, combine(DIGESTS, SIZE), DIGESTS)
FRAMES = [FrameEncoder(1).encode(block) for block in BLOCKS]
SIZES = tuple(len(frame) for frame in FRAMES)
MADE = tuple(StoredFrame(len(frame), digest_of(frame)) for frame in FRAMES)
BODY = b"".join(FRAMES) + encode_table(SIZES, SIZE)


def read_back(body: bytes, content: Content = CONTENT) -> Stored | None:
    store = MemoryObjectStore()
    metadata = compressed_metadata({}, SIZE)
    info = store.put("key", body, digest=digest_of(body), metadata=metadata)
    return frames_read_back(store, info, content, Buffers().lend)


def test_a_sound_object_is_described_by_what_it_holds() -> None:
    assert read_back(BODY) == Stored(Codec.ZSTD, len(BODY), digest_of(BODY), MADE)


def changed(at: int) -> bytes:
    body = bytearray(BODY)
    body[at] ^= 1
    return bytes(body)


SWAPPED = b"".join([FRAMES[1], FRAMES[0], *FRAMES[2:]])
LIES = {
    "nothing": b"",
    "a table alone": encode_table(SIZES, SIZE),
    "no table": BODY[: sum(SIZES)],
    "a truncated table": BODY[:-1],
    "a byte more": BODY + b"x",
    "a byte before": b"x" + BODY,
    "a changed table": changed(-1),
    "a changed block": changed(BLOCK_BYTES // 2),
    "a changed last frame": changed(sum(SIZES) - 6),
    "blocks in another order": SWAPPED + encode_table([SIZES[1], SIZES[0], *SIZES[2:]], SIZE),
    "a table that moves bytes": b"".join(FRAMES)
    + encode_table([SIZES[0] - 1, SIZES[1] + 1, *SIZES[2:]], SIZE),
}


@pytest.mark.parametrize("lie", LIES)
def test_anything_else_is_not_the_shard(lie: str) -> None:
    assert read_back(LIES[lie]) is None


def test_a_shard_whose_blocks_are_not_known_cannot_be_judged() -> None:
    assert read_back(BODY, replace(CONTENT, block_digests=())) is None
