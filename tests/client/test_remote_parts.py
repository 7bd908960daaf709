"""Parts of a shard that the service leaves remote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cachetier_client import Client, IntegrityError, SizeMismatchError
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.streams.reader import ShardReader

from tests.client.fake_service import FakeService
from tests.client.test_puts import patterned

SIZE_BYTES = 5 * BLOCK_BYTES + 10


@pytest.fixture
def reader(service: FakeService, client: Client) -> Iterator[ShardReader]:
    service.inline_bytes = 1000
    client.put_shard(patterned(SIZE_BYTES), step=7, name="s")
    service.ops.clear()
    service.blocks_until_restored = 3
    with client.open_shard(None, 7, "s", "rb") as opened:
        yield opened


def read_at(reader: ShardReader, at: int, size_bytes: int = 10) -> bytes:
    reader.seek(at)
    return reader.read(size_bytes) or b""


def test_a_block_is_asked_for_once_and_alone(service: FakeService, reader: ShardReader) -> None:
    for at in (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 10, 3 * BLOCK_BYTES - 10):
        assert read_at(reader, at) == patterned(SIZE_BYTES)[at : at + 10]

    assert [header["block"] for header in service.ids("read_block")] == [2]


def test_reading_goes_on_with_the_file_once_the_shard_is_brought_back(
    service: FakeService, reader: ShardReader
) -> None:
    pieces = [reader.read(BLOCK_BYTES) for _ in range(5)]  # one at a time: in the caller's thread

    assert b"".join(pieces) + reader.read() == patterned(SIZE_BYTES)
    assert service.ops == ["open", "read_block", "read_block", "read_block"]


def test_a_whole_read_in_many_threads_goes_on_with_the_file_too(
    service: FakeService, reader: ShardReader
) -> None:
    assert reader.read() == patterned(SIZE_BYTES)

    assert 3 <= service.ops.count("read_block") <= 6  # those under way when it was brought back


def test_a_lost_reply_is_asked_for_again(service: FakeService, reader: ShardReader) -> None:
    service.lost_replies = ["read_block"]

    assert read_at(reader, BLOCK_BYTES) == patterned(SIZE_BYTES)[BLOCK_BYTES:][:10]
    assert not service.lost_replies


@pytest.mark.parametrize(
    "spoil",
    [lambda block: block[:-1], lambda block: bytes([block[0] ^ 1]) + block[1:], lambda _block: b""],
    ids=["cut off", "one bit", "empty"],
)
def test_a_block_that_changed_on_its_way_is_never_data(
    service: FakeService, reader: ShardReader, spoil: object
) -> None:
    service.spoil = spoil  # type: ignore[assignment]

    with pytest.raises(IntegrityError, match="changed on their way"):
        read_at(reader, 0)


@pytest.mark.parametrize("left", [1, 3])
def test_a_shard_that_was_replaced_is_not_mixed_with_the_first(
    service: FakeService, client: Client, reader: ShardReader, left: int
) -> None:
    assert read_at(reader, 0) == patterned(SIZE_BYTES)[:10]
    client.put_shard(patterned(SIZE_BYTES)[::-1], step=7, name="s")
    service.blocks_until_restored = left  # 1: the next answer is the new shard's file

    with pytest.raises(IntegrityError, match="replaced"):
        read_at(reader, BLOCK_BYTES)


def test_a_whole_get_has_the_shard_brought_back(service: FakeService, client: Client) -> None:
    client.put_shard(patterned(SIZE_BYTES), step=7, name="s")
    service.blocks_until_restored = 3

    assert client.get_shard(None, 7, "s") == patterned(SIZE_BYTES)
    assert [header["restore"] for header in service.ids("open")] == [True]
    with pytest.raises(SizeMismatchError):
        client.get_shard(None, 7, "s", out=bytearray(1))
