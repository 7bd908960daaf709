"""Parts of many shards at once."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from cachetier_client import (
    Client,
    DeadlineError,
    IntegrityError,
    InvalidNameError,
    InvalidRequestError,
    NotFoundError,
    ServiceUnavailableError,
    SizeMismatchError,
)
from cachetier_client.io.aligned import address_of, aligned_memory
from cachetier_client.io.digests import BLOCK_BYTES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.fake_http import FakeHttpService
from tests.client.fake_service import FakeService, Refusal
from tests.client.fakes import FakeClock, RecordingFiles
from tests.client.test_gets import flipped
from tests.client.test_puts import patterned

LARGE = patterned(3 * BLOCK_BYTES + 10)
SHARDS = {"large": LARGE, "one": LARGE[::-1][:BLOCK_BYTES], "small": b"a few bytes", "none": b""}
RANGES = st.dictionaries(
    st.sampled_from(sorted(SHARDS)),
    st.lists(
        st.tuples(
            st.sampled_from([0, 5, 9, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES, len(LARGE)]),
            st.sampled_from([0, 1, 12, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 7, len(LARGE)]),
        ),
        max_size=5,
    ),
)


@pytest.fixture
def files() -> RecordingFiles:
    return RecordingFiles()


@pytest.fixture
def client(service: FakeService, files: RecordingFiles) -> Iterator[Client]:
    with Client(service.url, run="a-run", files=files) as made:
        for name, data in SHARDS.items():
            made.put_shard(data, step=7, name=name)
        service.ops.clear()
        yield made


def test_many_threads_wait_for_the_blocks_of_a_shard_that_stays_remote(
    client: Client, service: FakeService
) -> None:
    data = patterned(12 * BLOCK_BYTES)
    client.put_shard(data, step=7, name="far")
    service.blocks_until_restored = 100
    service.asked_together = threading.Barrier(12)  # more than the client has threads
    into = bytearray(len(data))

    client.read_ranges(None, 7, {"far": [(0, into)]})

    assert into == data


def test_what_goes_wrong_while_threads_wait_is_raised(client: Client, service: FakeService) -> None:
    client.put_shard(patterned(12 * BLOCK_BYTES), step=7, name="far")
    service.blocks_until_restored = 100
    service.refusals["read_block"] = [Refusal("integrity", "the only copy is damaged")]

    with pytest.raises(IntegrityError, match="the only copy is damaged"):
        client.read_ranges(None, 7, {"far": [(0, bytearray(12 * BLOCK_BYTES))]})


def read(client: Client, **wanted: list[tuple[int, int]]) -> dict[str, list[bytes]]:
    """Read ranges given as (offset, length)."""
    into = {
        name: [(offset, memoryview(bytearray(length))) for offset, length in listed]
        for name, listed in wanted.items()
    }
    client.read_ranges(None, 7, into)
    return {name: [bytes(buffer) for _, buffer in listed] for name, listed in into.items()}


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(wanted=RANGES)
def test_any_ranges_of_any_shards_come_back_and_each_block_is_read_once(
    client: Client, files: RecordingFiles, wanted: dict[str, list[tuple[int, int]]]
) -> None:
    fitting = {
        name: [(at, size) for at, size in listed if at + size <= len(SHARDS[name])]
        for name, listed in wanted.items()
    }
    files.read.clear()

    got = read(client, **fitting)

    assert got == {
        name: [SHARDS[name][at : at + size] for at, size in listed]
        for name, listed in fitting.items()
    }
    blocks = {
        (name, (at + byte) // BLOCK_BYTES * BLOCK_BYTES)
        for name, listed in fitting.items()
        for at, size in listed
        for byte in (*range(0, size, BLOCK_BYTES), *([size - 1] if size else []))
        if name in ("large", "one")
    }
    assert Counter(at for at, _ in files.read) == Counter(at for _, at in blocks)


def test_it_says_how_much_was_read(client: Client) -> None:
    into = {"large": [(5, bytearray(3)), (9, bytearray(3))], "small": [(1, bytearray(2))]}

    assert client.read_ranges(None, 7, into) == BLOCK_BYTES + len(SHARDS["small"])
    assert client.read_ranges(None, 7, {}) == 0
    assert client.read_ranges(None, 7, {"large": []}) == 0


def test_each_shard_is_opened_once_and_left_remote_if_it_is(
    service: FakeService, client: Client
) -> None:
    read(client, large=[(0, 1), (2 * BLOCK_BYTES, 1)], one=[(0, 1)])

    assert sorted(header["name"] for header in service.ids("open")) == ["large", "one"]
    assert {header["restore"] for header in service.ids("open")} == {False}


def test_a_block_goes_straight_into_the_buffer_that_takes_it_whole(
    client: Client, files: RecordingFiles
) -> None:
    out, part = aligned_memory(len(LARGE)), bytearray(100)

    client.read_ranges(None, 7, {"large": [(BLOCK_BYTES + 7, part), (0, out[: 2 * BLOCK_BYTES])]})

    assert sorted(files.read) == [
        (0, address_of(out)),
        (BLOCK_BYTES, address_of(out) + BLOCK_BYTES),
    ]
    assert out[: 2 * BLOCK_BYTES] == LARGE[: 2 * BLOCK_BYTES]
    assert part == LARGE[BLOCK_BYTES + 7 :][:100]


def test_one_thread_is_enough(service: FakeService, client: Client) -> None:
    with Client(service.url, run="a-run", threads=1) as alone:
        assert read(alone, large=[(0, len(LARGE))], small=[(2, 3)]) == {
            "large": [LARGE],
            "small": [b"few"],
        }


def test_of_many_shards_few_are_open_at_a_time_and_none_afterwards(
    service: FakeService, client: Client
) -> None:
    for number in range(40):
        client.put_shard(LARGE[: 70_000 + number], step=7, name=f"n/{number}")
    before, most = len(os.listdir("/proc/self/fd")), 0

    def count() -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")) - before)

    service.before["open"] = count
    read(client, **{f"n/{number}": [(number, 9)] for number in range(40)})

    assert most < 20  # of 4 threads, each with a connection and a descriptor at both ends
    assert len(os.listdir("/proc/self/fd")) <= before + 2 * 4  # the connections stay


# --- damage, replacement, loss -------------------------------------------------------------------


def test_damage_is_reported_once_and_the_rest_comes_from_the_next_copy(
    service: FakeService, client: Client
) -> None:
    service.damage = lambda content: bytes(len(content))  # every block

    assert read(client, large=[(0, len(LARGE))]) == {"large": [LARGE]}

    assert service.ops == ["open", "verify", "open"]


def test_behind_a_damaged_copy_the_remote_one_is_read_block_by_block(
    service: FakeService, client: Client
) -> None:
    service.damage = lambda content: bytes(len(content))
    service.before["verify"] = lambda: setattr(service, "blocks_until_restored", 100)

    assert read(client, large=[(5, 10), (2 * BLOCK_BYTES, BLOCK_BYTES + 10)]) == {
        "large": [LARGE[5:15], LARGE[2 * BLOCK_BYTES :]]
    }

    assert sorted(header["block"] for header in service.ids("read_block")) == [0, 2, 3]


@pytest.mark.parametrize("lost", ["verify", "open"])
def test_a_service_that_goes_away_while_damage_is_told_is_asked_again(
    service: FakeService, client: Client, lost: str
) -> None:
    service.damage = lambda content: bytes(len(content))

    def only_once() -> None:
        service.hang_ups.append(lost)
        service.before.clear()

    service.before["verify"] = only_once

    assert read(client, large=[(0, len(LARGE))]) == {"large": [LARGE]}
    assert not service.before
    assert not service.hang_ups


def test_bytes_that_stay_damaged_are_an_error_that_names_the_shard(
    service: FakeService, client: Client
) -> None:
    service.damage = flipped
    service.answers["verify"] = {"sound": True}

    with pytest.raises(IntegrityError, match="read_ranges run=a-run step=7 shard=large"):
        read(client, small=[(0, 1)], large=[(0, len(LARGE))])


def test_blocks_of_a_remote_shard_are_asked_for_once_until_it_is_brought_back(
    service: FakeService, client: Client
) -> None:
    service.blocks_until_restored = 3

    assert read(client, large=[(0, len(LARGE))]) == {"large": [LARGE]}

    asked = Counter(header["block"] for header in service.ids("read_block"))
    assert max(asked.values()) == 1
    assert 3 <= asked.total() <= 4


def test_a_shard_replaced_while_it_is_read_is_never_mixed(
    service: FakeService, client: Client
) -> None:
    service.blocks_until_restored = 100
    shard = service.shards["a-run", 7, "large"]

    def replace() -> None:
        shard.content = LARGE[::-1]

    service.before["read_block"] = replace

    with pytest.raises(IntegrityError, match="replaced"):
        read(client, large=[(0, len(LARGE))])


def test_a_service_that_comes_back_is_asked_again(service: FakeService, client: Client) -> None:
    service.blocks_until_restored = 100
    service.lost_replies = ["open", "read_block", "read_block"]

    assert read(client, large=[(0, len(LARGE))]) == {"large": [LARGE]}
    assert not service.lost_replies


def test_a_service_that_stays_away_ends_the_call_by_its_deadline(
    service: FakeService, client: Client
) -> None:
    service.blocks_until_restored = 100
    clock = FakeClock()

    with Client(service.url, run="a-run", clock=clock) as waiting:
        service.before["read_block"] = lambda: service.hang_ups.append("read_block")
        with pytest.raises((ServiceUnavailableError, DeadlineError), match="shard=large"):
            waiting.read_ranges(None, 7, {"large": [(0, bytearray(9))]}, timeout_seconds=20)

    assert 0 < clock.time - 1000 <= 20


def test_no_time_is_an_error(client: Client) -> None:
    with pytest.raises(DeadlineError):
        client.read_ranges(None, 7, {"large": [(0, bytearray(9))]}, timeout_seconds=0)


# --- wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["large", "small", "none"])
def test_a_range_behind_the_shard_is_refused(client: Client, name: str) -> None:
    size_bytes = len(SHARDS[name])

    with pytest.raises(SizeMismatchError, match=f"shard={name}: .*a shard of {size_bytes}"):
        client.read_ranges(None, 7, {name: [(size_bytes, bytearray(1))]})


def test_an_unknown_shard_is_not_found_by_its_name(client: Client) -> None:
    with pytest.raises(NotFoundError, match="shard=missing"):
        client.read_ranges(None, 7, {"large": [(0, bytearray(9))], "missing": []})


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([("large", 0)], InvalidRequestError),
        ({"../up": []}, InvalidNameError),
        ({"large": [(-1, bytearray(1))]}, InvalidRequestError),
        ({"large": [(1.5, bytearray(1))]}, InvalidRequestError),
        ({"large": [bytearray(3)]}, InvalidRequestError),
        ({"large": 5}, InvalidRequestError),
        ({"large": [(0, b"read-only")]}, InvalidRequestError),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_sent(
    service: FakeService, client: Client, ranges: Any, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        client.read_ranges(None, 7, ranges)

    assert not service.ops


# --- the other door ------------------------------------------------------------------------------


def test_over_http_the_blocks_come_as_ranges() -> None:
    with FakeHttpService().running() as service, Client(service.url, run="a-run") as client:
        client.put_shard(LARGE, step=7, name="large")
        service.seen.clear()

        assert read(client, large=[(5, 10), (BLOCK_BYTES - 1, 2), (7, 0)]) == {
            "large": [LARGE[5:15], LARGE[BLOCK_BYTES - 1 : BLOCK_BYTES + 1], b""]
        }

    asked = sorted(seen.headers["Range"] for seen in service.seen if "Range" in seen.headers)
    assert asked == ["bytes=0-4194303", "bytes=4194304-8388607"]


def test_over_http_a_shard_that_was_replaced_is_refused() -> None:
    with FakeHttpService().running() as service, Client(service.url, run="a-run") as client:
        client.put_shard(LARGE, step=7, name="large")
        (path,) = service.shards
        answer = service.answer

        def replaced(seen: Any) -> Any:
            if "Range" in seen.headers:
                service.shards[path] = LARGE[::-1]
            return answer(seen)

        service.answer = replaced  # type: ignore[method-assign]

        with pytest.raises(IntegrityError, match="replaced"):
            read(client, large=[(5, 10)])
