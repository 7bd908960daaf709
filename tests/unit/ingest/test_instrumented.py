"""What is counted and told of puts: those that are safe, and those that found no room."""

from __future__ import annotations

import errno
import logging
import os

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import BackpressureError, DiskFullError
from cachetier.ingest import instrumented
from cachetier.ingest.instrumented import InstrumentedIngest
from cachetier.local.store import Staged
from cachetier.model.shard import INLINE_BYTES
from cachetier.telemetry.metric_table import PREFIX
from cachetier.telemetry.metrics import Metrics
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node, content_of, write

IDS = SaveIds("run", 1, "save")
DATA = bytes(100_000)


class Counted:
    """An ingest of ``node``, and what was counted of it."""

    def __init__(self, node: Node, clock: FakeClock) -> None:
        self.metrics = Metrics({})
        self.ingest = InstrumentedIngest(node.ingest, self.metrics, clock)

    def of(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(PREFIX + name)

    def put(self, ids: SaveIds, name: str, data: bytes = b"x") -> None:
        self.ingest.begin_inline(ids, name, data, content_of(data).digest, 0.0)()


@pytest.fixture
def counted(node: Node, clock: FakeClock) -> Counted:
    return Counted(node, clock)


@pytest.mark.parametrize("size_bytes", [INLINE_BYTES, 100_000, None])
def test_a_put_without_room_is_counted_as_backpressure_and_not_as_a_put(
    node: Node, counted: Counted, size_bytes: int | None
) -> None:
    node.store.space.capacity_bytes = 10
    with pytest.raises(BackpressureError):
        if size_bytes == INLINE_BYTES:
            counted.put(IDS, "a", bytes(INLINE_BYTES))
        else:
            counted.ingest.begin(IDS, "a", size_bytes, 0.0)

    assert counted.of("backpressure_total") == 1
    assert counted.of("put_seconds_count") == counted.of("put_bytes_total") == 0


def test_a_shard_that_outgrows_the_room_is_counted_as_backpressure(
    node: Node, counted: Counted
) -> None:
    node.store.space.capacity_bytes = len(DATA)
    staged = counted.ingest.begin(IDS, "a", len(DATA), 0.0)
    assert isinstance(staged, Staged)

    with pytest.raises(BackpressureError):
        counted.ingest.extend(staged, 10 * len(DATA), 0.0)

    counted.ingest.abort(staged)
    assert counted.of("backpressure_total") == 1


def test_a_put_takes_as_long_as_from_its_begin_to_its_commit(
    node: Node, counted: Counted, clock: FakeClock
) -> None:
    staged = counted.ingest.begin(IDS, "a", len(DATA), 0.0)
    assert isinstance(staged, Staged)
    write(staged, DATA)
    clock.advance(3.0)
    counted.ingest.commit(staged, IDS, "a", content_of(DATA))

    assert counted.of("put_seconds_sum") == 3.0
    assert counted.of("put_bytes_total") == len(DATA)


def test_a_disk_that_is_full_behind_a_door_is_told_as_that(counted: Counted) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    staged = counted.ingest.begin(IDS, "a", len(DATA), 0.0)

    assert isinstance(staged, Staged)
    assert isinstance(staged.refused_by_disk(error), DiskFullError)
    counted.ingest.abort(staged)


def test_a_part_is_told_of_once_while_it_is_remembered(
    counted: Counted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrumented, "PARTS_REMEMBERED", 2)
    caplog.set_level(logging.INFO)
    for step in (1, 1, 2, 2, 3, 2, 1):  # 3 has 1 forgotten
        counted.put(SaveIds("run", step, f"save-{step}"), "a")

    told = [each.getMessage() for each in caplog.records]
    assert [text[-1] for text in told if text.startswith("rank 0 of 1 puts")] == list("1231")
