"""The documents of clients: parts and keys; and what is large, deep, or no document at all."""

from __future__ import annotations

import tracemalloc
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachetier.doors.s3.documents import (
    DOCUMENT_LIMIT_BYTES,
    KEYS_LIMIT,
    Deletion,
    read_deletion,
    read_parts,
)
from cachetier.doors.s3.errors import S3RefusedError
from cachetier.local.catalog.objects import UNCONDITIONAL, KeyCondition
from cachetier.objects.base import DeclaredPart

NAMESPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
BOMB = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12))


def complete(*parts: str, attributes: str = NAMESPACE) -> bytes:
    body = "".join(f"<Part>{part}</Part>" for part in parts)
    root = "CompleteMultipartUpload"
    return f"<{root}{attributes}>{body}</{root}>".encode()


def delete(*keys: str, more: str = "") -> bytes:
    objects = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
    return f"<Delete{NAMESPACE}>{objects}{more}</Delete>".encode()


def refusal(body: bytes) -> str:
    read = read_deletion if b"<Delete" in body[:200] else read_parts
    with pytest.raises(S3RefusedError) as refused:
        read(body)
    return str(refused.value.s3_code)


def test_parts_are_read_in_the_order_of_the_document() -> None:
    body = complete(
        '<PartNumber>2</PartNumber><ETag>"b"</ETag>',
        "\n <ETag>&quot;a-1&quot;</ETag> <PartNumber>1</PartNumber>"
        "<ChecksumCRC32>AAAAAA==</ChecksumCRC32>\n",
    )
    parts = [DeclaredPart(2, "b"), DeclaredPart(1, "a-1", {"CRC32": "AAAAAA=="})]
    assert read_parts(body) == parts
    assert read_parts(b'<?xml version="1.0" encoding="UTF-8"?>\n' + body) == parts


def test_documents_may_name_no_namespace_or_use_a_prefix() -> None:
    part = "<PartNumber>1</PartNumber><ETag>a</ETag>"
    assert read_parts(complete(part, attributes="")) == [DeclaredPart(1, "a")]
    prefixed = b"<x:Delete xmlns:x='u'><x:Object><x:Key>k</x:Key></x:Object></x:Delete>"
    assert read_deletion(prefixed) == Deletion({"k": UNCONDITIONAL}, quiet=False)


def test_ten_thousand_parts_are_read_and_one_more_is_not() -> None:
    checksum = f"<ChecksumSHA256>{'A' * 43}=</ChecksumSHA256>"
    parts = [
        f'<PartNumber>{n}</PartNumber><ETag>"{"f" * 38}"</ETag>{checksum}' for n in range(1, 10_001)
    ]
    assert len(read_parts(complete(*parts))) == 10_000
    assert refusal(complete(*parts, parts[0])) == "MalformedXML"


def test_a_thousand_keys_are_deleted_and_ten_thousand_and_one_are_not() -> None:
    keys = [f"k{n}" for n in range(KEYS_LIMIT)]
    assert list(read_deletion(delete(*keys)).keys) == keys
    assert refusal(delete(*keys, "more")) == "MalformedXML"
    assert refusal(delete(*(f"k{n}" for n in range(10_001)))) == "MalformedXML"


