"""Parts of a shard that is only remote are read without bringing all of it back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client, IntegrityError
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.local.catalog import shards
from cachetier.remote.wrapped import Operation
from tests.fakes.bodies import noise
from tests.integration.serving import Served, client_by, serving, shard_path
from tests.integration.test_cli import run
from tests.integration.test_unix_door import Rank

MIB = 1 << 20
BLOCKS = 20
SIZE_BYTES = BLOCKS * BLOCK_BYTES
MIDDLE = SIZE_BYTES // 2 - 1000  # its first block ends soon
UNTIL_RESTORED = BLOCKS // 4


def data() -> bytes:
    return noise(SIZE_BYTES)


class Fetched:
    """Counts what leaves the remote."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def observe(self, operation: Operation, _seconds: float, size_bytes: int, outcome: str) -> None:
        if operation in ("get", "read_into") and outcome == "ok":
            self.size_bytes += size_bytes


@pytest.fixture
def fetched() -> Fetched:
    return Fetched()


@pytest.fixture
def served(fetched: Fetched) -> Iterator[Served]:
    with serving(observe=fetched.observe) as service:
        with Client(service.unix_url) as client:
            client.put_shard(data(), run="r", step=1, name="x", save_id="s")
        service.drained("x", data())
        evict(service)
        yield service


