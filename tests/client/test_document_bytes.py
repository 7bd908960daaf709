"""The bytes of documents never change: parts are compared byte for byte, and pinned by digest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import (
    HeldShard,
    Manifest,
    PartDocument,
    PartReference,
    PendingSeal,
    ShardEntry,
    decode,
    encode,
)
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import (
    Codec,
    Content,
    InPack,
    Stored,
    StoredFrame,
    table_bytes,
)

PART_BYTES = (
    '{"format":1,"run":"run","step":7,"save_id":"mine","rank":1,"world_size":2,'
    '"shards":[{"name":"a/planes","rank":1,"size_bytes":5242880,"digest":"0000000000abcdef",'
    '"codec":"zstd-planes-1","stored_bytes":333,"stored_digest":"000000000000feed",'
    '"element_size":2,"block_digests":"0000000000000001ffffffffffffffff",'
    '"frame_sizes":"00000064000000c8","frame_digests":"00000000000000010000000000000002"},'
    '{"name":"a/zstd","rank":1,"size_bytes":5242880,"digest":"0000000000abcdef",'
    '"codec":"zstd","stored_bytes":333,"stored_digest":"000000000000feed",'
    '"block_digests":"0000000000000001ffffffffffffffff","frame_sizes":"00000064000000c8",'
    '"frame_digests":"00000000000000010000000000000002"},{"name":"b","rank":1,'
    '"size_bytes":5242880,"digest":"0000000000abcdef","codec":"raw","stored_bytes":5242880,'
    '"block_digests":"0000000000000001ffffffffffffffff"},{"name":"none","rank":1,'
    '"size_bytes":0,"digest":"0000000000000000","codec":"raw","stored_bytes":0,'
    '"block_digests":""},{"name":"small","rank":1,"size_bytes":10,'
    '"digest":"000000000000001f","codec":"raw","stored_bytes":10,'
    '"pack":{"name":"pack-1-00000000000000ff","start":5,"size_bytes":100,'
    '"digest":"00000000000000ff"},"block_digests":"000000000000001f"}]}'
)
CLAIMED_BYTES = (
    '{"format":1,"state":"claimed","run":"run","step":7,"save_id":"mine","location":"7",'
    '"nonce":"nonce","started_at":1732305000.125,"replaces":["older"],"world_size":2,'
    '"parts":[],"shards":[]}'
)
PUBLISHED_BYTES = (
    '{"format":1,"state":"published","run":"run","step":7,"save_id":"mine","location":"7",'
    '"nonce":"n2","started_at":1732305000.125,"replaces":["older"],"world_size":2,'
    '"published_at":1732305010.5,"parts":[{"rank":1,"digest":"00000000000000ff","shards":5,'
    '"size_bytes":15728650}],"shards":[{"name":"a/planes","rank":1,"size_bytes":5242880,'
    '"digest":"0000000000abcdef","codec":"zstd-planes-1","stored_bytes":333,'
    '"stored_digest":"000000000000feed","element_size":2},{"name":"a/zstd","rank":1,'
    '"size_bytes":5242880,"digest":"0000000000abcdef","codec":"zstd","stored_bytes":333,'
    '"stored_digest":"000000000000feed"},{"name":"b","rank":1,"size_bytes":5242880,'
    '"digest":"0000000000abcdef","codec":"raw","stored_bytes":5242880},{"name":"none",'
    '"rank":1,"size_bytes":0,"digest":"0000000000000000","codec":"raw","stored_bytes":0},'
    '{"name":"small","rank":1,"size_bytes":10,"digest":"000000000000001f","codec":"raw",'
    '"stored_bytes":10,"pack":{"name":"pack-1-00000000000000ff","start":5,"size_bytes":100,'
    '"digest":"00000000000000ff"}}]}'
)
DELETED_BYTES = (
    '{"format":1,"state":"deleted","run":"run","step":7,"save_id":"mine","location":"7",'
    '"nonce":"n3","started_at":1732305000.125,"replaces":["older"],"world_size":2,'
    '"published_at":1732305010.5,"parts":[],"shards":[]}'
)
PENDING_BYTES = (
    '{"format":1,"run":"run","step":7,"rank":1,"world_size":2,"save_id":"mine",'
    '"overwrite":true,"ranks_on_node":8,"follows":true,"shards":[{"name":"a","rank":1,'
    '"size_bytes":10,"digest":"000000000000001f","codec":"raw","stored_bytes":10,'
    '"block_digests":"000000000000001f"},{"name":"b","rank":1,"size_bytes":5242880,'
    '"digest":"0000000000abcdef","codec":"raw","stored_bytes":5242880,'
    '"block_digests":"0000000000000001ffffffffffffffff"}],"held":[{"name":"c","size_bytes":4,'
    '"digest":"0000000000000006"},{"name":"d","size_bytes":3,"digest":"0000000000000005"}]}'
)
LATER_PENDING_BYTES = (
    '{"format":1,"run":"run","step":7,"rank":1,"world_size":2,"save_id":"mine",'
    '"overwrite":true,"ranks_on_node":null,"follows":false,"shards":[{"name":"a","rank":1,'
    '"size_bytes":10,"digest":"000000000000001f","codec":"raw","stored_bytes":10,'
    '"block_digests":"000000000000001f"},{"name":"b","rank":1,"size_bytes":5242880,'
    '"digest":"0000000000abcdef","codec":"raw","stored_bytes":5242880,'
    '"block_digests":"0000000000000001ffffffffffffffff"}],"held":[{"name":"c","size_bytes":4,'
    '"digest":"0000000000000006"},{"name":"d","size_bytes":3,"digest":"0000000000000005"}]}'
)

CONTENT = Content(5 << 20, 0xABCDEF, (1, 2**64 - 1))
SMALL = Content(10, 0x1F, (0x1F,))
FRAMES = (StoredFrame(100, 1), StoredFrame(200, 2))
ZSTD = Stored(Codec.ZSTD, 300 + table_bytes(2), 0xFEED, FRAMES)
PLANES = Stored(Codec.PLANES, 300 + table_bytes(2), 0xFEED, FRAMES, 2)
PACKED = Stored(Codec.RAW, 10, 0x1F, pack=InPack("pack-1-00000000000000ff", 5, 100, 255))
SAVE = Claimant("run", 7, "mine", 2, False, 1732305000.125, ("older",))
PART = publication.part_of(
    SAVE,
    1,
    [
        ShardEntry.of("b", 1, CONTENT),
        ShardEntry.of("a/zstd", 1, CONTENT, ZSTD),
        ShardEntry.of("a/planes", 1, CONTENT, PLANES),
        ShardEntry.of("small", 1, SMALL, PACKED),
        ShardEntry.of("none", 1, Content(0, 0, ())),
    ],
)
CLAIMED = publication.claim(SAVE, None, "nonce")
PUBLISHED = publication.published(
    SAVE, "7", CLAIMED, [(PART, "00000000000000ff")], at=1732305010.5, nonce="n2"
)
PENDING = PendingSeal(
    run="run",
    step=7,
    rank=1,
    world_size=2,
    save_id="mine",
    overwrite=True,
    ranks_on_node=8,
    follows=True,
    shards=(ShardEntry.of("a", 1, SMALL), ShardEntry.of("b", 1, CONTENT)),
    held=(
        HeldShard(name="c", size_bytes=4, digest="0000000000000006"),
        HeldShard(name="d", size_bytes=3, digest="0000000000000005"),
    ),
)

GOLDEN = [
    (PART, PART_BYTES),
    (CLAIMED, CLAIMED_BYTES),
    (PUBLISHED, PUBLISHED_BYTES),
    (publication.deleted(PUBLISHED, "n3"), DELETED_BYTES),
    (PENDING, PENDING_BYTES),
    (replace(PENDING, ranks_on_node=None, follows=False), LATER_PENDING_BYTES),
]


@pytest.mark.parametrize(("document", "text"), GOLDEN)
def test_a_document_has_the_bytes_that_it_always_had(document: object, text: str) -> None:
    assert encode(document).decode() == text


@pytest.mark.parametrize(("document", "text"), GOLDEN)
def test_what_was_written_before_reads_as_it_was_meant(document: object, text: str) -> None:
    assert decode(type(document), text.encode(), "key") == document


def test_a_document_of_an_older_version_lacks_what_was_added_later() -> None:
    part = PART_BYTES.replace('"codec":"raw",', "")
    assert decode(PartDocument, part.encode(), "key") == PART
    claimed = CLAIMED_BYTES.replace('"format":1,', "").replace(',"replaces":["older"]', "")
    claimed = claimed.replace(',"world_size":2,"parts":[],"shards":[]', "")
    assert decode(Manifest, claimed.encode(), "key") == replace(CLAIMED, replaces=(), world_size=1)
    reference = PartReference(rank=1, digest="00000000000000ff", shards=5, size_bytes=15728650)
    assert PUBLISHED.parts == (reference,)
