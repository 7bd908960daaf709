"""What a drain found of its remote is there for the next one, and never in its way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cachetier.drain.pace.found import Found
from cachetier.drain.pace.traffic import Traffic
from cachetier.model.concurrency import FIRST
from cachetier.remote.settings import RemoteSettings
from tests.fakes.fake_clock import FakeClock

REMOTE = RemoteSettings("durable", "bucket", endpoint="http://127.0.0.1:1")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "drain.lock", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def begins_with(locked: int, remote: RemoteSettings = REMOTE) -> int:
    return Traffic(128, FakeClock(), found=Found(locked, remote)).pace.state().concurrency


def test_the_next_drain_begins_with_what_the_last_one_found(locked: int) -> None:
    assert begins_with(locked) == FIRST
    clock = FakeClock()
    traffic = Traffic(128, clock, found=Found(locked, REMOTE))
    while not (found := traffic.pace.found()):
        traffic.news()
        assert begins_with(locked) == FIRST, "it still climbs, and more may be better"
        at_once = traffic.pace.state().concurrency
        tickets = [traffic.pace.begin(clock.monotonic(), 1 << 23) for _ in range(at_once)]
        clock.advance(1.0)
        for ticket in tickets:
            traffic.pace.succeeded(ticket, clock.monotonic())
    traffic.news()

    assert begins_with(locked) == found > FIRST
    Found(locked, REMOTE).keep(100)
    Found(locked, REMOTE).keep(7)
    assert begins_with(locked) == 7


def test_another_remote_is_another_matter(locked: int) -> None:
    Found(locked, REMOTE).keep(40)
    assert begins_with(locked, replace(REMOTE, bucket="other")) == FIRST
    assert begins_with(locked, replace(REMOTE, endpoint=None)) == FIRST


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"remote": "x", "at_once": "y"}'])
def test_what_cannot_be_read_is_nothing(locked: int, body: bytes) -> None:
    os.pwrite(locked, body, 0)
    assert begins_with(locked) == FIRST


def test_a_count_that_is_none_is_not_believed(locked: int) -> None:
    Found(locked, REMOTE).keep(-3)
    assert begins_with(locked) == FIRST


def test_a_disk_that_takes_nothing_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "drain.lock").touch()
    descriptor = os.open(tmp_path / "drain.lock", os.O_RDONLY)
    Found(descriptor, REMOTE).keep(40)
    assert begins_with(descriptor) == FIRST
    os.close(descriptor)
