"""What a rank says of a shard beside its bytes: grammar, headers, documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from cachetier_client.bucket_format import strict_json
from cachetier_client.bucket_format.documents import ShardEntry
from cachetier_client.bucket_format.stored import (
    FACT_HEADERS,
    FACT_NAMES,
    FACT_SCHEMAS,
    NO_FACTS,
    Codec,
    Content,
    ShardFacts,
    Stored,
    StoredFrame,
    table_bytes,
)
from cachetier_client.bucket_format.strict_json import sparse
from cachetier_client.errors import InvalidRequestError

FACTS = ShardFacts(element_size=4)
CONTENT = Content.of_block(b"12345678")


@pytest.mark.parametrize("facts", [NO_FACTS, FACTS])
def test_fields_and_headers_say_what_was_said(facts: ShardFacts) -> None:
    assert ShardFacts.of_fields(facts.fields()) == ShardFacts.of_headers(facts.headers()) == facts
    assert tuple(facts.fields()) == FACT_NAMES


def test_what_was_not_said_is_told_nowhere() -> None:
    assert not NO_FACTS
    assert ShardFacts.of_fields({"name": "weights"}) == NO_FACTS
    assert (NO_FACTS.headers(), NO_FACTS.recorded()) == ({}, {})


def test_each_fact_has_a_header_and_a_schema() -> None:
    assert set(FACT_HEADERS) == set(FACT_SCHEMAS) == set(FACT_NAMES)
    assert FACTS.headers() == {"Cachetier-Element-Size": "4"}


@pytest.mark.parametrize("wrong", [0, 1, 3, "4", 4.0, True, [4], 2**70])
def test_an_element_size_that_nothing_has_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="not one of 2, 4 and 8"):
        ShardFacts.of_fields({"element_size": wrong})


@pytest.mark.parametrize("wrong", ["", "four", "4.0", "-4", "9" * 19, "\uff13"])
def test_a_header_that_is_no_element_size_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequestError, match="not one of 2, 4 and 8"):
        ShardFacts.of_headers({"Cachetier-Element-Size": wrong})


def test_bytes_are_whole_elements() -> None:
    FACTS.check(8)
    NO_FACTS.check(7)
    with pytest.raises(InvalidRequestError, match="7 bytes are not whole elements of 4"):
        FACTS.check(7)


def test_no_document_has_a_hint() -> None:
    told, untold = (ShardEntry.of("a", 0, CONTENT, facts=each) for each in (FACTS, NO_FACTS))

    assert strict_json.written(told) == strict_json.written(untold)
    assert told.known_facts() == NO_FACTS


def test_planes_tell_the_size_of_the_elements() -> None:
    frames = (StoredFrame(10, 1),)
    stored = Stored(Codec.PLANES, 10 + table_bytes(1), 2, frames, 4)
    entry = ShardEntry.of("a", 0, CONTENT, stored)

    assert entry.known_facts() == entry.summary().known_facts() == FACTS


@dataclass(frozen=True, kw_only=True)
class _Sparse:
    number: int = sparse(7)
    other: int = 7


def test_a_sparse_field_is_left_out_while_it_is_its_default() -> None:
    assert strict_json.written(_Sparse()) == b'{"other":7}'
    assert strict_json.written(_Sparse(number=0)) == b'{"number":0,"other":7}'
    assert strict_json.parsed(_Sparse, b'{"other":7}') == _Sparse()
