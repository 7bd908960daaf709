"""Parts of several shards at once, through the real doors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cachetier_client import Client, NotFoundError, SizeMismatchError
from cachetier_client.io.digests import BLOCK_BYTES

from tests.integration.serving import Served, client_by, serving
from tests.integration.test_remote_ranges import (
    BLOCKS,
    SIZE_BYTES,
    UNTIL_RESTORED,
    Fetched,
    data,
    evict,
)

SMALL = b"some bytes that come along"


@pytest.fixture
def fetched() -> Fetched:
    return Fetched()


@pytest.fixture
def served(fetched: Fetched) -> Iterator[Served]:
    with serving(observe=fetched.observe) as service:
        with Client(service.unix_url, run="r") as client:
            client.put_shard([data()[:5], data()[5:]], step=1, name="x", save_id="s")
            client.put_shard(SMALL, step=1, name="y", save_id="s")
        yield service


@pytest.fixture(params=["unix", "http"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_by(request.param, served) as opened:
        yield opened


def drop_local(served: Served) -> None:
    served.drained("x", data())
    evict(served)


def read(client: Client, *places: tuple[int, int]) -> list[bytes]:
    """Read parts of the large shard, and of the small one, beside each other."""
    into = [(at, bytearray(size)) for at, size in places]
    small = bytearray(5)
    client.read_ranges("r", 1, {"x": into, "y": [(5, small)]})
    assert small == SMALL[5:10]
    return [bytes(buffer) for _, buffer in into]


PLACES = [(3, 10), (BLOCK_BYTES - 5, BLOCK_BYTES + 10), (SIZE_BYTES - 9, 9)]


def wanted() -> list[bytes]:
    return [data()[at : at + size] for at, size in PLACES]


def test_parts_of_local_shards(client: Client, fetched: Fetched) -> None:
    assert read(client, *PLACES) == wanted()
    assert read(client, (0, SIZE_BYTES)) == [data()]
    assert fetched.size_bytes == 0


def test_of_remote_shards_the_needed_blocks_alone_are_fetched(
    served: Served, client: Client, fetched: Fetched
) -> None:
    drop_local(served)
    fetched.size_bytes = 0

    assert read(client, *PLACES) == wanted()

    assert fetched.size_bytes == 4 * BLOCK_BYTES
    assert not served.data_files()


def test_a_remote_shard_that_is_wanted_whole_is_fetched_once(
    served: Served, fetched: Fetched
) -> None:
    drop_local(served)
    fetched.size_bytes = 0

    with Client(served.unix_url) as client:
        assert read(client, (0, SIZE_BYTES)) == [data()]

    assert fetched.size_bytes == SIZE_BYTES
    assert len(served.data_files()) == 1


def test_what_was_told_ahead_is_not_counted_twice(served: Served, fetched: Fetched) -> None:
    drop_local(served)
    fetched.size_bytes = 0
    places = [(number * BLOCK_BYTES, 1) for number in range(UNTIL_RESTORED - 1)]

    with Client(served.unix_url) as client:
        assert read(client, *places) == [data()[at : at + 1] for at, _ in places]

    assert fetched.size_bytes == len(places) * BLOCK_BYTES
    assert not served.data_files()


def test_without_room_for_the_whole_every_byte_still_comes(
    served: Served, client: Client, fetched: Fetched
) -> None:
    drop_local(served)
    space = served.service.store.space
    space.account(space.capacity_bytes)

    got = read(client, (0, BLOCKS // 2 * BLOCK_BYTES))
    space.release(space.capacity_bytes)

    assert got == [data()[: BLOCKS // 2 * BLOCK_BYTES]]
    assert not served.data_files()


def test_a_damaged_file_is_taken_out_of_use_and_the_bucket_read(
    served: Served, fetched: Fetched
) -> None:
    served.drained("x", data())
    (file,) = served.data_files()
    with file.open("r+b") as damaged:
        damaged.seek(2 * BLOCK_BYTES)
        damaged.write(bytes([data()[2 * BLOCK_BYTES] ^ 1]))
    fetched.size_bytes = 0

    with Client(served.unix_url) as client:
        assert read(client, (0, 3 * BLOCK_BYTES)) == [data()[: 3 * BLOCK_BYTES]]

    assert fetched.size_bytes >= BLOCK_BYTES
    assert file not in served.data_files()


def test_what_is_not_there_is_told_by_its_name(client: Client) -> None:
    with pytest.raises(SizeMismatchError, match="shard=x"):
        read(client, (SIZE_BYTES - 1, 2))
    with pytest.raises(NotFoundError, match="shard=z"):
        client.read_ranges("r", 1, {"z": [(0, bytearray(1))]})
