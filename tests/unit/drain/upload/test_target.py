"""A compressed object that nobody recorded is taken for what its every frame decodes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    ETAG_KEY,
    SAVE_KEY,
    compressed_metadata,
    object_metadata,
)
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of, to_hex

from cachetier.codec.frames import FrameEncoder
from cachetier.codec.seek_table import encode_table
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.objects import ObjectTarget
from cachetier.drain.upload.target import (
    RANGE_BYTES,
    ConflictError,
    RefusedKeyError,
    StrayObjectError,
    UploadTarget,
    VerifiedObject,
    frames_read_back,
    is_verified,
    noticing_blocked,
)
from cachetier.errors import TransientError
from cachetier.local.catalog.rows import NOTHING_REPLACED, Replaced
from cachetier.remote.base import if_match
from tests.fakes.bodies import noise
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import content_of

SIZE = 4 * BLOCK_BYTES + 8


@dataclass(frozen=True)
class Sound:
    """An object of five frames, and what it is made of."""

    content: Content
    frames: list[bytes]

    @property
    def sizes(self) -> list[int]:
        return [len(frame) for frame in self.frames]

    @property
    def body(self) -> bytes:
        return self.of(self.frames, self.sizes)

    @staticmethod
    def of(frames: list[bytes], sizes: list[int]) -> bytes:
        return b"".join(frames) + encode_table(sizes, SIZE)


@pytest.fixture(scope="module")
def sound() -> Sound:
    blocks = [noise(BLOCK_BYTES, seed) for seed in range(4)] + [b"the rest"]
    digests = tuple(digest_of(block) for block in blocks)
    frames = [FrameEncoder(1).encode(block) for block in blocks]
    return Sound(Content(SIZE, combine(digests, SIZE), digests), frames)


def read_back(body: bytes, content: Content) -> Stored | None:
    store = MemoryObjectStore()
    metadata = compressed_metadata({}, SIZE)
    info = store.put("key", body, digest=digest_of(body), metadata=metadata)
    return frames_read_back(store, info, content, Buffers().lend)


def test_a_sound_object_is_described_by_what_it_holds(sound: Sound) -> None:
    made = tuple(StoredFrame(len(frame), digest_of(frame)) for frame in sound.frames)
    stored = Stored(Codec.ZSTD, len(sound.body), digest_of(sound.body), made)
    assert read_back(sound.body, sound.content) == stored


def changed(body: bytes, at: int) -> bytes:
    wrong = bytearray(body)
    wrong[at] ^= 1
    return bytes(wrong)


def swapped(sound: Sound) -> bytes:
    first, second, *rest = sound.frames
    frames = [second, first, *rest]
    return sound.of(frames, [len(frame) for frame in frames])


def moved(sound: Sound) -> bytes:
    first, second, *rest = sound.sizes
    return sound.of(sound.frames, [first - 1, second + 1, *rest])


LIES: dict[str, Callable[[Sound], bytes]] = {
    "nothing": lambda _sound: b"",
    "a table alone": lambda sound: sound.of([], sound.sizes),
    "no table": lambda sound: b"".join(sound.frames),
    "a truncated table": lambda sound: sound.body[:-1],
    "a byte more": lambda sound: sound.body + b"x",
    "a byte before": lambda sound: b"x" + sound.body,
    "a changed table": lambda sound: changed(sound.body, -1),
    "a changed block": lambda sound: changed(sound.body, BLOCK_BYTES // 2),
    "a changed last frame": lambda sound: changed(sound.body, sum(sound.sizes) - 6),
    "blocks in another order": swapped,
    "a table that moves bytes": moved,
}


@pytest.mark.parametrize("lie", LIES)
def test_anything_else_is_not_the_shard(sound: Sound, lie: str) -> None:
    assert read_back(LIES[lie](sound), sound.content) is None


def test_a_shard_whose_blocks_are_not_known_cannot_be_judged(sound: Sound) -> None:
    assert read_back(sound.body, replace(sound.content, block_digests=())) is None


# --- what lies there already ------------------------------------------------------------------


@pytest.mark.parametrize(("replaced_here", "fixed"), [(True, False), (True, True), (False, False)])
def test_an_older_version_is_replaced_only_where_it_was_replaced_here_and_no_document_names_it(
    replaced_here: bool, fixed: bool
) -> None:
    store, old, new = MemoryObjectStore(), content_of(b"old"), content_of(b"new")
    before = object_metadata("save", "store", 1, old)
    info = store.put("key", b"old", digest=old.digest, metadata=before)
    target = UploadTarget(
        "key",
        object_metadata("save", "store", 2, new),
        new,
        replaced=Replaced((), ((1, old.digest),)) if replaced_here else NOTHING_REPLACED,
        is_fixed=lambda: fixed,
    )

    if replaced_here and not fixed:
        assert target.look(store, Buffers().lend) == if_match(info.etag)
        return
    with pytest.raises(ConflictError) as refused:
        target.look(store, Buffers().lend)
    assert isinstance(refused.value, StrayObjectError) is not replaced_here
    assert store.get("key") == b"old"


@pytest.mark.parametrize("size", ["as the raw bytes", "another"])
def test_an_object_of_a_codec_that_nobody_knows_is_neither_taken_for_raw_nor_written_over(
    size: str,
) -> None:
    store, content = MemoryObjectStore(), content_of(b"ours")
    metadata = object_metadata("save", "store", 1, content)
    body = b"ours" if size == "as the raw bytes" else b"by another codec"
    theirs = compressed_metadata(metadata, 4) | {"cachetier-codec": "lz4"}
    store.put("key", body, digest=digest_of(body), metadata=theirs)

    with pytest.raises(ConflictError, match="lz4") as refused:
        UploadTarget("key", metadata, content).look(store, Buffers().lend)
    assert not isinstance(refused.value, StrayObjectError)
    assert store.get("key") == body


@pytest.mark.parametrize(
    ("status", "below", "there", "expected"),
    [
        (500, True, False, RefusedKeyError),
        (500, False, False, TransientError),
        (500, True, True, TransientError),  # it has something there: another reason
        (502, True, False, TransientError),
        (0, True, False, TransientError),  # no answer at all
    ],
)
def test_a_key_that_a_store_cannot_give_is_told_from_a_store_that_is_away(
    status: int, below: bool, there: bool, expected: type[Exception]
) -> None:
    store = MemoryObjectStore()
    for key in ("model/x",) * below + ("model",) * there:
        store.put(key, b"x", digest=digest_of(b"x"))
    with pytest.raises(expected), noticing_blocked(store, "model"):
        raise TransientError("it fails", remote_status=status or None)


@pytest.mark.parametrize("size_bytes", [0, 1, RANGE_BYTES, RANGE_BYTES + 5])
def test_an_object_without_a_digest_is_verified_by_reading_all_of_it(size_bytes: int) -> None:
    store, body = MemoryObjectStore(keeps_digests=False), noise(size_bytes, 1)
    lend = Buffers().lend
    info = store.put("key", body, digest=digest_of(body))
    assert is_verified(store, info, size_bytes, digest_of(body), lend)
    assert not is_verified(store, info, size_bytes + 1, digest_of(body), lend)
    for at in sorted({0, size_bytes - 1} if size_bytes else ()):
        wrong = changed(body, at)
        info = store.put("key", wrong, digest=digest_of(wrong))
        assert not is_verified(store, info, size_bytes, digest_of(body), lend), at


@pytest.mark.parametrize(("save_id", "body"), [("another", b"ours"), ("save", b"else")])
def test_without_a_digest_only_this_very_put_of_these_very_bytes_is_ours(
    save_id: str, body: bytes
) -> None:
    store, content = MemoryObjectStore(), content_of(b"ours")
    target = UploadTarget("key", object_metadata("save", "store", 1, content), content)
    metadata = dict(object_metadata(save_id, "store", 1, content))
    del metadata[DIGEST_KEY]
    store.put("key", body, digest=digest_of(body), metadata=metadata)

    with pytest.raises(ConflictError):
        target.look(store, Buffers().lend)

    ours = {**metadata, SAVE_KEY: "save"}
    info = store.put("key", b"ours", digest=content.digest, metadata=ours)
    assert target.look(store, Buffers().lend) == VerifiedObject(info.etag, Stored.raw(content))


def test_an_object_that_was_damaged_on_its_way_is_put_again_over_itself() -> None:
    store, content = MemoryObjectStore(), content_of(b"ours")
    metadata = {ETAG_KEY: "etag", DIGEST_KEY: to_hex(content.digest)}
    target = ObjectTarget("key", metadata, content)

    info = store.put("key", b"else", digest=digest_of(b"else"), metadata=metadata)
    assert target.look(store, Buffers().lend) == if_match(info.etag)

    info = store.put("key", b"ours", digest=content.digest, metadata=metadata)
    assert target.look(store, Buffers().lend) == VerifiedObject(info.etag, Stored.raw(content))
