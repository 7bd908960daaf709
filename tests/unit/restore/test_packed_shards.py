"""A packed shard in the documents and in the bucket: found by its place, and lies are errors."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cachetier_client.bucket_format.documents import (
    PartDocument,
    ShardEntry,
    ShardSummary,
    decode,
    encode,
)
from cachetier_client.bucket_format.layout import Layout, own_location, plain_location, rank_of_part
from cachetier_client.bucket_format.stored import (
    Codec,
    Content,
    InPack,
    Stored,
    StoredFrame,
    table_bytes,
)
from cachetier_client.io.digests import digest_of

from cachetier.errors import IntegrityError
from cachetier.restore.remote_shard import RemoteShard
from tests.fakes.memory_store import MemoryObjectStore

BEFORE, BODY, AFTER = b"before", b"the shard itself", b"after"
WHOLE = BEFORE + BODY + AFTER
NAME = f"pack-1-{digest_of(WHOLE):016x}"
CONTENT = Content(len(BODY), digest_of(BODY), (digest_of(BODY),))
IN_PACK = InPack(NAME, len(BEFORE), len(WHOLE), digest_of(WHOLE))
PACKED = replace(Stored.raw(CONTENT), pack=IN_PACK)
ENTRY = ShardEntry.of("a/b", 1, CONTENT, PACKED)
PART = PartDocument(run="run", step=7, save_id="save", rank=1, world_size=2, shards=(ENTRY,))


def remote(stored: Stored = PACKED, content: Content = CONTENT) -> RemoteShard:
    objects = MemoryObjectStore()
    objects.put("key", WHOLE, digest=digest_of(WHOLE))
    return RemoteShard(objects, "key", content, stored)


def read(shard: RemoteShard) -> bytes:
    return b"".join(bytes(b) for wanted in shard.ranges() for _, b in shard.read(wanted))


# --- documents ---------------------------------------------------------------------------------


def test_part_and_manifest_say_where_in_which_pack_a_shard_lies() -> None:
    assert decode(PartDocument, encode(PART), "key") == PART
    assert ENTRY.stored() == PACKED
    shown = json.loads(encode(ENTRY.summary()))
    assert shown["pack"] == {
        "name": NAME,
        "start": len(BEFORE),
        "size_bytes": len(WHOLE),
        "digest": f"{digest_of(WHOLE):016x}",
    }
    assert decode(ShardSummary, json.dumps(shown).encode(), "key").pack == ENTRY.pack


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../../other/7/secret"),
        ("name", "pack-1-xyz"),
        ("name", "rank-0.json"),
        ("start", len(WHOLE)),
        ("start", len(WHOLE) - len(BODY) + 1),
        ("start", -1),
        ("start", 2**70),
        ("size_bytes", len(BODY)),
        ("size_bytes", -1),
        ("size_bytes", 1 << 70),
        ("digest", "1"),
    ],
)
def test_a_place_that_cannot_be_is_refused(field: str, value: object) -> None:
    document = json.loads(encode(PART))
    document["shards"][0]["pack"][field] = value

    with pytest.raises(IntegrityError):
        decode(PartDocument, json.dumps(document).encode(), "key")


def test_a_compressed_shard_in_a_pack_is_refused() -> None:
    frames = Stored(Codec.ZSTD, 100 + table_bytes(1), 7, (StoredFrame(100, 1),))
    document = json.loads(encode(ShardEntry.of("a", 1, CONTENT, frames)))
    document["pack"] = json.loads(encode(ENTRY))["pack"]

    with pytest.raises(IntegrityError):
        decode(ShardEntry, json.dumps(document).encode(), "key")


# --- the bucket --------------------------------------------------------------------------------


def test_a_shard_is_read_from_its_place() -> None:
    assert read(remote()) == BODY


def test_a_part_of_a_shard_is_read_from_its_place() -> None:
    shard = remote()

    assert [bytes(block) for _, block in shard.read(shard.blocks(0, 1))] == [BODY]


def test_an_empty_shard_needs_no_read() -> None:
    empty = Content(0, 0, ())
    shard = remote(replace(Stored.raw(empty), pack=IN_PACK), empty)
    shard.objects.delete("key")

    assert read(shard) == b""


@pytest.mark.parametrize("start", [0, len(BEFORE) - 1, len(WHOLE) - len(BODY)])
def test_another_place_is_an_error_and_never_other_bytes(start: int) -> None:
    lie = replace(PACKED, pack=replace(IN_PACK, start=start))

    with pytest.raises(IntegrityError, match="damaged"):
        read(remote(lie))


def test_a_place_beyond_the_object_is_an_error() -> None:
    lie = replace(PACKED, pack=replace(IN_PACK, start=1 << 40, size_bytes=1 << 41))

    with pytest.raises(IntegrityError, match="damaged"):
        read(remote(lie))


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("other_save", [False, True])
def test_packs_lie_beside_the_parts_of_their_save(*, spread: bool, other_save: bool) -> None:
    location = own_location(7, "b", spread=spread) if other_save else plain_location(7)
    layout = Layout("p", spread=spread)
    key = layout.object_key("run", location, "a/b", NAME)

    assert key == f"p/run/{location}/.cachetier/{NAME}"
    assert layout.object_key("run", location, "a/b", None) == layout.shard_key(
        "run", location, "a/b"
    )
    assert rank_of_part(key) is None
