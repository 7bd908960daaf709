"""A client that saves without its service decides, names and writes as the service does."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from cachetier_client.bucket_format import documents as theirs
from cachetier_client.bucket_format import layout as their_layout
from cachetier_client.bucket_format import publication as their_rules
from cachetier_client.fallback.direct import uploads as their_uploads
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.model import publication
from cachetier.model.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    PartReference,
    PendingSeal,
    ShardEntry,
    decode,
    encode,
)
from cachetier.model.layout import Layout, own_location, plain_location, rank_of_part
from cachetier.model.shard import BLOCK_BYTES, Content
from cachetier.model.uploads import judge_existing, object_metadata, upload_part_bytes_for

MINE, OTHER = "mine", "other"


def seen(state: ManifestState, save_id: str, started_at: float, *replaces: str) -> Manifest:
    return Manifest(
        state=state,
        run="run",
        step=7,
        save_id=save_id,
        location="7" if save_id == OTHER else "7~mine",
        nonce="n",
        started_at=started_at,
        replaces=replaces,
        world_size=2,
    )


MANIFESTS: list[Manifest | None] = [None] + [
    seen(state, save_id, started_at, *replaces)
    for state, save_id, started_at, replaces in itertools.product(
        ManifestState, (MINE, OTHER), (50.0, 100.0, 150.0), ((), (MINE,), ("third",))
    )
    if save_id not in replaces
]


def as_client(manifest: Manifest | None) -> theirs.Manifest | None:
    return None if manifest is None else theirs.manifest_of(encode(manifest), "etag", "key")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("spread", [False, True])
def test_both_sides_decide_the_same_about_every_manifest(*, overwrite: bool, spread: bool) -> None:
    ours = publication.Claimant("run", 7, MINE, 2, overwrite, 100.0)
    client = their_rules.Claimant("run", 7, MINE, 2, overwrite, 100.0)
    outcomes = set()
    for manifest in MANIFESTS:
        mirrored = as_client(manifest)
        claim_state = publication.claim_state(ours, manifest)
        assert their_rules.claim_state(client, mirrored).name == claim_state.name, manifest
        assert their_rules.location_of(client, mirrored, spread=spread) == publication.location_of(
            ours, manifest, spread=spread
        )
        if claim_state is publication.ClaimState.CLAIM:
            claimed = publication.claim(ours, manifest, "nonce", spread=spread)
            copied = their_rules.claim(client, mirrored, "nonce", spread=spread)
            assert copied.encode() == encode(claimed)
        outcomes.add(claim_state)
    never = {publication.ClaimState.REPLACE_WHEN_WHOLE} if not overwrite else set()
    assert outcomes | never | {publication.ClaimState.REFUSED} == set(publication.ClaimState)


@pytest.mark.parametrize("prefix", ["", "p", "p/q"])
@pytest.mark.parametrize("spread", [False, True])
def test_both_sides_use_the_same_keys(prefix: str, *, spread: bool) -> None:
    layout = Layout(prefix, spread)
    plain = plain_location(7, spread=spread)
    assert their_layout.plain_location(7, spread=spread) == plain
    assert their_layout.own_location(7, "s", spread=spread) == own_location(7, "s", spread=spread)
    for location, name in itertools.product([plain, "7~s"], ["a", "b/c.pt", "__0_0.distcp"]):
        assert their_layout.shard_key(prefix, "r", location, name) == layout.shard_key(
            "r", location, name
        )
    assert their_layout.part_key(prefix, "r", plain, 3) == layout.part_key("r", plain, 3)
    assert their_layout.pending_key(prefix, "r", plain, 3) == layout.pending_key("r", plain, 3)
    assert their_layout.manifest_key(prefix, "r", 7) == layout.manifest_key("r", 7)
    assert their_layout.rank_of_part(layout.part_key("r", plain, 3)) == 3
    assert rank_of_part(their_layout.pending_key(prefix, "r", plain, 3)) is None


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
    claimed = publication.claim(
        publication.Claimant("run", 7, MINE, 1, False, 100.5), None, "nonce"
    )
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
