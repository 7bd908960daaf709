"""Multipart uploads: whole or not at all, resumable from what the store lists."""

from __future__ import annotations

import os

import pytest
from awscrt.checksums import crc64nvme
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.errors import CachetierError, TransientError, UploadGoneError
from cachetier.remote.base import ObjectStore

PART_BYTES = 5 << 20  # S3's least
BODY = os.urandom(2 * PART_BYTES + 1234)
DIGEST = crc64nvme(BODY)
PARTS = (1, 2, 3)


def bytes_of(number: int) -> memoryview:
    return memoryview(BODY)[(number - 1) * PART_BYTES : number * PART_BYTES]


def send(store: ObjectStore, key: str, upload_id: str, number: int) -> UploadedPart:
    body = bytes_of(number)
    return store.upload_part(key, upload_id, number, body, digest=crc64nvme(body))


def test_parts_become_one_object_with_the_digest_of_the_whole(
    store: ObjectStore, folder: str
) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key, {"cachetier-save": "s1"})
    parts = [send(store, key, upload_id, number) for number in (3, 1, 2)]  # any order

    completed = store.complete_upload(key, upload_id, parts, digest=DIGEST)

    found = store.head(key)
    assert found is not None
    assert (found.size_bytes, found.etag) == (len(BODY), completed.etag)
    assert found.digest == (DIGEST if store.keeps_digests else None)
    assert found.metadata == {"cachetier-save": "s1"}
    assert store.get(key) == BODY
    assert store.get(key, PART_BYTES - 10, 20) == BODY[PART_BYTES - 10 : PART_BYTES + 10]


def test_nothing_is_there_until_the_upload_completes(store: ObjectStore, folder: str) -> None:
    upload_id = store.create_upload(folder + "big")
    send(store, folder + "big", upload_id, 1)

    assert store.head(folder + "big") is None
    assert store.list(folder).keys == ()


def test_an_upload_is_resumed_from_the_parts_the_store_lists(
    store: ObjectStore, folder: str
) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key)
    sent = {number: send(store, key, upload_id, number) for number in (1, 3)}

    # As after a crash: only the bytes and the upload id are left.
    listed = store.list_parts(key, upload_id)
    parts = [
        UploadedPart(number, *listed[number], digest=crc64nvme(bytes_of(number)))
        for number in listed
    ]
    parts += [send(store, key, upload_id, number) for number in PARTS if number not in listed]
    store.complete_upload(key, upload_id, parts, digest=DIGEST)

    assert listed == {number: (part.etag, part.size_bytes) for number, part in sent.items()}
    assert store.get(key) == BODY


def test_a_part_sent_again_replaces_the_first(store: ObjectStore, folder: str) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key)
    store.upload_part(key, upload_id, 1, b"other", digest=crc64nvme(b"other"))

    part = send(store, key, upload_id, 3)
    first = store.upload_part(key, upload_id, 1, bytes_of(1), digest=crc64nvme(bytes_of(1)))
    both = crc64nvme(bytes_of(3), crc64nvme(bytes_of(1)))
    store.complete_upload(key, upload_id, [first, part], digest=both)

    assert store.get(key) == bytes(bytes_of(1)) + bytes(bytes_of(3))


def test_an_aborted_upload_is_gone_and_may_be_aborted_again(
    store: ObjectStore, folder: str
) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key)
    part = send(store, key, upload_id, 1)

    store.abort_upload(key, upload_id)
    store.abort_upload(key, upload_id)

    # moto breaks down over it, with status 500.
    gone = UploadGoneError if store.keeps_digests else (UploadGoneError, TransientError)
    with pytest.raises(gone):
        send(store, key, upload_id, 2)
    with pytest.raises(UploadGoneError):
        store.list_parts(key, upload_id)
    with pytest.raises(gone):
        store.complete_upload(key, upload_id, [part], digest=crc64nvme(bytes_of(1)))
    assert store.head(key) is None


def test_a_completed_upload_does_not_complete_into_other_bytes(
    store: ObjectStore, folder: str
) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key)
    part = send(store, key, upload_id, 3)
    digest = crc64nvme(bytes_of(3))
    first = store.complete_upload(key, upload_id, [part], digest=digest)

    # S3 may also answer as the first time; in any case the object stays as it is.
    try:
        again = store.complete_upload(key, upload_id, [part], digest=digest)
        assert again.etag == first.etag
    except UploadGoneError:
        pass
    assert store.get(key) == bytes(bytes_of(3))


def test_a_part_the_store_does_not_know_means_to_begin_again(
    store: ObjectStore, folder: str
) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key)
    part = send(store, key, upload_id, 1)
    invented = UploadedPart(2, part.etag, part.size_bytes, part.digest)

    with pytest.raises(UploadGoneError):
        store.complete_upload(key, upload_id, [part, invented], digest=DIGEST)
    assert store.head(key) is None


def test_too_small_a_part_in_the_middle_is_refused(store: ObjectStore, folder: str) -> None:
    key = folder + "big"
    upload_id = store.create_upload(key)
    small = store.upload_part(key, upload_id, 1, b"small", digest=crc64nvme(b"small"))
    last = send(store, key, upload_id, 3)

    whole = crc64nvme(bytes_of(3), crc64nvme(b"small"))

    with pytest.raises(CachetierError):
        store.complete_upload(key, upload_id, [small, last], digest=whole)
    assert store.head(key) is None


def test_unfinished_uploads_are_listed_under_their_prefix(store: ObjectStore, folder: str) -> None:
    mine = {(key, store.create_upload(key)) for key in (folder + "a", folder + "b/c")}
    store.create_upload("elsewhere-" + folder + "d")
    done = store.create_upload(folder + "done")
    store.abort_upload(folder + "done", done)

    assert set(store.list_uploads(folder)) == mine
