"""Whatever the bucket gives back, reading it ends in a document or in the one error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    PendingSeal,
    ShardSummary,
    decode,
    encode,
)
from cachetier_client.errors import IntegrityError
from hypothesis import given
from hypothesis import strategies as st

from tests.client.test_document_bytes import PART, PENDING, PUBLISHED

DOCUMENTS = [PART, PENDING, PUBLISHED]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**63 - 1)
RANK = st.integers(0, 999_999)
RUN = st.from_regex(r"[A-Za-z0-9_=+@][A-Za-z0-9_\-=+@]{0,20}", fullmatch=True)
SAVE_ID = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,20}", fullmatch=True)
SUMMARIES = st.builds(
    ShardSummary,
    name=st.lists(RUN, min_size=1, max_size=3, unique=True).map("/".join),
    rank=RANK,
    size_bytes=st.integers(0, 1 << 39),
    digest=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
    stored_bytes=COUNT,
    element_size=st.none() | COUNT,
)
MANIFESTS = st.builds(
    Manifest,
    state=st.sampled_from(ManifestState),
    run=RUN,
    step=st.integers(0, 2**53 - 1),
    save_id=SAVE_ID,
    location=st.integers(0, 2**53 - 1).map(str),
    nonce=st.from_regex(r"[0-9a-f]{0,16}", fullmatch=True),
    started_at=st.floats(allow_nan=False, allow_infinity=False),
    published_at=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    replaces=st.lists(SAVE_ID, max_size=3).map(tuple),
    world_size=st.integers(1, 1_000_000),
    shards=st.lists(SUMMARIES, max_size=3, unique_by=lambda shard: shard.name).map(tuple),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(MANIFESTS)
def test_a_manifest_reads_back_as_it_was_written(manifest: Manifest) -> None:
    assert decode(Manifest, encode(manifest), "key") == manifest


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to every value within a document."""
    inner: Any = ()
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(way for key, each in inner for way in places(each, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    value[path[0]] = changed(value[path[0]], path[1:], new)
    return value


@given(st.sampled_from(DOCUMENTS), st.data())
def test_a_changed_document_is_read_or_refused(document: Any, data: st.DataObject) -> None:
    value = json.loads(encode(document))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(value)))
        value = changed(value, path, data.draw(ANYTHING))
    ends_in_a_document_or_the_error(type(document), json.dumps(value).encode())


@given(st.sampled_from(DOCUMENTS), st.data())
def test_damaged_bytes_are_read_or_refused(document: Any, data: st.DataObject) -> None:
    body = bytearray(encode(document))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    ends_in_a_document_or_the_error(type(document), bytes(body[: data.draw(st.integers(0, 9999))]))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    ends_in_a_document_or_the_error(PartDocument, body)


def ends_in_a_document_or_the_error(kind: type[Any], body: bytes) -> None:
    refusal = begins = f"the/key is not a {kind.__name__.lower()} of format 1: "
    try:
        document = decode(kind, body, "the/key")
        assert decode(kind, encode(document), "key") == document
    except IntegrityError as error:
        refusal = error.message
    assert refusal.startswith(begins)


# --- each lie by itself ---------------------------------------------------------------------------


def refusal_of(document: Any, **fields: Any) -> str:
    value = {**json.loads(encode(document)), **fields}
    with pytest.raises(IntegrityError) as refusal:
        decode(type(document), json.dumps(value).encode(), "key")
    return refusal.value.message.partition(" of format 1: ")[2]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("started_at", float("nan"), "NaN is not a number"),
        ("started_at", float("-inf"), "-Infinity is not a number"),
        ("started_at", True, "started_at: True is not a finite number"),
        ("started_at", "1.5", "started_at: '1.5' is not a finite number"),
        ("started_at", 10**400, f"started_at: {10**400}"[:69] + "... is not a finite number"),
        ("step", True, "step: True is not an integer"),
        ("step", 7.0, "step: 7.0 is not an integer"),
        ("step", "7", "step: '7' is not an integer"),
        ("step", -1, f"step: -1 is not from 0 to {2**53 - 1}"),
        ("step", 2**53, f"step: {2**53} is not from 0 to {2**53 - 1}"),
        ("world_size", 0, "world_size: 0 is not from 1 to 1000000"),
        ("state", "gone", "state: 'gone' is not one of claimed, published, deleted"),
        ("state", 1, "state: 1 is not one of claimed, published, deleted"),
        ("format", 2, "format: 2 is not from 1 to 1"),
        ("save_id", None, "save_id: None is not text"),
        ("run", "\ud800", "surrogates not allowed"),
        ("colour", "\ud800", "surrogates not allowed"),
        ("replaces", "older", "replaces: 'older' is not a list"),
        ("replaces", ["older", 2], "replaces: 1: 2 is not text"),
        ("parts", [3], "parts: 0: 3 is not an object"),
        ("shards", [{}], "shards: 0: name is missing"),
    ],
)
def test_a_manifest_that_lies_is_refused_and_the_error_says_where(
    field: str, value: object, why: str
) -> None:
    assert refusal_of(PUBLISHED, **{field: value}).endswith(why)


def test_infinity_by_a_large_exponent_is_refused() -> None:
    body = encode(PUBLISHED).replace(b"1732305000.125", b"1e999")
    with pytest.raises(IntegrityError, match="started_at: inf is not a finite number"):
        decode(Manifest, body, "key")


def test_what_is_nested_without_end_is_refused() -> None:
    body = encode(PUBLISHED).replace(b'"format":1', b'"x":' + b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(IntegrityError, match="nested too deeply"):
        decode(Manifest, body, "key")


def test_true_is_no_word_for_anything_else() -> None:
    assert refusal_of(PENDING, overwrite=1) == "overwrite: 1 is not true or false"
    assert decode(PendingSeal, encode(PENDING), "key").overwrite is True


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_nobody_could_read_is_not_written(number: float) -> None:
    manifest = Manifest(
        state=ManifestState.CLAIMED,
        run="run",
        step=1,
        save_id="s",
        location="1",
        nonce="n",
        started_at=number,
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode(manifest)
