"""What finished parts are worth: only an unbroken row of them, and what object they make."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame, table_bytes
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.drain.upload.journal import (
    Journal,
    contiguous,
    is_whole,
    sent_before,
    stored_of,
)
from cachetier.local.catalog.rows import UploadRecord

CONTENT = Content(3 * BLOCK_BYTES, 1, (1, 2, 3))
BODIES = [b"a" * 100 + b"b" * 200, b"c" * 300 + b"t" * table_bytes(3)]


def frames(*sizes: int) -> tuple[StoredFrame, ...]:
    return tuple(StoredFrame(size, size) for size in sizes)


def sent(number: int, body: bytes, first_block: int, *sizes: int) -> UploadedPart:
    raw = first_block * BLOCK_BYTES, len(sizes) * BLOCK_BYTES, frames(*sizes)
    return UploadedPart(number, "etag", len(body), digest_of(body), *raw)


FIRST = sent(1, BODIES[0], 0, 100, 200)
LAST = sent(2, BODIES[1], 2, 300)


def recorded(*parts: UploadedPart, codec: Codec = Codec.ZSTD) -> Journal:
    """Return the journal of an upload that was begun with frames."""
    journal = Journal(UploadRecord("upload", 16, codec))
    for part in parts:
        journal.part_done(part)
    return journal


def test_parts_make_the_object_that_was_sent() -> None:
    stored = stored_of(Codec.ZSTD, [LAST, FIRST], CONTENT)

    whole = b"".join(BODIES)
    assert stored == Stored(Codec.ZSTD, len(whole), digest_of(whole), frames(100, 200, 300))
    assert is_whole(stored, CONTENT)
    assert sent_before(recorded(LAST, FIRST), CONTENT) == stored


def test_raw_parts_make_the_shard_itself() -> None:
    assert stored_of(Codec.RAW, [FIRST], CONTENT) == Stored.raw(CONTENT)


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ([], []),
        ([LAST], []),
        ([LAST, FIRST], [FIRST, LAST]),
        ([FIRST, sent(3, BODIES[1], 2, 300)], [FIRST]),
        ([FIRST, sent(2, BODIES[1], 1, 300)], [FIRST]),
        ([FIRST, sent(2, BODIES[1], 3, 300)], [FIRST]),
    ],
    ids=["none", "no first", "in any order", "a gap", "an overlap", "a hole"],
)
def test_only_an_unbroken_row_counts(parts: list[UploadedPart], kept: list[UploadedPart]) -> None:
    assert contiguous(parts) == kept


@pytest.mark.parametrize(
    "progress",
    [
        recorded(FIRST),
        recorded(),
        Journal(),
        recorded(FIRST, LAST, codec=Codec.RAW),
        recorded(FIRST, sent(2, BODIES[1][:-1], 2, 300)),
    ],
    ids=["half", "none", "no upload", "raw", "no whole table"],
)
def test_what_is_not_known_to_the_end_is_not_known(progress: Journal) -> None:
    assert sent_before(progress, CONTENT) is None
