"""Parts that are copied inside the bucket: their bytes, their limits, and what may go wrong."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.errors import (
    CopiesRefusedError,
    RemoteDigestError,
    SourceChangedError,
    TransientError,
    UploadGoneError,
)
from cachetier.remote.base import CopyRange, ObjectStore

MIB = 1 << 20
PART_BYTES = 5 * MIB  # S3's least
DONOR = os.urandom(12 * MIB + 4321)
TAIL = os.urandom(777)


def put_donor(store: ObjectStore, key: str, body: bytes = DONOR) -> CopyRange:
    """Store the object to copy from, and return all of it."""
    info = store.put(key, body, digest=crc64nvme(body))
    return CopyRange(key, info.etag, 0, len(body))


def copy(
    store: ObjectStore, key: str, upload_id: str, number: int, source: CopyRange
) -> UploadedPart:
    there = DONOR[source.start : source.start + source.size_bytes]
    return store.copy_part(key, upload_id, number, source, digest=crc64nvme(there))


def send(store: ObjectStore, key: str, upload_id: str, number: int, body: bytes) -> UploadedPart:
    return store.upload_part(key, upload_id, number, body, digest=crc64nvme(body))


@pytest.fixture
def is_careless(request: pytest.FixtureRequest) -> bool:
    """Return whether the store is moto: it copies from any version, and as much as there is."""
    return "moto" in request.node.name


def test_copied_and_sent_parts_become_one_object_with_the_digest_of_the_whole(
    store: ObjectStore, folder: str
) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key, {"cachetier-save": "s2"})
    middle = replace(donor, start=MIB + 17, size_bytes=PART_BYTES + 5)  # on no boundary

    parts = [
        send(store, key, upload_id, 3, TAIL),
        copy(store, key, upload_id, 2, middle),
        send(store, key, upload_id, 1, DONOR[:PART_BYTES]),
    ]
    expected = DONOR[:PART_BYTES] + DONOR[MIB + 17 : MIB + 17 + PART_BYTES + 5] + TAIL
    completed = store.complete_upload(key, upload_id, parts, digest=crc64nvme(expected))

    found = store.head(key)
    assert found is not None
    assert (found.size_bytes, found.etag) == (len(expected), completed.etag)
    assert found.digest == (crc64nvme(expected) if store.keeps_digests else None)
    assert found.metadata == {"cachetier-save": "s2"}
    assert store.get(key) == expected


def test_a_whole_object_is_one_copied_part(store: ObjectStore, folder: str) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "twin"
    upload_id = store.create_upload(key)

    part = copy(store, key, upload_id, 1, donor)
    store.complete_upload(key, upload_id, [part], digest=crc64nvme(DONOR))

    assert store.get(key) == DONOR


def test_a_copied_part_is_listed_as_any_other(store: ObjectStore, folder: str) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key)

    part = copy(store, key, upload_id, 4, donor)

    etag, size_bytes = store.list_parts(key, upload_id)[4]
    assert (etag.strip('"'), size_bytes) == (part.etag.strip('"'), len(DONOR))


def test_what_was_copied_stays_when_its_donor_is_deleted(store: ObjectStore, folder: str) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key)
    part = copy(store, key, upload_id, 1, donor)
    store.complete_upload(key, upload_id, [part], digest=crc64nvme(DONOR))

    store.delete(donor.key)

    assert store.get(key) == DONOR
    assert store.head(donor.key) is None


def test_nothing_is_copied_from_a_donor_that_is_gone(store: ObjectStore, folder: str) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key)
    store.delete(donor.key)

    with pytest.raises(SourceChangedError):
        copy(store, key, upload_id, 1, donor)


def test_nothing_is_copied_from_another_version_of_the_donor(
    store: ObjectStore, folder: str, is_careless: bool
) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key)
    put_donor(store, donor.key, os.urandom(len(DONOR)))

    if is_careless:
        part = copy(store, key, upload_id, 1, donor)
        store.complete_upload(key, upload_id, [part], digest=crc64nvme(DONOR))
        assert store.get(key) != DONOR  # as whoever reads it back finds out
        return
    with pytest.raises(SourceChangedError):
        copy(store, key, upload_id, 1, donor)


def test_a_range_beyond_the_donor_is_an_error(
    store: ObjectStore, folder: str, is_careless: bool
) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key)
    beyond = replace(donor, start=len(DONOR) - 10, size_bytes=20)

    if is_careless:
        copy(store, key, upload_id, 1, beyond)
        assert store.list_parts(key, upload_id)[1][1] == 10
        return
    with pytest.raises((SourceChangedError, CopiesRefusedError)):  # the bytes are sent
        copy(store, key, upload_id, 1, beyond)


def test_nothing_is_copied_into_an_upload_that_is_gone(
    store: ObjectStore, folder: str, is_careless: bool
) -> None:
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id = store.create_upload(key)
    store.abort_upload(key, upload_id)

    # moto breaks down over it, with status 500.
    with pytest.raises(TransientError if is_careless else UploadGoneError):
        copy(store, key, upload_id, 1, donor)


def test_other_bytes_than_expected_never_become_an_object_where_the_store_judges(
    store: ObjectStore, folder: str
) -> None:
    if not store.keeps_digests:
        return  # there the object is read back before it counts
    donor, key = put_donor(store, folder + "donor"), folder + "composed"
    upload_id, wrong = store.create_upload(key), crc64nvme(b"other bytes")

    with pytest.raises(RemoteDigestError):
        part = store.copy_part(key, upload_id, 1, donor, digest=wrong)
        store.complete_upload(key, upload_id, [part], digest=wrong)
    assert store.head(key) is None
