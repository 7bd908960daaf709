"""A client that saves without its service writes what the service does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.bucket_format import documents as theirs
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import (
    judge_existing,
    object_metadata,
    upload_part_bytes_for,
)
from cachetier_client.fallback.direct import uploads as their_uploads
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex

from cachetier.model import publication
from cachetier.model.documents import (
    Manifest,
    PartDocument,
    PartReference,
    PendingSeal,
    ShardEntry,
    decode,
    encode,
)

MINE = "mine"


def as_client(manifest: Manifest | None) -> theirs.Manifest | None:
    return None if manifest is None else theirs.manifest_of(encode(manifest), "etag", "key")


def an_entry(name: str, *blocks: bytes) -> tuple[theirs.Entry, Content]:
    data = b"".join(blocks)
    digests = tuple(map(digest_of, blocks))
    entry = theirs.Entry(name, len(data), digest_of(data), digests)
    return entry, Content(len(data), digest_of(data), digests)


def test_a_part_comes_out_the_same_byte_for_byte_whoever_writes_it() -> None:
    described = [an_entry("b", b"x" * BLOCK_BYTES, b"rest"), an_entry("a"), an_entry("é", b"1")]
    part = PartDocument(
        run="run",
        step=7,
        save_id=MINE,
        rank=1,
        world_size=2,
        shards=tuple(
            sorted(
                (ShardEntry.of(entry.name, 1, content) for entry, content in described),
                key=lambda shard: shard.name,
            )
        ),
    )
    client = SaveIds("run", 7, MINE, 1, 2)
    assert theirs.part_document(client, [entry for entry, _ in described]) == encode(part)


def test_a_published_manifest_comes_out_the_same_byte_for_byte() -> None:
    entry, content = an_entry("a", b"x" * BLOCK_BYTES, b"rest")
    part = PartDocument(
        run="run",
        step=7,
        save_id=MINE,
        rank=0,
        world_size=1,
        shards=(ShardEntry.of("a", 0, content),),
    )
    body = encode(part)
    claimed = publication.claim(Claimant("run", 7, MINE, 1, False, 100.5), None, "nonce")
    reference = PartReference(
        rank=0, digest=to_hex(digest_of(body)), shards=1, size_bytes=content.size_bytes
    )
    ours = publication.published(
        claimed,
        at=123.25,
        nonce="another",
        parts=(reference,),
        shards=tuple(shard.summary() for shard in part.shards),
    )
    mirrored = as_client(claimed)
    assert mirrored is not None
    copied = theirs.published(mirrored, [(theirs.decoded(body, "key"), body)], 123.25)
    assert replace(copied, nonce="another").encode() == encode(ours)
    assert entry.summary(0) == theirs.summary_of(entry.described(0))


def test_the_service_reads_the_pending_seal_that_a_client_leaves() -> None:
    entry, content = an_entry("a", b"x" * BLOCK_BYTES, b"rest")
    body = theirs.pending_document(
        SaveIds("run", 7, MINE, 1, 2, overwrite=True),
        [entry],
        {"b": theirs.Held(3, to_hex(5))},
        ranks_on_node=8,
        follows=True,
    )
    pending = decode(PendingSeal, body, "key")
    assert (pending.run, pending.step, pending.rank, pending.save_id) == ("run", 7, 1, MINE)
    assert (pending.overwrite, pending.follows, pending.ranks_on_node) == (True, True, 8)
    assert [shard.content() for shard in pending.shards] == [content]
    assert [(held.name, held.size_bytes) for held in pending.held] == [("b", 3)]


def test_objects_say_of_themselves_what_the_drains_do() -> None:
    entry, content = an_entry("a", b"bytes")
    target = their_uploads.DirectTarget.of("key", SaveIds("run", 7, MINE, 0, 2), entry)
    drains = object_metadata(MINE, "a-store", 1, content)
    assert target.metadata.keys() == drains.keys()
    verdict = judge_existing(target.metadata, entry.size_bytes, drains, content.size_bytes)
    assert verdict.name == "OURS"


@pytest.mark.parametrize("size_bytes", [0, 1, 16 << 20, 10_000 * (16 << 20) + 1, 600 << 30])
def test_both_sides_cut_a_shard_into_the_same_parts(size_bytes: int) -> None:
    assert their_uploads.upload_part_bytes_for(size_bytes) == upload_part_bytes_for(size_bytes)


def test_the_parts_of_a_stream_grow_so_that_ten_thousand_hold_any_shard() -> None:
    sizes = [their_uploads.upload_part_bytes_for(None, sent) for sent in range(10_000)]
    assert sizes[0] == sizes[999] == 16 << 20
    assert sizes == sorted(sizes)
    assert sum(sizes) > 10_000 * (64 << 20)
