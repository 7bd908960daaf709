"""Bodies that are read while they are sent: whole, or not accepted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import TransientError
from cachetier.remote.base import ObjectStore

PIECE_BYTES = 1 << 20
BODY = os.urandom(5 * PIECE_BYTES)
DIGEST = crc64nvme(BODY)


class DamagedError(Exception):
    """What the test's own bytes turn out to be."""


class Pieces:
    """``BODY``, piece by piece in one buffer; after ``sound`` pieces it breaks."""

    size_bytes = len(BODY)

    def __init__(self, sound: int = 5) -> None:
        self._sound = sound
        self.open = 0

    def __iter__(self) -> Iterator[memoryview]:
        buffer = bytearray(PIECE_BYTES)
        self.open += 1
        try:
            for number in range(5):
                if number == self._sound:
                    raise DamagedError(f"piece {number}")
                buffer[:] = BODY[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
                yield memoryview(buffer)
        finally:
            self.open -= 1


def test_an_object_and_a_part_are_stored_as_they_were_read(store: ObjectStore, folder: str) -> None:
    pieces = Pieces()

    store.put(folder + "one", pieces, digest=DIGEST)
    upload_id = store.create_upload(folder + "parts")
    part = store.upload_part(folder + "parts", upload_id, 1, pieces, digest=DIGEST)
    store.complete_upload(folder + "parts", upload_id, [part], digest=DIGEST)

    assert store.get(folder + "one") == store.get(folder + "parts") == BODY
    assert (part.size_bytes, pieces.open) == (len(BODY), 0)


@pytest.mark.parametrize("sound", [0, 1, 4])
def test_a_body_that_turns_out_to_be_damaged_is_not_accepted_and_the_caller_hears_why(
    store: ObjectStore, folder: str, sound: int
) -> None:
    pieces = Pieces(sound)
    upload_id = store.create_upload(folder + "parts")

    with pytest.raises(DamagedError, match=f"piece {sound}"):
        store.put(folder + "one", pieces, digest=DIGEST)
    with pytest.raises(DamagedError, match=f"piece {sound}"):
        store.upload_part(folder + "parts", upload_id, 1, pieces, digest=DIGEST)

    assert store.head(folder + "one") is None
    assert store.list_parts(folder + "parts", upload_id) == {}
    assert pieces.open == 0
    store.abort_upload(folder + "parts", upload_id)


def test_a_store_goes_on_after_bodies_that_broke(store: ObjectStore, folder: str) -> None:
    for _ in range(3):
        with pytest.raises((DamagedError, TransientError)):
            store.put(folder + "one", Pieces(2), digest=DIGEST)
    store.put(folder + "one", Pieces(), digest=DIGEST)
    assert store.get(folder + "one") == BODY
