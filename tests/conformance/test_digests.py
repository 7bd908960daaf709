"""Stores that keep digests refuse wrong bytes; the others never seem to verify."""

from __future__ import annotations

import os

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import RemoteDigestError
from cachetier.remote.base import ObjectStore

BODY = os.urandom(100_000)
WRONG = crc64nvme(BODY) ^ 1


def test_wrong_bytes_are_refused_and_not_kept_or_the_store_says_it_cannot_tell(
    store: ObjectStore, folder: str
) -> None:
    if store.keeps_digests:
        with pytest.raises(RemoteDigestError):
            store.put(folder + "a", BODY, digest=WRONG)
        assert store.head(folder + "a") is None
    else:
        store.put(folder + "a", BODY, digest=WRONG)
        assert _digest_by_head(store, folder + "a") is None
        assert crc64nvme(store.get(folder + "a")) != WRONG  # so reading back finds it out


def test_a_refused_put_leaves_the_version_before_it(store: ObjectStore, folder: str) -> None:
    before = store.put(folder + "a", b"before", digest=crc64nvme(b"before"))
    if not store.keeps_digests:
        assert before.digest is None
        return

    with pytest.raises(RemoteDigestError):
        store.put(folder + "a", BODY, digest=WRONG)

    assert store.get(folder + "a") == b"before"


def test_wrong_bytes_in_a_part_are_refused_or_the_store_says_it_cannot_tell(
    store: ObjectStore, folder: str
) -> None:
    upload_id = store.create_upload(folder + "a")
    if store.keeps_digests:
        with pytest.raises(RemoteDigestError):
            store.upload_part(folder + "a", upload_id, 1, BODY, digest=WRONG)
        assert store.list_parts(folder + "a", upload_id) == {}
    else:
        part = store.upload_part(folder + "a", upload_id, 1, BODY, digest=WRONG)
        store.complete_upload(folder + "a", upload_id, [part], digest=WRONG)
        assert _digest_by_head(store, folder + "a") is None
        assert crc64nvme(store.get(folder + "a")) != WRONG


def test_a_wrong_digest_of_the_whole_is_refused_or_the_store_says_it_cannot_tell(
    store: ObjectStore, folder: str
) -> None:
    upload_id = store.create_upload(folder + "a")
    part = store.upload_part(folder + "a", upload_id, 1, BODY, digest=crc64nvme(BODY))
    if store.keeps_digests:
        with pytest.raises(RemoteDigestError):
            store.complete_upload(folder + "a", upload_id, [part], digest=WRONG)
        assert store.head(folder + "a") is None
    else:
        completed = store.complete_upload(folder + "a", upload_id, [part], digest=WRONG)
        assert completed.digest is None
        assert _digest_by_head(store, folder + "a") is None


def _digest_by_head(store: ObjectStore, key: str) -> int | None:
    found = store.head(key)
    assert found is not None
    return found.digest
