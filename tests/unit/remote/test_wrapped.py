"""What an observer hears of each call."""

from __future__ import annotations

from itertools import count

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import ObjectMissingError, RemoteDigestError
from cachetier.remote.call_policy import CallPolicy
from cachetier.remote.wrapped import Operation
from tests.fakes.memory_store import MemoryObjectStore

Seen = list[tuple[Operation, float, int, str]]


def measured() -> tuple[CallPolicy, Seen]:
    """Return a store whose every call takes two seconds of its clock."""
    seen: Seen = []
    ticks = count(0, 2)
    store = CallPolicy(
        MemoryObjectStore(),
        observe=lambda *said: seen.append(said),
        clock=lambda: float(next(ticks)),
    )
    return store, seen


def test_bytes_that_moved_are_counted_whichever_way() -> None:
    store, seen = measured()

    store.put("a", b"12345", digest=crc64nvme(b"12345"))
    store.get("a", 1, 3)
    store.read_into("a", 1, memoryview(bytearray(4)))
    store.head("a")

    assert seen == [
        ("put", 2.0, 5, "ok"),
        ("get", 2.0, 3, "ok"),
        ("read_into", 2.0, 4, "ok"),
        ("head", 2.0, 0, "ok"),
    ]


def test_a_failure_is_told_by_its_code_and_moved_nothing() -> None:
    store, seen = measured()

    with pytest.raises(RemoteDigestError):
        store.put("a", b"12345", digest=0)
    with pytest.raises(ObjectMissingError):
        store.get("a")

    assert seen == [("put", 2.0, 0, "remote_digest"), ("get", 2.0, 0, "remote_missing")]


def test_a_defect_is_told_apart_from_a_failure() -> None:
    store, seen = measured()

    store.put("a", b"12345", digest=crc64nvme(b"12345"))
    with pytest.raises(TypeError):
        store.read_into("a", 0, memoryview(b"not writable")[:5])

    assert seen[1:] == [("read_into", 2.0, 0, "internal")]
