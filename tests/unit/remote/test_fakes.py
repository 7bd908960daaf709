"""The stores that other tests rely on do what they say."""

from __future__ import annotations

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import (
    ObjectMissingError,
    RemoteDigestError,
    RemoteRefusedError,
    ThrottledError,
    TransientError,
    UploadGoneError,
)
from cachetier.remote.wrapped import Operation
from tests.fakes.faulty_store import Fault, FaultyObjectStore, corrupt, fail, lose_reply
from tests.fakes.memory_store import MemoryObjectStore

BODY = b"0123456789"
DIGEST = crc64nvme(BODY)


def faulty(*plan: Fault) -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore(minimum_part_bytes=1), plan)


def test_the_nth_call_fails_and_only_that_one() -> None:
    store = faulty(fail("head", 2, ThrottledError))

    store.head("a")
    with pytest.raises(ThrottledError):
        store.head("a")
    store.head("a")

    assert store.fired == [fail("head", 2, ThrottledError)]
    assert store.pending == []
    assert store.calls == {"head": 3}


def test_calls_of_one_operation_do_not_count_for_another() -> None:
    store = faulty(fail("get", 1))

    store.list("")
    assert store.pending == [fail("get", 1)]
    with pytest.raises(TransientError):
        store.get("a")


def test_a_failed_call_never_reached_the_store() -> None:
    store = faulty(fail("put"))

    with pytest.raises(TransientError):
        store.put("a", BODY, digest=DIGEST)
    assert store.head("a") is None


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_lost_reply_hides_what_was_done(operation: Operation) -> None:
    store = faulty(lose_reply(operation))
    if operation == "delete":
        store.put("a", BODY, digest=DIGEST)

    with pytest.raises(TransientError):
        store.put("a", BODY, digest=DIGEST) if operation == "put" else store.delete("a")
    assert (store.head("a") is not None) == (operation == "put")


def test_a_corrupted_body_is_refused_by_a_store_that_judges() -> None:
    store = faulty(corrupt("put"), corrupt("upload_part"))
    upload_id = store.create_upload("a")

    with pytest.raises(RemoteDigestError):
        store.put("a", BODY, digest=DIGEST)
    with pytest.raises(RemoteDigestError):
        store.upload_part("a", upload_id, 1, BODY, digest=DIGEST)
    assert store.pending == []


def test_a_corrupted_answer_differs_in_one_bit() -> None:
    store = faulty(corrupt("get"), corrupt("read_into"))
    store.put("a", BODY, digest=DIGEST)
    view = bytearray(len(BODY))

    store.read_into("a", 0, memoryview(view))
    for got in (store.get("a"), bytes(view)):
        assert sum((a ^ b).bit_count() for a, b in zip(got, BODY, strict=True)) == 1
    assert store.get("a") == BODY


def test_a_body_fault_needs_a_body() -> None:
    with pytest.raises(ValueError):
        corrupt("head")
    with pytest.raises(ValueError):
        faulty(corrupt("put")).put("a", b"", digest=crc64nvme(b""))


def test_an_outage_lasts_until_it_is_mended() -> None:
    store = faulty()
    store.put("a", BODY, digest=DIGEST)

    store.go_down(RemoteRefusedError)
    for _ in range(3):
        with pytest.raises(RemoteRefusedError):
            store.check()
    store.mend()

    store.check()
    assert len(store.fired) == 3


def test_a_fault_may_be_planned_while_the_store_is_used() -> None:
    store = faulty()
    store.head("a")
    store.add(fail("head", store.calls["head"] + 1))

    with pytest.raises(TransientError):
        store.head("a")


def test_damage_at_rest_is_found_by_a_whole_read_only() -> None:
    store = MemoryObjectStore()
    store.put("a", BODY, digest=DIGEST)
    store.damage("a", at=3)

    with pytest.raises(RemoteDigestError):
        store.get("a")
    assert store.get("a", 3, 1) == bytes([BODY[3] ^ 1])
    found = store.head("a")
    assert found is not None
    assert found.digest == DIGEST


def test_a_smaller_least_part_lets_tests_use_little_parts() -> None:
    store = MemoryObjectStore(minimum_part_bytes=3)
    upload_id = store.create_upload("a")
    parts = [
        store.upload_part("a", upload_id, number, body, digest=crc64nvme(body))
        for number, body in ((1, b"012"), (2, b"3"))
    ]

    store.complete_upload("a", upload_id, parts, digest=crc64nvme(b"0123"))

    assert store.get("a") == b"0123"


def test_an_upload_belongs_to_its_key() -> None:
    store = MemoryObjectStore()
    upload_id = store.create_upload("a")

    store.abort_upload("b", upload_id)

    assert list(store.list_uploads("")) == [("a", upload_id)]
    with pytest.raises(UploadGoneError):
        store.list_parts("b", upload_id)
    with pytest.raises(ObjectMissingError):
        store.get("a")
