"""A client that saves without its service writes what the service does."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import (
    judge_existing,
    object_metadata,
    upload_part_bytes_for,
)
from cachetier_client.fallback.direct import uploads as their_uploads
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

MINE = "mine"


def test_objects_say_of_themselves_what_the_drains_do() -> None:
    content = Content(5, digest_of(b"bytes"), (digest_of(b"bytes"),))
    target = their_uploads.DirectTarget.of("key", SaveIds("run", 7, MINE, 0, 2), content)
    drains = object_metadata(MINE, "a-store", 1, content)
    assert target.metadata.keys() == drains.keys()
    verdict = judge_existing(target.metadata, content.size_bytes, drains, content.size_bytes)
    assert verdict.name == "OURS"


@pytest.mark.parametrize("size_bytes", [0, 1, 16 << 20, 10_000 * (16 << 20) + 1, 600 << 30])
def test_both_sides_cut_a_shard_into_the_same_parts(size_bytes: int) -> None:
    assert their_uploads.upload_part_bytes_for(size_bytes) == upload_part_bytes_for(size_bytes)


def test_the_parts_of_a_stream_grow_so_that_ten_thousand_hold_any_shard() -> None:
    sizes = [their_uploads.upload_part_bytes_for(None, sent) for sent in range(10_000)]
    assert sizes[0] == sizes[999] == 16 << 20
    assert sizes == sorted(sizes)
    assert sum(sizes) > 10_000 * (64 << 20)
