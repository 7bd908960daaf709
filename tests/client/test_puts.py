"""Shards on their way in over the socket."""

from __future__ import annotations

import array
import errno
import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import (
    BackpressureError,
    Client,
    DigestMismatchError,
    InvalidNameError,
    InvalidRequestError,
    NotDurableError,
    OpenForWritingError,
    StagedIOError,
)
from cachetier_client.io import aligned as memory
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex

from tests.client.fake_service import FakeService, Refusal
from tests.client.fakes import FaultyFiles

PATTERN = random.Random(7).randbytes(299_993)
SIZES = (0, 1, 511, 65536, 65537, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 9_000_001)


def patterned(size_bytes: int) -> bytes:
    """Return bytes that differ from block to block."""
    return (PATTERN * (size_bytes // len(PATTERN) + 1))[:size_bytes]


def kept(service: FakeService, name: str = "s") -> bytes:
    return service.shards["a-run", 7, name].content


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_shard_of_any_size_arrives_whole(
    service: FakeService, client: Client, size_bytes: int
) -> None:
    data = patterned(size_bytes)

    receipt = client.put_shard(data, step=7, name="s")

    assert kept(service) == data
    assert receipt.size_bytes == size_bytes
    assert receipt.digest == to_hex(digest_of(data))
    assert receipt.level == "local"
    assert receipt.save_id == service.shards["a-run", 7, "s"].header["save_id"]


@pytest.mark.parametrize("offset", [0, 1, 64, 512, 4095])
def test_memory_at_any_address_is_stored_as_it_is(
    service: FakeService, client: Client, offset: int
) -> None:
    data = patterned(BLOCK_BYTES + 70_000)
    room = memory.aligned_memory(len(data) + offset)
    room[offset : offset + len(data)] = data

    client.put_shard(room[offset : offset + len(data)], step=7, name="s")

    assert kept(service) == data


def test_a_small_shard_is_one_request(service: FakeService, client: Client) -> None:
    client.put_shard(b"first", step=7, name="s")
    service.ops.clear()

    client.put_shard(b"small", step=7, name="s")

    assert service.ops == ["put"]


def test_a_large_shard_carries_its_ids_and_what_the_service_may_spend(
    service: FakeService, client: Client
) -> None:
    client.put_shard(bytes(70_000), step=7, name="s", rank=1, world_size=2, save_id="one")

    (begun,) = service.ids("begin")
    assert begun["timeout_seconds"] < 60.0
    wanted = {"run": "a-run", "step": 7, "rank": 1, "world_size": 2, "save_id": "one"}
    assert wanted.items() <= begun.items()
    assert begun["overwrite"] is False


@pytest.mark.parametrize("count", [10, 70_000])
def test_the_size_of_values_goes_along_where_it_is_known(
    service: FakeService, client: Client, count: int, tmp_path: Path
) -> None:
    data = array.array("f", bytes(4 * count))
    file = tmp_path / "weights"
    file.write_bytes(data.tobytes())

    client.put_shard(data, step=7, name="typed")
    client.put_shard(data, step=7, name="told", element_size=2)
    client.put_shard(data.tobytes(), step=7, name="untyped")
    client.put_shard(file, step=7, name="file", element_size=4)
    with client.open_shard(None, 7, "stream", element_size=8) as stream:
        stream.write(bytes(8 * count))

    told = {name: shard.header["element_size"] for (_, _, name), shard in service.shards.items()}
    assert told == {"typed": 4, "told": 2, "untyped": None, "file": 4, "stream": 8}


def test_a_file_that_is_not_whole_values_is_refused(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "odd").write_bytes(b"xyz")

    with pytest.raises(InvalidRequestError, match="whole elements"):
        client.put_shard(tmp_path / "odd", step=7, name="s", element_size=2)

    assert not service.ops


@pytest.mark.parametrize(
    "files",
    [
        FaultyFiles(refuses_direct=True),
        FaultyFiles(refuses_direct_writes=True),
    ],
    ids=["flag refused", "first write refused"],
)
def test_where_direct_io_is_refused_the_bytes_go_through_the_page_cache_and_are_synced(
    service: FakeService, files: FaultyFiles
) -> None:
    data = patterned(3 * BLOCK_BYTES + 5)

    with Client(service.url, run="a-run", files=files) as client:
        client.put_shard(data, step=7, name="s")

    assert kept(service) == data
    assert files.fired == 1
    assert files.syncs == 1


def test_short_writes_are_continued(service: FakeService) -> None:
    files = FaultyFiles(longest_write=1 << 20)
    data = patterned(2 * BLOCK_BYTES + 100)

    with Client(service.url, run="a-run", files=files) as client:
        client.put_shard(data, step=7, name="s")

    assert kept(service) == data
    assert files.fired >= 6


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, BackpressureError), (errno.EIO, StagedIOError)]
)
def test_a_disk_that_fails_aborts_the_put_and_says_why(
    service: FakeService, number: int, expected: type[Exception]
) -> None:
    files = FaultyFiles(write_error=number)

    with Client(service.url, run="a-run", files=files) as client:
        with pytest.raises(expected) as caught:
            client.put_shard(bytes(BLOCK_BYTES * 2), step=7, name="s")

    assert files.fired >= 1
    assert os.strerror(number) in str(caught.value)
    assert "run=a-run step=7 rank=0 shard=s" in str(caught.value)
    assert service.ops[-2:] == ["abort", "incidents"]
    assert not service.staged


