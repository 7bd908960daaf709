"""What a rank does with a descriptor beyond what it was given for: it is noticed, and counted."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier import libc
from tests.integration.test_unix_door import DATA, IDS, Door, Rank

MIB = 1 << 20


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path)
    yield opened
    opened.close()


def until(reached: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def on_disk(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def overrun(rank: Rank, written_bytes: int = 8 * MIB) -> tuple[int, int]:
    """Begin a put of 4 KiB, and write more into it."""
    staging, descriptor = rank.begin("small", 4096)
    os.write(descriptor, bytes(written_bytes))
    return staging, descriptor


def test_a_put_that_is_written_past_its_reservation_is_refused_for_good(door: Door) -> None:
    rank, space = door.rank(), door.node.store.space
    staging, descriptor = overrun(rank)

    until(lambda: space.used_bytes >= 8 * MIB, "what was written is counted")
    until(lambda: not list(door.node.store.files.all()), "its file has no name any more")
    os.ftruncate(descriptor, 4096)  # too late to make it good
    answer = rank.commit(staging, bytes(4096))

    assert answer["error"]["code"] == "size_mismatch"
    assert "4096 bytes were reserved" in answer["error"]["message"]
    assert re.search(r"reserved, \d{5,} written", answer["error"]["message"])
    os.close(descriptor)
    until(lambda: space.used_bytes == 0, "nobody has it open: it is free")


def test_who_writes_on_begins_nothing_until_they_let_go(door: Door) -> None:
    rank, space = door.rank(), door.node.store.space
    _staging, descriptor = overrun(rank)
    until(lambda: space.used_bytes >= 8 * MIB)

    other = door.rank()
    refused = other.ask("begin", **IDS, name="next", size_bytes=100_000)
    assert refused["error"]["code"] == "backpressure"
    assert "4096 bytes were reserved" in refused["error"]["message"]
    assert "Close" in refused["error"]["hint"]
    rank.close()  # with the connection the put is gone, but not its writer
    time.sleep(0.2)
    assert space.used_bytes == on_disk(descriptor)
    assert other.refusal("begin", **IDS, name="next", size_bytes=100_000) == "backpressure"

    os.close(descriptor)
    until(lambda: space.used_bytes == 0)
    other.begin("next", 100_000)


def test_room_is_what_was_measured_not_what_was_booked(door: Door) -> None:
    capacity_bytes = door.node.store.space.capacity_bytes
    _staging, descriptor = overrun(door.rank(), 32 * MIB)
    until(lambda: door.node.store.space.used_bytes >= 32 * MIB)

    with pytest.raises(Exception, match="no room"):
        door.node.ingest.begin(SaveIds("r", 8, "s"), "large", capacity_bytes - 16 * MIB, 0.0)
    os.close(descriptor)


@pytest.mark.parametrize("end", ["abort", "hang up"])
def test_a_descriptor_that_outlives_its_put_is_counted_and_bound(door: Door, end: str) -> None:
    rank, space = door.rank(), door.node.store.space
    staging, descriptor = rank.begin("small", 100_000)
    if end == "abort":
        assert rank.ask("abort", staging=staging)["ok"]
    else:
        rank.close()

    time.sleep(0.2)
    assert space.used_bytes == 100_000
    os.write(descriptor, bytes(8 * MIB))
    until(lambda: space.used_bytes >= 8 * MIB)
    os.close(descriptor)
    until(lambda: space.used_bytes == 0)


def allocate(descriptor: int) -> None:
    """Take room behind the end of a file, whose length stays."""
    os.truncate(descriptor, 100_000)
    libc.allocate_behind_the_end(descriptor, 8 * MIB)


def test_room_that_is_taken_behind_the_end_of_a_file_is_seen_too(door: Door) -> None:
    rank, space = door.rank(), door.node.store.space
    staging, descriptor = rank.begin("small", 100_000)
    allocate(descriptor)

    until(lambda: space.used_bytes >= 8 * MIB)
    os.close(descriptor)
    assert rank.commit(staging, bytes(100_000))["error"]["code"] == "size_mismatch"


def test_a_writer_cannot_take_more_than_the_capacity_for_long(door: Door) -> None:
    space = door.node.store.space
    rank = door.rank()
    _staging, descriptor = rank.begin("small", 4096)
    os.posix_fallocate(descriptor, 0, space.capacity_bytes + 64 * MIB)

    until(lambda: on_disk(descriptor) < MIB, "what does not fit is cut")
    until(lambda: space.used_bytes == on_disk(descriptor))
    assert rank.refusal("begin", **IDS, name="next", size_bytes=100_000) == "backpressure"
    os.close(descriptor)
    until(lambda: space.used_bytes == 0)


def test_honest_puts_of_all_sizes_are_never_refused(door: Door) -> None:
    rank = door.rank()
    for number, size_bytes in enumerate((70_001, 4 * MIB + 1, 30 * MIB)):
        data = bytes(size_bytes)
        staging, descriptor = rank.begin(f"shard-{number}", size_bytes)
        os.write(descriptor, data + bytes(-size_bytes % 4096))  # the last block whole
        time.sleep(0.15)
        os.ftruncate(descriptor, size_bytes)
        os.close(descriptor)
        staged = door.node.store.open_files
        assert staged.refusals() == []
        rank.ask("abort", staging=staging)
    until(door.is_empty)


def put_clean(door: Door, rank: Rank) -> dict[str, Any]:
    staging, descriptor = rank.begin()
    os.write(descriptor, DATA)
    os.close(descriptor)
    assert rank.commit(staging)["ok"]
    while door.node.drain.drain_one():
        pass
    return {"run": IDS["run"], "step": IDS["step"], "name": "big"}


def test_what_a_reader_holds_is_lent_and_named(door: Door) -> None:
    rank = door.rank()
    shard = put_clean(door, rank)
    descriptor = rank.frame("open", **shard).descriptor
    assert descriptor is not None

    lent = door.node.store.open_files.lent()

    assert lent.size_bytes == door.node.store.space.used_bytes > 0
    assert lent.holder == f"owner, user {os.getuid()}, process {os.getpid()}"
    os.close(descriptor)
    until(lambda: door.node.store.open_files.lent().size_bytes == 0)
