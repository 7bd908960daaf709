"""Content headers, as the label that says how an object is encoded: kept, never acted upon."""

from __future__ import annotations

import os

import pytest
import zstandard
from awscrt.checksums import crc64nvme

from cachetier.remote.base import ObjectStore
from cachetier.testing.s3_endpoint import S3Endpoint

RAW = bytes(200_000) + os.urandom(200_000)
BODY = zstandard.ZstdCompressor(level=1).compress(RAW)
DIGEST = crc64nvme(BODY)
ZSTD = {"content-encoding": "zstd"}


def test_a_label_is_kept_and_the_bytes_come_back_as_they_were_put(
    store: ObjectStore, folder: str
) -> None:
    put = store.put(folder + "a", BODY, digest=DIGEST, headers=ZSTD)

    found = store.head(folder + "a")
    assert found is not None
    assert found.etag == put.etag
    assert found.encoding == put.encoding == "zstd"
    assert store.get(folder + "a") == BODY


@pytest.mark.parametrize(("start", "length"), [(0, 1000), (1000, 50_000), (7, None)])
def test_a_range_of_a_labelled_object_is_a_range_of_what_was_put(
    store: ObjectStore, folder: str, start: int, length: int | None
) -> None:
    store.put(folder + "a", BODY, digest=DIGEST, headers=ZSTD)
    end = len(BODY) if length is None else start + length
    buffer = bytearray(end - start)

    store.read_into(folder + "a", start, memoryview(buffer))

    assert buffer == BODY[start:end]
    assert store.get(folder + "a", start, length) == BODY[start:end]


def test_an_upload_in_parts_keeps_its_label(store: ObjectStore, folder: str) -> None:
    key = folder + "parts"
    upload_id = store.create_upload(key, {"cachetier-save": "s1"}, headers=ZSTD)
    part = store.upload_part(key, upload_id, 1, BODY, digest=DIGEST)
    store.complete_upload(key, upload_id, [part], digest=DIGEST)

    found = store.head(key)

    assert found is not None
    assert (found.encoding, found.metadata) == ("zstd", {"cachetier-save": "s1"})
    assert store.get(key) == BODY


def test_an_object_without_a_label_has_none(store: ObjectStore, folder: str) -> None:
    store.put(folder + "plain", BODY, digest=DIGEST)
    upload_id = store.create_upload(folder + "parts")
    part = store.upload_part(folder + "parts", upload_id, 1, BODY, digest=DIGEST)
    store.complete_upload(folder + "parts", upload_id, [part], digest=DIGEST)

    for name in ("plain", "parts"):
        found = store.head(folder + name)
        assert found is not None
        assert found.encoding is None


SAID = {
    "cache-control": "no-store",
    "content-disposition": 'attachment; filename="a b.bin"',
    "content-encoding": "gzip, br",
    "content-language": "de, en",
    "content-type": "application/x-torch; v=2",
    "expires": "Thu, 01 Dec 2033 16:00:00 GMT",
}


def test_content_headers_come_back_as_they_were_put(store: ObjectStore, folder: str) -> None:
    store.put(folder + "whole", BODY, digest=DIGEST, headers=SAID)
    upload_id = store.create_upload(folder + "parts", headers=SAID)
    part = store.upload_part(folder + "parts", upload_id, 1, BODY, digest=DIGEST)
    store.complete_upload(folder + "parts", upload_id, [part], digest=DIGEST)

    for name in ("whole", "parts"):
        found = store.head(folder + name)
        assert found is not None
        assert found.headers == SAID
        assert found.modified_at is not None
        assert store.get(folder + name) == BODY


def test_an_expiry_that_is_no_date_is_sent_as_it_is(moto_s3: S3Endpoint, folder: str) -> None:
    store = moto_s3.store()  # as S3, it keeps what others refuse

    store.put(folder + "a", BODY, digest=DIGEST, headers={"expires": "-1"})

    found = store.head(folder + "a")
    assert found is not None
    assert found.headers["expires"] == "-1"
