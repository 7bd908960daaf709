"""Several buffers stored one after another as one shard."""

from __future__ import annotations

import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cachetier_client import Client, InvalidRequestError
from cachetier_client.io.aligned import PAGE_BYTES, address_of, aligned_memory
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.fake_http import FakeHttpService
from tests.client.fake_service import FakeService
from tests.client.fakes import FaultyFiles, RecordingFiles
from tests.client.test_puts import kept, patterned

SHARED = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
NEAR_EDGES = st.builds(
    lambda edge, near: max(0, edge + near),
    st.sampled_from([0, PAGE_BYTES, 65536, BLOCK_BYTES, 2 * BLOCK_BYTES]),
    st.integers(-3, 3),
)
CUTS = st.lists(NEAR_EDGES | st.integers(0, 2 * BLOCK_BYTES + 9), max_size=12)
SIZES = NEAR_EDGES | st.integers(0, 2 * BLOCK_BYTES + 9)


def split(data: bytes, cuts: list[int], shift: int) -> list[memoryview]:
    """Cut data, each piece into memory of its own, ``shift`` bytes into a page."""
    ends = [*sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = []
    for start, end in zip([0, *ends], ends, strict=False):
        room = aligned_memory(shift + end - start)
        pieces.append(room[shift : shift + end - start])
        pieces[-1][:] = data[start:end]
    return pieces


@SHARED
@given(size_bytes=SIZES, cuts=CUTS, shift=st.sampled_from([0, 1, 64, 512]))
def test_any_split_gives_the_shard_of_the_joined_bytes(
    service: FakeService, client: Client, size_bytes: int, cuts: list[int], shift: int
) -> None:
    data = patterned(size_bytes)

    receipt = client.put_shard(split(data, cuts, shift), step=7, name="s")

    assert kept(service) == data
    assert (receipt.size_bytes, receipt.digest) == (size_bytes, to_hex(digest_of(data)))


@contextmanager
def over_http() -> Iterator[tuple[FakeHttpService, Client]]:
    with FakeHttpService().running() as fake, Client(fake.url, run="a-run") as client:
        yield fake, client


@pytest.fixture(scope="module")
def http() -> Iterator[tuple[FakeHttpService, Client]]:
    with over_http() as both:
        yield both


@SHARED
@given(size_bytes=SIZES, cuts=CUTS)
def test_over_http_too(
    http: tuple[FakeHttpService, Client], size_bytes: int, cuts: list[int]
) -> None:
    service, client = http
    data = patterned(size_bytes)

    receipt = client.put_shard(split(data, cuts, 0), step=7, name="s")

    assert service.shards["/v1/runs/a-run/steps/7/shards/s"] == data
    assert receipt.digest == to_hex(digest_of(data))


@given(size_bytes=SIZES, cuts=CUTS)
@settings(max_examples=25)
def test_blocks_are_those_of_the_joined_bytes(size_bytes: int, cuts: list[int]) -> None:
    data = patterned(size_bytes)

    shard = Gathered(split(data, cuts, 0))

    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    assert [bytes(block.joined()) for block in shard.blocks()] == blocks
    assert [block.digest() for block in shard.blocks()] == [digest_of(block) for block in blocks]
    assert (len(shard), shard.digest(), bytes(shard.joined())) == (
        size_bytes,
        digest_of(data),
        data,
    )


def test_thousands_of_tiny_buffers_make_one_shard(service: FakeService, client: Client) -> None:
    data = patterned(BLOCK_BYTES + 999)

    client.put_shard([data[at : at + 77] for at in range(0, len(data), 77)], step=7, name="s")

    assert kept(service) == data


def test_a_full_cache_gets_the_blocks_in_order(service: FakeService, client: Client) -> None:
    service.plane = "stream"
    data = patterned(2 * BLOCK_BYTES + 3)

    client.put_shard(split(data, [100, BLOCK_BYTES + 1], 0), step=7, name="s")

    assert kept(service) == data
    assert service.ops.count("block") == 3


def test_a_block_inside_one_buffer_is_written_from_where_it_is(service: FakeService) -> None:
    files = RecordingFiles()
    first, second = aligned_memory(2 * BLOCK_BYTES), aligned_memory(BLOCK_BYTES)

    with Client(service.url, run="a-run", files=files) as client:
        client.put_shard([first, second], step=7, name="s")

    starts = [address_of(first), address_of(first) + BLOCK_BYTES, address_of(second)]
    assert sorted(files.written_from) == sorted(starts)


def test_without_direct_io_the_bytes_arrive_too(service: FakeService) -> None:
    files = FaultyFiles(refuses_direct=True)
    data = patterned(BLOCK_BYTES + 70_000)

    with Client(service.url, run="a-run", files=files) as client:
        client.put_shard(split(data, [5, 4_000_000], 0), step=7, name="s")

    assert kept(service) == data
    assert files.fired == 1


def test_a_put_whose_service_goes_away_is_sent_again_from_the_same_memory(
    service: FakeService, client: Client
) -> None:
    data = patterned(BLOCK_BYTES + 70_000)
    service.hang_ups.append("commit")

    client.put_shard(split(data, [5, 4_000_000], 0), step=7, name="s")

    assert kept(service) == data
    assert service.ops.count("begin") == 2


@pytest.mark.torch
def test_buffers_of_any_kind_go_together(service: FakeService, client: Client) -> None:
    with client.checkpoint(None, 7) as checkpoint:
        receipt = checkpoint.put(
            (torch.ones(3, dtype=torch.bfloat16), b"", np.arange(2), b"x"), "s"
        )

    assert receipt.size_bytes == 6 + 16 + 1
    assert kept(service).endswith(np.arange(2).tobytes() + b"x")


def test_no_buffers_are_an_empty_shard(service: FakeService, client: Client) -> None:
    assert client.put_shard([], step=7, name="s").size_bytes == 0
    assert kept(service) == b""


@pytest.mark.parametrize(
    ("data", "size_bytes"),
    [
        ([array.array("f", [1.0]), array.array("f")], 4),
        ([array.array("f", [1.0]), array.array("d", [1.0])], None),
        ([array.array("f", [1.0]), b"four"], None),
        ([b"four"], None),
        ([], None),
    ],
)
def test_the_size_of_values_is_known_where_all_buffers_agree(
    service: FakeService, client: Client, data: list[Any], size_bytes: int | None
) -> None:
    client.put_shard(data, step=7, name="s")
    client.put_shard([b"ab", b"cd"], step=7, name="told", element_size=4)

    assert [header["element_size"] for header in service.ids("put")] == [size_bytes, 4]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([b"x", 5], "buffer 1 of the list: int has no bytes"),
        ([b"x", "text"], r"buffer 1 of the list: a str.*pathlib"),
        ([[b"x"]], "buffer 0 of the list: list has no bytes"),
        ([Path("file")], "buffer 0 of the list is a file"),
        ((b"x", np.zeros((2, 3)).T), r"buffer 1.*ascontiguousarray"),
    ],
)
def test_what_is_not_memory_is_refused_by_its_place_in_the_list(
    service: FakeService, client: Client, data: Any, match: str
) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        client.put_shard(data, step=7, name="s")

    assert not service.ops


def test_values_that_do_not_fill_the_shard_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="3 bytes are not whole elements of 2"):
        client.put_shard([b"ab", b"c"], step=7, name="s", element_size=2)
