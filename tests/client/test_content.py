"""What a put says of its bytes: digests of blocks that belong to the whole."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Content
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import CachetierError
from tests.stateful.node import content_of


@pytest.mark.parametrize("size", [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_blocks_are_described_at_every_edge(size: int) -> None:
    content = content_of(bytes(size))

    content.checked()
    assert len(content.block_digests) == -(-size // BLOCK_BYTES)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (Content(10, 1, (2,)), "digest_mismatch"),
        (Content(10, 0, ()), "size_mismatch"),
        (Content(0, 0, (1,)), "size_mismatch"),
        (Content(BLOCK_BYTES + 1, 1, (1,)), "size_mismatch"),
        (Content(1 << 60, 1, (1,)), "size_mismatch"),
        (Content(1 << 2000, 1, ()), "size_mismatch"),
    ],
    ids=["digest", "no blocks", "a block of nothing", "too few", "huge", "absurd"],
)
def test_a_description_that_contradicts_itself_is_refused_at_once(
    content: Content, code: str
) -> None:
    with pytest.raises(CachetierError) as refusal:
        content.checked()
    assert refusal.value.code == code
