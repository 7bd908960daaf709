"""CRC-64/NVME of blocks and of wholes."""

from __future__ import annotations

import pytest
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

CHECK = 0xAE8B14860A799888  # of b"123456789", as the algorithm's catalogue has it


def test_the_algorithm_is_the_one_that_s3_calls_crc64nvme() -> None:
    assert digests.digest_of(b"123456789") == CHECK
    assert digests.digest_of(b"6789", digests.digest_of(b"12345")) == CHECK


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES])
def test_block_digests_combine_to_the_wholes(size_bytes: int) -> None:
    data = bytes(range(256)) * (size_bytes // 256 + 1)
    data = data[:size_bytes]
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, size_bytes, BLOCK_BYTES)]

    assert [len(block) for block in blocks] == digests.block_lengths(size_bytes)
    taken = [digests.digest_of(block) for block in blocks]
    assert digests.combine(taken, size_bytes) == digests.digest_of(data)
    assert digests.unpack(digests.pack(taken)) == tuple(taken)


def test_an_empty_shard_has_the_digest_zero() -> None:
    assert digests.to_hex(digests.combine((), 0)) == "0" * 16


def test_a_wrong_number_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="1 blocks, but 2 digests"):
        digests.combine((1, 2), 10)


@pytest.mark.parametrize(
    "text", ["", "0", "G" * 16, "A" * 16, "0" * 17, "+" + "0" * 15, "\u0660" * 16]
)
def test_hex_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="16 lower-case hex digits"):
        digests.from_hex(text)


def test_hex_goes_there_and_back() -> None:
    assert digests.from_hex(digests.to_hex(CHECK)) == CHECK


def test_packed_digests_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of eight"):
        digests.unpack(b"1234567")
