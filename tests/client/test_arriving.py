"""A shard that is on its way to the node is read along."""

from __future__ import annotations

import pytest
from cachetier_client import Client, IntegrityError
from cachetier_client.io.digests import BLOCK_BYTES

from tests.client.fake_service import FakeService, Refusal
from tests.client.test_puts import patterned

SIZE_BYTES = 5 * BLOCK_BYTES + 10
DATA = patterned(SIZE_BYTES)


@pytest.fixture
def arriving(service: FakeService, client: Client) -> FakeService:
    service.inline_bytes = 1000
    client.put_shard(DATA, step=7, name="s")
    service.ops.clear()
    return service


def test_each_block_is_read_once_it_is_there(arriving: FakeService, client: Client) -> None:
    arriving.arrives = [{4}, {0, 2}, set(), {1, 3, 5}]

    assert client.get_shard(None, 7, "s") == DATA
    assert [header["known"] for header in arriving.ids("arrived")] == [0, 1, 3, 3]
    assert arriving.ops == ["open", *["arrived"] * 4]


def test_a_block_that_is_told_of_too_early_is_not_taken(
    arriving: FakeService, client: Client
) -> None:
    arriving.arrives = [{0}, {1, 2, 3, 4, 5}]
    arriving.lies_about = {3}

    assert client.get_shard(None, 7, "s") == DATA
    assert arriving.ops == ["open", "arrived", "arrived", "verify", "open"]
    assert "follow" not in arriving.ids("open")[-1]


def test_a_shard_that_arrives_no_longer_is_opened_again(
    arriving: FakeService, client: Client
) -> None:
    arriving.arrives = [{0, 1}]
    arriving.refusals["arrived"] = [Refusal("not_found", "not on its way")]

    assert client.get_shard(None, 7, "s") == DATA
    assert arriving.ops == ["open", "arrived", "open"]


def test_what_goes_wrong_on_its_way_is_raised(arriving: FakeService, client: Client) -> None:
    arriving.arrives = [{0, 1}]
    arriving.refusals["arrived"] = [Refusal("integrity", "the only copy is damaged")]

    with pytest.raises(IntegrityError, match="the only copy is damaged"):
        client.get_shard(None, 7, "s")


def test_a_lost_reply_is_asked_for_again(arriving: FakeService, client: Client) -> None:
    arriving.arrives = [{0, 1}, {0, 1}, {2, 3, 4, 5}]  # the second time from the first block on
    arriving.lost_replies = ["arrived"]

    assert client.get_shard(None, 7, "s") == DATA


def test_a_stream_waits_for_the_block_that_it_reads_and_no_other(
    arriving: FakeService, client: Client
) -> None:
    arriving.arrives = [{4}, {0}, {2}, {1, 3}, {5}]

    with client.open_shard(None, 7, "s", "rb") as reader:
        reader.seek(2 * BLOCK_BYTES)
        assert reader.read(BLOCK_BYTES) == DATA[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]
        assert len(arriving.ids("arrived")) == 3
        reader.seek(0)
        assert reader.read() == DATA
    assert arriving.ids("arrived")[-1]["known"] < 6


def test_parts_are_read_along_too(arriving: FakeService, client: Client) -> None:
    arriving.arrives = [{4}, {0}, {1, 3}]
    start = 4 * BLOCK_BYTES - 10

    with client.open_shard(None, 7, "s", "rb") as reader:
        reader.seek(start)
        assert reader.read(20) == DATA[start : start + 20]
    assert arriving.ids("arrived")[-1]["known"] <= 2
