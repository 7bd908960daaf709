"""Shards written as streams."""

from __future__ import annotations

import errno
import gc
import itertools
import pickle
import warnings

import pytest
from cachetier_client import (
    BackpressureError,
    Client,
    InvalidRequestError,
    ServiceUnavailableError,
    StagedIOError,
)
from cachetier_client.io.digests import BLOCK_BYTES

from tests.client.fake_service import FakeService
from tests.client.fakes import FaultyFiles
from tests.client.test_puts import SIZES, kept, patterned


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("piece_bytes", [70_000, 1 << 30])
def test_a_stream_of_any_length_and_pace_arrives_whole(
    service: FakeService, client: Client, size_bytes: int, piece_bytes: int
) -> None:
    data = patterned(size_bytes)

    with client.open_shard("a-run", 7, "s") as stream:
        for start in range(0, size_bytes, piece_bytes):
            stream.write(data[start : start + piece_bytes])
            assert stream.tell() == min(size_bytes, start + piece_bytes)

    assert kept(service) == data
    assert stream.receipt is not None
    assert stream.receipt.size_bytes == size_bytes
    assert stream.closed


def test_room_is_asked_for_ahead_in_growing_steps(service: FakeService, client: Client) -> None:
    with client.open_shard("a-run", 7, "s") as stream:
        stream.write(patterned(40 * 1_000_000))

    asked = [header["reserved_bytes"] for header in service.ids("extend")]
    steps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert steps == sorted(steps)
    assert 1 <= len(asked) < 8
    assert service.ids("begin")[0]["size_bytes"] is None


def test_where_there_is_no_room_ahead_just_enough_is_asked_for(
    service: FakeService, client: Client
) -> None:
    data = patterned(7 * 1_000_000)
    service.capacity_bytes = len(data)

    with client.open_shard("a-run", 7, "s") as stream:
        stream.write(data)

    assert kept(service) == data
    patience = [header["timeout_seconds"] for header in service.ids("extend")]
    assert patience[0] == 0.0  # for more than is needed nobody waits
    assert patience[1] > 0.0


def test_where_there_is_no_room_at_all_the_stream_leaves_nothing(
    service: FakeService, client: Client
) -> None:
    service.capacity_bytes = 6 << 20

    with pytest.raises(BackpressureError):
        with client.open_shard("a-run", 7, "s") as stream:
            stream.write(patterned(12 << 20))

    assert not service.shards
    assert not service.staged


def test_an_exception_inside_leaves_nothing(service: FakeService, client: Client) -> None:
    with pytest.raises(ZeroDivisionError):
        with client.open_shard("a-run", 7, "s") as stream:
            stream.write(patterned(9_000_000))
            raise ZeroDivisionError

    assert not service.shards
    assert "abort" in service.ops
    assert not service.staged


def test_a_stream_that_failed_does_not_close_as_if_it_had_not(service: FakeService) -> None:
    files = FaultyFiles(write_error=errno.EIO)
    with Client(service.url, run="a-run", files=files) as client:
        stream = client.open_shard("a-run", 7, "s")
        with pytest.raises(StagedIOError):
            for _ in range(8):
                stream.write(patterned(BLOCK_BYTES))

        with pytest.raises(InvalidRequestError, match="kept nothing"):
            stream.close()

    assert files.fired >= 1
    assert not service.shards


def test_a_closed_stream_takes_no_more(client: Client) -> None:
    with client.open_shard("a-run", 7, "s") as stream:
        stream.write(b"x")
    stream.close()

    with pytest.raises(InvalidRequestError, match="closed"):
        stream.write(b"y")


def test_a_stream_that_is_dropped_warns_and_leaves_nothing(
    service: FakeService, client: Client
) -> None:
    stream = client.open_shard("a-run", 7, "s")
    stream.write(patterned(9_000_000))

    with pytest.warns(ResourceWarning, match="never closed"):
        del stream
        gc.collect()

    assert not service.shards


def test_libraries_that_write_to_files_write_to_it(service: FakeService, client: Client) -> None:
    value = {"weights": list(range(1000))}

    with client.open_shard("a-run", 7, "s") as stream:
        pickle.dump(value, stream)

    with client.open_shard("a-run", 7, "s", "rb") as back:
        assert pickle.load(back) == value
    assert (stream.writable(), stream.readable(), stream.seekable()) == (True, False, False)
    assert not hasattr(stream, "fileno")


def test_a_stream_into_a_full_cache_sends_its_blocks_in_order(
    service: FakeService, client: Client
) -> None:
    service.plane = "stream"
    data = patterned(3 * BLOCK_BYTES + 17)

    with client.open_shard("a-run", 7, "s") as stream:
        stream.write(data)

    assert kept(service) == data
    assert service.ops.count("block") == 4


def test_a_service_that_goes_away_under_a_stream_is_told_with_its_ids(
    service: FakeService, client: Client
) -> None:
    stream = client.open_shard("a-run", 7, "s")
    stream.write(patterned(BLOCK_BYTES + 1))
    stream.write(patterned(BLOCK_BYTES))
    service.hang_ups.append("commit")

    with pytest.raises(ServiceUnavailableError, match="open_shard run=a-run step=7 rank=0 shard=s"):
        stream.close()


def test_a_short_stream_outlives_a_service_that_was_away(
    service: FakeService, client: Client
) -> None:
    with client.open_shard("a-run", 7, "s") as stream:
        stream.write(b"short")
        service.hang_ups.append("put")

    assert kept(service) == b"short"


def test_a_mode_there_is_not_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="neither"):
        client.open_shard("a-run", 7, "s", "r+b")  # type: ignore[call-overload]


def test_nothing_warns_on_the_ordinary_way(client: Client) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with client.open_shard("a-run", 7, "s") as stream:
            stream.write(b"x")
        del stream
        gc.collect()