def test_a_full_cache_that_writes_through_gets_blocks_in_order(
    service: FakeService, client: Client
) -> None:
    service.plane = "stream"
    data = patterned(2 * BLOCK_BYTES + 3)

    receipt = client.put_shard(data, step=7, name="s", ack="durable")

    assert kept(service) == data
    assert service.ops.count("block") == 3
    assert receipt.level == "durable"
    assert "wait" not in service.ops


def test_a_shard_still_open_elsewhere_is_put_once_more(
    service: FakeService, client: Client
) -> None:
    service.refusals["commit"] = [Refusal("open_for_writing")]

    client.put_shard(bytes(70_000), step=7, name="s")

    assert service.ops.count("begin") == 2
    assert kept(service) == bytes(70_000)


def test_a_shard_that_stays_open_elsewhere_is_an_error(
    service: FakeService, client: Client
) -> None:
    service.refusals["commit"] = [Refusal("open_for_writing"), Refusal("open_for_writing")]

    with pytest.raises(OpenForWritingError):
        client.put_shard(bytes(70_000), step=7, name="s")


def test_a_refusal_is_raised_with_the_services_words(service: FakeService, client: Client) -> None:
    service.refusals["put"] = [Refusal("digest_mismatch", "they differ", rank=0)]

    with pytest.raises(DigestMismatchError) as caught:
        client.put_shard(b"x", step=7, name="s")

    assert str(caught.value) == (
        "put_shard run=a-run step=7 rank=0 shard=s: they differ. Next: hint of digest_mismatch"
    )


def test_no_room_is_told_at_once(service: FakeService, client: Client) -> None:
    service.capacity_bytes = 1 << 20

    with pytest.raises(BackpressureError) as caught:
        client.put_shard(bytes(2 << 20), step=7, name="s")

    assert caught.value.retry_after_seconds == 5.0


def test_ack_durable_waits_for_the_shard(service: FakeService, client: Client) -> None:
    service.answers["wait"] = {"level": "durable", "age_seconds": 1.5}

    receipt = client.put_shard(b"x", step=7, name="s", ack="durable")

    assert receipt.level == "durable"
    (waited,) = service.ids("wait")
    assert (waited["name"], waited["level"]) == ("s", "durable")


def test_ack_durable_not_in_time_says_that_the_bytes_are_safe_here(
    service: FakeService, client: Client
) -> None:
    service.refusals["wait"] = [Refusal("not_durable")]

    with pytest.raises(NotDurableError) as caught:
        client.put_shard(b"x", step=7, name="s", ack="durable")

    assert "The shard is local" in caught.value.hint
    assert kept(service) == b"x"


@pytest.mark.parametrize("size_bytes", [0, 10, 9_000_001])
def test_a_file_is_stored_by_its_path(
    service: FakeService, client: Client, tmp_path: Path, size_bytes: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(patterned(size_bytes))

    receipt = client.put_shard(path, step=7, name="s")

    assert kept(service) == path.read_bytes()
    assert receipt.size_bytes == size_bytes


def test_an_open_file_is_stored_from_where_it_is(service: FakeService, client: Client) -> None:
    file = io.BytesIO(b"skipped, kept")
    file.seek(9)

    client.put_shard(file, step=7, name="s")

    assert kept(service) == b"kept"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "../up"}, InvalidNameError),
        ({"name": ""}, InvalidNameError),
        ({"name": "x" * 300}, InvalidNameError),
        ({"name": "a\0b"}, InvalidNameError),
        ({"name": "a\r\nb"}, InvalidNameError),
        ({"name": "\udcff"}, InvalidNameError),
        ({"run": ".."}, InvalidNameError),
        ({"run": "a/b"}, InvalidNameError),
        ({"step": -1}, InvalidNameError),
        ({"step": 2**53}, InvalidNameError),
        ({"step": 1.5}, InvalidNameError),
        ({"save_id": "~"}, InvalidNameError),
        ({"rank": 2, "world_size": 2}, InvalidRequestError),
        ({"ack": "paper"}, InvalidRequestError),
        ({"timeout_seconds": float("nan")}, InvalidRequestError),
        ({"timeout_seconds": -1}, InvalidRequestError),
        ({"data": "text"}, InvalidRequestError),
        ({"element_size": 3}, InvalidRequestError),
        ({"element_size": True}, InvalidRequestError),
        ({"element_size": 2.0}, InvalidRequestError),
        ({"element_size": 2}, InvalidRequestError),
        ({"data": Path("/nowhere/at/all")}, InvalidRequestError),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_sent(
    service: FakeService, client: Client, changes: dict[str, Any], expected: type[Exception]
) -> None:
    call: dict[str, Any] = {"data": b"x", "run": "a-run", "step": 7, "name": "s", **changes}

    with pytest.raises(expected):
        client.put_shard(call.pop("data"), **call)

    assert not service.ops


def test_a_run_comes_from_the_environment_where_none_is_named(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHETIER_RUN", "env-run")

    with Client(service.url) as client:
        client.put_shard(b"x", step=7, name="s")

    assert ("env-run", 7, "s") in service.shards


def test_without_a_run_the_error_says_where_to_name_it(service: FakeService) -> None:
    with Client(service.url) as client, pytest.raises(InvalidRequestError, match="CACHETIER_RUN"):
        client.put_shard(b"x", step=7, name="s")
