"""What is wanted in memory comes in pieces, over several connections at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.remote.base import Into
from cachetier.restore.link import PIECE_BYTES, InPieces, Link
from tests.fakes.faulty_store import FaultyObjectStore, fail
from tests.fakes.memory_store import MemoryObjectStore

DATA = b"".join(bytes([number]) * PIECE_BYTES for number in range(5)) + b"tail"


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link()
    yield link
    link.close()


@pytest.fixture
def objects() -> FaultyObjectStore:
    objects = MemoryObjectStore()
    objects.put("key", DATA, digest=digest_of(DATA))
    return FaultyObjectStore(objects)


def test_pieces_come_at_once_and_lie_where_they_belong(
    link: Link, objects: FaultyObjectStore
) -> None:
    together, read_into = threading.Barrier(4), objects.read_into

    def read_with_others(key: str, start: int, into: Into, etag: str | None = None) -> None:
        if start < 4 * PIECE_BYTES:
            together.wait(60)
        read_into(key, start, into, etag)

    objects.read_into = read_with_others  # type: ignore[method-assign]
    into = bytearray(len(DATA) - 10)
    InPieces(objects, link).read_into("key", 3, memoryview(into))

    assert into == DATA[3:-7]


def test_a_piece_that_fails_is_raised_once_the_others_have_ended(
    link: Link, objects: FaultyObjectStore
) -> None:
    objects.add(fail("read_into", 2))
    with pytest.raises(TransientError):
        InPieces(objects, link).read_into("key", 0, memoryview(bytearray(len(DATA))))


def test_nothing_is_read_of_nothing(link: Link, objects: FaultyObjectStore) -> None:
    InPieces(objects, link).read_into("key", 0, memoryview(bytearray()))

    assert objects.calls["read_into"] == 0