@given(
    keys=st.lists(
        st.text(
            st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
            min_size=1,
            max_size=30,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_keys_come_as_they_were_sent(keys: list[str]) -> None:
    assert read_deletion(delete(*keys, more="<Quiet>true</Quiet>")) == Deletion(
        dict.fromkeys(keys, UNCONDITIONAL), True
    )


def test_what_must_hold_of_a_key_to_be_deleted_is_read_with_it() -> None:
    at = "<LastModifiedTime>Thu, 01 Jan 1970 00:01:40 GMT</LastModifiedTime>"
    entries = (
        "<Key>a</Key><ETag>&quot;e-1&quot;</ETag>",
        f"<Key>b</Key><Size>7</Size>{at}",
        "<Key>c</Key><LastModifiedTime>1970-01-01T00:01:40Z</LastModifiedTime>",
    )
    body = "".join(f"<Object>{entry}</Object>" for entry in entries)
    assert read_deletion(f"<Delete>{body}</Delete>".encode()).keys == {
        "a": KeyCondition(if_match="e-1"),
        "b": KeyCondition(if_size_bytes=7, if_modified_at=100.0),
        "c": KeyCondition(if_modified_at=100.0),
    }


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("<Object><Key>k</Key><Size>-1</Size></Object>", "InvalidArgument"),
        ("<Object><Key>k</Key><Size>\u0661</Size></Object>", "InvalidArgument"),
        (
            "<Object><Key>k</Key><LastModifiedTime>once</LastModifiedTime></Object>",
            "InvalidArgument",
        ),
        ("<Object><Key>k</Key><VersionId>1</VersionId></Object>", "NotImplemented"),
        ("<Object><Key>k</Key><ETag>other</ETag></Object>", "NotImplemented"),
    ],
)
def test_a_condition_that_is_none_or_another_for_one_key_is_refused(more: str, code: str) -> None:
    assert refusal(delete("k", more=more)) == code


@pytest.mark.parametrize(
    ("number", "code"),
    [
        ("0", "InvalidArgument"),
        ("10001", "InvalidArgument"),
        ("9" * 100, "InvalidArgument"),
        ("-1", "MalformedXML"),
        ("1.0", "MalformedXML"),
        ("one", "MalformedXML"),
        ("", "MalformedXML"),
        ("\u0661", "MalformedXML"),
    ],
)
def test_a_number_that_no_part_has_is_refused(number: str, code: str) -> None:
    assert refusal(complete(f"<PartNumber>{number}</PartNumber><ETag>a</ETag>")) == code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not xml",
        b"<CompleteMultipartUpload>",
        b"<CompleteMultipartUpload/>",
        b"<Delete/>",
        b"<Other><Part/></Other>",
        complete("<ETag>a</ETag>"),
        complete("<PartNumber>1</PartNumber>"),
        complete("<PartNumber>1</PartNumber><PartNumber>1</PartNumber><ETag>a</ETag>"),
        complete("<PartNumber>1<b/></PartNumber><ETag>a</ETag>"),
        complete("<a>" * 100_000),
        complete("".join(f"<a{n}>1</a{n}>" for n in range(1000))),
        complete(f"<PartNumber>1</PartNumber><ETag>{'a' * 5000}</ETag>"),
        complete("<PartNumber>1</PartNumber><ETag>&a;</ETag>"),
        complete("<PartNumber>1</PartNumber><ETag>\0</ETag>"),
        f'<!DOCTYPE a [<!ENTITY a0 "x">{BOMB}]>'.encode() + complete("<ETag>&a11;</ETag>"),
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd">' + complete("<ETag>a</ETag>"),
        b'<?xml version="1.0" encoding="no-such"?>' + delete("k"),
        delete("k").decode().encode("utf-16")[:-1],
        delete("k") + delete("k"),
        delete(""),
        delete("k", more="<Object></Object>"),
        delete("k", more="<Quiet>true</Quiet><Quiet>true</Quiet>"),
        delete("k") + b" " * DOCUMENT_LIMIT_BYTES,
        b"<Delete><Object><Key>\xff</Key></Object></Delete>",
    ],
)
def test_what_is_no_such_document_is_malformed(body: bytes) -> None:
    assert refusal(body) == "MalformedXML"


def test_a_deletion_of_a_version_is_not_offered() -> None:
    body = b"<Delete><Object><Key>k</Key><VersionId>1</VersionId></Object></Delete>"
    assert refusal(body) == "NotImplemented"


def test_a_checksum_that_is_none_is_refused() -> None:
    part = "<PartNumber>1</PartNumber><ETag>a</ETag><ChecksumCRC32>x</ChecksumCRC32>"
    assert refusal(complete(part)) == "InvalidRequest"


@pytest.mark.parametrize("body", [b"<Delete>" + b"<a/>" * 500_000, b"<Delete>" * 200_000])
def test_a_document_of_nothing_takes_little_memory(body: bytes) -> None:
    tracemalloc.start()
    try:
        assert refusal(body) == "MalformedXML"
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
