"""Whole objects: kept, described, given back whole or in ranges, forgotten."""

from __future__ import annotations

import os

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format import documents

from cachetier.errors import (
    IntegrityError,
    ObjectMissingError,
    RemoteDigestError,
    SourceChangedError,
)
from cachetier.remote.base import ObjectStore

BODY = os.urandom(300_000)  # more than one slice
DIGEST = crc64nvme(BODY)


def test_an_object_comes_back_as_it_was_put(store: ObjectStore, folder: str) -> None:
    put = store.put(folder + "a", BODY, digest=DIGEST)

    assert store.get(folder + "a") == BODY
    assert (put.key, put.size_bytes) == (folder + "a", len(BODY))


def test_head_describes_an_object_as_put_did(store: ObjectStore, folder: str) -> None:
    put = store.put(folder + "a", BODY, digest=DIGEST, metadata={"cachetier-save": "s1"})

    found = store.head(folder + "a")

    assert found == put
    assert found.digest == (DIGEST if store.keeps_digests else None)
    assert found.metadata == {"cachetier-save": "s1"}


def test_an_empty_object_is_an_object(store: ObjectStore, folder: str) -> None:
    store.put(folder + "empty", b"", digest=crc64nvme(b""))

    found = store.head(folder + "empty")

    assert found is not None
    assert found.size_bytes == 0
    assert store.get(folder + "empty") == b""


@pytest.mark.parametrize(
    "view",
    [memoryview(BODY), memoryview(bytearray(BODY))[1000:], memoryview(BODY).cast("I")],
    ids=["read-only", "slice of a buffer", "of words"],
)
def test_a_body_may_be_any_contiguous_view(
    store: ObjectStore, folder: str, view: memoryview
) -> None:
    put = store.put(folder + "view", view, digest=crc64nvme(bytes(view)))

    assert put.size_bytes == view.nbytes
    assert store.get(folder + "view") == bytes(view)


@pytest.mark.parametrize(
    ("start", "length"), [(0, 1), (0, 300_000), (7, 100_000), (299_999, 1), (5, None), (9, 0)]
)
def test_a_range_comes_back_exactly(
    store: ObjectStore, folder: str, start: int, length: int | None
) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)
    end = len(BODY) if length is None else start + length

    assert store.get(folder + "a", start, length) == BODY[start:end]


def test_a_range_is_read_into_the_callers_buffer(store: ObjectStore, folder: str) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)
    buffer = bytearray(280_000)

    store.read_into(folder + "a", 11, memoryview(buffer)[8:])
    store.read_into(folder + "a", 0, memoryview(bytearray()))

    assert buffer[:8] == bytes(8)
    assert buffer[8:] == BODY[11 : 11 + 280_000 - 8]


@pytest.mark.parametrize(("start", "length"), [(300_000, 1), (299_999, 2), (400_000, None)])
def test_a_range_beyond_the_end_is_an_error_not_fewer_bytes(
    store: ObjectStore, folder: str, start: int, length: int | None
) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)

    with pytest.raises(RemoteDigestError):
        store.get(folder + "a", start, length)
    with pytest.raises(RemoteDigestError):
        store.read_into(folder + "a", start, memoryview(bytearray(length or 1)))


def test_a_missing_object_is_told_apart_from_trouble(store: ObjectStore, folder: str) -> None:
    assert store.head(folder + "missing") is None
    for read in (
        lambda: store.get(folder + "missing"),
        lambda: store.get(folder + "missing", 3, 4),
        lambda: store.get(folder + "missing", 0, 0),
        lambda: store.read_into(folder + "missing", 0, memoryview(bytearray(4))),
    ):
        with pytest.raises(ObjectMissingError):
            read()


def test_a_second_put_replaces_the_first_under_a_new_etag(store: ObjectStore, folder: str) -> None:
    first = store.put(folder + "a", BODY, digest=DIGEST)
    second = store.put(folder + "a", b"second", digest=crc64nvme(b"second"))

    assert store.get(folder + "a") == b"second"
    assert first.etag != second.etag


def test_delete_forgets_and_may_be_repeated(store: ObjectStore, folder: str) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)

    store.delete(folder + "a")
    store.delete(folder + "a")

    assert store.head(folder + "a") is None


@pytest.mark.parametrize("name", ["räksmörgås", "a b+c%20&=?#", "x" * 200, "dots..and~tilde"])
def test_a_key_means_itself_whatever_its_letters(
    store: ObjectStore, folder: str, name: str
) -> None:
    store.put(folder + name, b"named", digest=crc64nvme(b"named"))

    assert store.get(folder + name) == b"named"
    assert store.list(folder).keys == (folder + name,)


def test_a_bucket_that_is_there_passes_the_check(store: ObjectStore) -> None:
    store.check()


def test_what_is_larger_than_any_document_is_not_read_as_one(
    store: ObjectStore, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(folder + "a", BODY, digest=DIGEST)
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT_BYTES", len(BODY) - 1)

    with pytest.raises(IntegrityError, match="no document of cachetier has so many"):
        store.get(folder + "a")

    assert store.get(folder + "a", 0, len(BODY)) == BODY
    monkeypatch.setattr(documents, "DOCUMENT_LIMIT_BYTES", len(BODY))
    assert store.get(folder + "a") == BODY


def test_a_range_of_another_version_is_not_read(store: ObjectStore, folder: str) -> None:
    first = store.put(folder + "a", b"hello", digest=crc64nvme(b"hello"))
    second = store.put(folder + "a", b"world", digest=crc64nvme(b"world"))
    buffer = bytearray(3)

    with pytest.raises(SourceChangedError):
        store.read_into(folder + "a", 1, memoryview(buffer), first.etag)
    store.read_into(folder + "a", 1, memoryview(buffer), second.etag)

    assert buffer == b"orl"
