"""Documents are read from a place that others can write: a lie is an error, never data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cachetier_client.bucket_format import documents, strict_json
from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    ShardEntry,
    decode,
    encode,
)
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame, table_bytes

from cachetier.errors import IntegrityError

CONTENT = Content(5 << 20, 0xABCDEF, (1, 2**64 - 1))
PART = PartDocument(
    run="run",
    step=7,
    save_id="save",
    rank=1,
    world_size=2,
    shards=(ShardEntry.of("a/b", 1, CONTENT),),
)
MANIFEST = Manifest(
    state=ManifestState.PUBLISHED,
    run="run",
    step=7,
    save_id="save",
    location="7",
    nonce="n",
    started_at=1.5,
    shards=(ShardEntry.of("a/b", 1, CONTENT).summary(),),
)


def test_a_part_reads_back_as_it_was_written() -> None:
    assert decode(PartDocument, encode(PART), "key") == PART
    assert PART.shards[0].content() == CONTENT


FRAMES = Stored(
    Codec.ZSTD, 300 + table_bytes(2), 0xFEED, (StoredFrame(100, 1), StoredFrame(200, 2))
)
COMPRESSED = replace(PART, shards=(ShardEntry.of("a/b", 1, CONTENT, FRAMES),))


def test_a_part_says_how_a_shard_is_stored() -> None:
    assert decode(PartDocument, encode(COMPRESSED), "key") == COMPRESSED
    assert COMPRESSED.shards[0].stored() == FRAMES
    assert COMPRESSED.shards[0].content() == CONTENT
    assert PART.shards[0].stored() == Stored.raw(CONTENT)
    assert "frame_sizes" not in json.loads(encode(PART))["shards"][0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("codec", "raw"),
        ("stored_bytes", 300),
        ("stored_bytes", -1),
        ("stored_digest", None),
        ("stored_digest", "feed"),
        ("frame_sizes", None),
        ("frame_digests", None),
        ("frame_digests", "0000000000000001"),
        ("element_size", 2),
        ("frame_sizes", "00000064"),
        ("frame_sizes", "0000006400000000"),
        ("frame_sizes", "ffffffff000000c8"),
        ("frame_sizes", "0000006"),
        ("size_bytes", 4 << 20),
    ],
)
def test_a_compressed_shard_that_does_not_add_up_is_refused(field: str, value: object) -> None:
    document = json.loads(encode(COMPRESSED))
    document["shards"][0][field] = value

    with pytest.raises(IntegrityError):
        decode(PartDocument, json.dumps(document).encode(), "key")


def test_a_manifest_reads_back_as_it_was_written() -> None:
    assert decode(Manifest, encode(MANIFEST), "key") == MANIFEST


def test_a_manifest_lists_shards_without_their_blocks() -> None:
    assert "block_digests" not in json.loads(encode(MANIFEST))["shards"][0]


def test_fields_of_a_later_cachetier_are_passed_over() -> None:
    body = json.dumps({**json.loads(encode(PART)), "colour": "blue"}).encode()

    assert decode(PartDocument, body, "key") == PART


LIES: dict[str, object] = {
    "format": 2,
    "rank": -1,
    "world_size": 0,
    "step": "seven",
    "shards": [{"name": "x"}],
    "save_id": None,
}


@pytest.mark.parametrize("field", LIES)
def test_a_part_with_a_wrong_field_is_refused_by_its_key(field: str) -> None:
    body = json.dumps({**json.loads(encode(PART)), field: LIES[field]}).encode()

    with pytest.raises(IntegrityError, match="the/key is not a part"):
        decode(PartDocument, body, "the/key")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "xyz"),
        ("digest", "ABCDEF0123456789"),
        ("size_bytes", -1),
        ("size_bytes", 2**63),
        ("rank", 2**63),
        ("block_digests", "00"),
        ("codec", "rot13"),
    ],
)
def test_a_shard_with_a_wrong_field_is_refused(field: str, value: object) -> None:
    document = json.loads(encode(PART))
    document["shards"][0][field] = value

    with pytest.raises(IntegrityError):
        decode(PartDocument, json.dumps(document).encode(), "key")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run", "../run"),
        ("run", "a/run"),
        ("run", "r" * 129),
        ("step", 2**53),
        ("save_id", "-save"),
        ("save_id", "s" * 65),
        ("location", "../7"),
        ("location", "7/../8"),
        ("location", "7~" + "s" * 80),
        ("nonce", "n" * 65),
        ("nonce", "two lines"),
        ("started_at", float("nan")),
        ("started_at", float("inf")),
        ("started_at", 10**400),
        ("published_at", float("nan")),
        ("replaces", ["a b"]),
        ("world_size", 1_000_001),
    ],
)
def test_a_manifest_passes_the_grammar_of_ranks_or_is_refused(field: str, value: object) -> None:
    body = json.dumps({**json.loads(encode(MANIFEST)), field: value}).encode()

    with pytest.raises(IntegrityError, match=f"the/key is not a manifest.*({field}|not a number)"):
        decode(Manifest, body, "the/key")


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", ".cachetier/a", "a b", "n" * 256])
def test_the_name_of_a_shard_passes_the_grammar_or_its_document_is_refused(name: str) -> None:
    for document in (PART, MANIFEST):
        lie = json.loads(encode(document))
        lie["shards"][0]["name"] = name

        with pytest.raises(IntegrityError, match="name: shard name"):
            decode(type(document), json.dumps(lie).encode(), "key")


def test_a_manifest_that_lists_one_name_with_two_digests_is_refused() -> None:
    lie = json.loads(encode(MANIFEST))
    lie["shards"].append({**lie["shards"][0], "rank": 0})
    assert decode(Manifest, json.dumps(lie).encode(), "key").shards[1].rank == 0
    lie["shards"][1]["digest"] = f"{7:016x}"

    with pytest.raises(IntegrityError, match="a/b is listed with two digests"):
        decode(Manifest, json.dumps(lie).encode(), "key")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"<xml/>"])
def test_what_is_no_document_is_refused(body: bytes) -> None:
    with pytest.raises(IntegrityError):
        decode(Manifest, body, "key")


def test_a_document_of_too_many_entries_is_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = PART.shards[0]
    large = replace(PART, shards=(entry, replace(entry, name="b"), replace(entry, name="c")))
    body = encode(large)
    for module in (documents, strict_json):
        monkeypatch.setattr(module, "LIST_LIMIT", 2)

    with pytest.raises(IntegrityError, match="3 entries") as refused:
        encode(large)
    with pytest.raises(IntegrityError, match="shards: it has 3 entries, more than 2"):
        decode(PartDocument, body, "key")

    assert "fewer, larger shards" in refused.value.hint
    assert decode(PartDocument, encode(PART), "key") == PART


def test_a_document_of_too_many_bytes_is_neither_written_nor_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = encode(MANIFEST)
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT_BYTES", len(body) - 1)

    with pytest.raises(IntegrityError, match="the most that readers take"):
        encode(MANIFEST)
    with pytest.raises(IntegrityError, match="no document of cachetier has so many"):
        decode(Manifest, body, "key")