@pytest.fixture(params=["unix", "http"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[Client]:
    with client_by(request.param, served) as opened:
        yield opened


def evict(served: Served) -> None:
    store = served.service.store
    for shard in store.read(shards.clean_local_shards):
        assert store.evict(shard)
    assert not served.data_files()


def test_a_range_fetches_only_the_blocks_that_hold_it(
    served: Served, client: Client, fetched: Fetched
) -> None:
    with client.open_shard("r", 1, "x", "rb") as reader:
        assert reader.size_bytes == SIZE_BYTES
        reader.seek(MIDDLE)
        assert reader.read(MIB) == data()[MIDDLE : MIDDLE + MIB]

    assert 0 < fetched.size_bytes <= 2 * BLOCK_BYTES
    assert not served.data_files()
    lines = served.call("GET", "/metrics").body.decode().splitlines()
    (counted,) = (each for each in lines if each.startswith("cachetier_range_read_bytes_total "))
    assert float(counted.split()[1]) == fetched.size_bytes


def test_the_rest_of_a_block_that_was_read_is_not_fetched_again(
    client: Client, fetched: Fetched
) -> None:
    with client.open_shard("r", 1, "x", "rb") as reader:
        for at in range(0, BLOCK_BYTES, MIB):
            assert reader.read(MIB) == data()[at : at + MIB]

    assert fetched.size_bytes == BLOCK_BYTES


def test_a_shard_of_which_a_quarter_was_read_is_brought_back(
    served: Served, client: Client, fetched: Fetched
) -> None:
    with client.open_shard("r", 1, "x", "rb") as reader:
        whole = b"".join(iter(lambda: reader.read(BLOCK_BYTES), b""))

    assert whole == data()
    assert fetched.size_bytes == SIZE_BYTES + (UNTIL_RESTORED - 1) * BLOCK_BYTES
    assert len(served.data_files()) == 1


def test_who_says_that_all_will_be_read_fetches_nothing_twice(
    client: Client, fetched: Fetched
) -> None:
    with client.open_shard("r", 1, "x", "rb", restore=True) as reader:
        assert reader.read() == data()

    assert fetched.size_bytes == SIZE_BYTES


def test_small_reads_of_one_shard_add_up_whoever_reads(served: Served, client: Client) -> None:
    for number in range(UNTIL_RESTORED):
        with client.open_shard("r", 1, "x", "rb") as reader:
            reader.seek(number * BLOCK_BYTES)
            assert reader.read(10) == data()[number * BLOCK_BYTES :][:10]

    assert len(served.data_files()) == 1


def test_without_room_to_restore_every_byte_still_comes(
    served: Served, client: Client, fetched: Fetched
) -> None:
    space = served.service.store.space
    space.account(space.capacity_bytes)
    with client.open_shard("r", 1, "x", "rb", timeout_seconds=30.0) as reader:
        read = reader.read(UNTIL_RESTORED * BLOCK_BYTES)
    space.release(space.capacity_bytes)

    assert read == data()[: len(read)]
    assert fetched.size_bytes == len(read) == UNTIL_RESTORED * BLOCK_BYTES


def test_a_damaged_block_is_an_error_and_the_others_are_not(served: Served, client: Client) -> None:
    damaged = bytearray(data())
    damaged[MIDDLE] ^= 1
    served.objects.put("p/r/1/x", bytes(damaged), digest=digest_of(damaged))

    with client.open_shard("r", 1, "x", "rb") as reader:
        assert reader.read(10) == data()[:10]
        reader.seek(MIDDLE)
        with pytest.raises(IntegrityError):
            reader.read(10)


def test_a_shard_replaced_while_it_is_read_is_not_mixed(served: Served, client: Client) -> None:
    with client.open_shard("r", 1, "x", "rb") as reader:
        assert reader.read(10) == data()[:10]
        with Client(served.unix_url) as other:
            other.put_shard(data()[::-1], run="r", step=1, name="x", save_id="s")
        reader.seek(MIDDLE)
        with pytest.raises(IntegrityError, match="replaced"):
            reader.read(10)


def test_http_ranges_fetch_their_blocks(served: Served, fetched: Fetched) -> None:
    wanted = {"Range": f"bytes={MIDDLE}-{MIDDLE + MIB - 1}"}
    answer = served.call("GET", shard_path("x"), headers=wanted)

    assert (answer.status, answer.body) == (206, data()[MIDDLE : MIDDLE + MIB])
    assert answer.headers["cachetier-source"] == "remote"
    assert fetched.size_bytes == 2 * BLOCK_BYTES
    assert not served.data_files()


def test_an_http_range_of_most_of_a_shard_brings_it_back(served: Served) -> None:
    wanted = {"Range": f"bytes={MIDDLE}-"}
    answer = served.call("GET", shard_path("x"), headers=wanted)

    assert (answer.status, answer.body) == (206, data()[MIDDLE:])
    assert len(served.data_files()) == 1


def test_an_http_range_may_ask_for_the_whole_to_be_kept(served: Served) -> None:
    answer = served.call("GET", f"{shard_path('x')}?restore=true", headers={"Range": "bytes=0-9"})

    assert (answer.status, answer.body) == (206, data()[:10])
    assert len(served.data_files()) == 1


@pytest.mark.parametrize("block", [BLOCKS, 1 << 40, -1, "1", None, True, 0.5])
def test_a_block_that_is_not_there_is_refused(served: Served, block: object) -> None:
    rank = Rank(Path(served.service.socket))

    assert rank.refusal("read_block", run="r", step=1, name="x", block=block) == "invalid_request"
    rank.close()


def test_a_block_of_a_local_shard_is_answered_with_its_file(served: Served) -> None:
    rank = Rank(Path(served.service.socket))
    assert served.call("GET", shard_path("x")).body == data()

    frame = rank.frame("read_block", run="r", step=1, name="x", block=3)

    rank.close()
    assert frame.descriptor is not None
    assert os.pread(frame.descriptor, 10, 0) == data()[:10]
    os.close(frame.descriptor)


def test_an_unknown_wish_to_restore_is_refused(served: Served) -> None:
    answer = served.call("GET", f"{shard_path('x')}?restore=perhaps")

    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("part", "start", "end"),
    [("5-14", 5, 15), (f"{SIZE_BYTES - 5}-", SIZE_BYTES - 5, SIZE_BYTES), ("-3", -3, SIZE_BYTES)],
)
def test_the_command_line_gets_a_part(
    served: Served, fetched: Fetched, part: str, start: int, end: int
) -> None:
    got = run(served, "get", "r", "1", "--name", "x", "--range", part)

    assert (got.code, got.bytes) == (0, data()[start:end])
    assert fetched.size_bytes == BLOCK_BYTES


@pytest.mark.parametrize("part", ["", "-", "x", "9-5", f"{SIZE_BYTES}-", "1-2,5-6", "-0"])
def test_a_part_that_is_none_is_refused(served: Served, part: str) -> None:
    got = run(served, "get", "r", "1", "--name", "x", "--range", part)

    assert (got.code, got.bytes) == (2, b"")
    assert "FIRST-LAST" in got.err
