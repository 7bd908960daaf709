"""Calls of a store wait their turn."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from awscrt.checksums import crc64nvme

from cachetier.errors import StoppingError, ThrottledError, TransientError
from cachetier.model.pace import Pace, Ticket
from cachetier.remote.call_policy import CallPolicy, Pacer
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, fail
from tests.fakes.memory_store import MemoryObjectStore


def test_what_the_store_answers_teaches_the_pace() -> None:
    pace = Pace(4)
    clock = FakeClock()
    plan = [fail("head", 1, TransientError), fail("head", 2, ThrottledError)]
    store = CallPolicy(FaultyObjectStore(MemoryObjectStore(), plan), pacer=Pacer(pace, clock))
    with pytest.raises(TransientError):
        store.head("a")
    assert pace.state().cuts == 0
    with pytest.raises(ThrottledError):
        store.head("a")
    assert (pace.state().cuts, pace.state().in_flight) == (1, 0)
    clock.advance(10.0)
    store.head("a")


def test_a_call_that_waits_ends_with_the_drain() -> None:
    pace = Pace(4)
    pace.throttled(pace.begin(0.0, 0), 0.0, 3600.0)
    clock = FakeClock(monotonic=0.0)
    store = CallPolicy(MemoryObjectStore(), pacer=Pacer(pace, clock, stopping=lambda: True))
    with pytest.raises(StoppingError):
        store.head("a")


def test_no_more_calls_are_under_way_than_the_pace_allows() -> None:
    entered, leave = Event(), Event()

    class Slow(MemoryObjectStore):
        def head(self, key: str) -> None:
            entered.set()
            assert leave.wait(60)

    pace = Pace(1)
    store = CallPolicy(Slow(), pacer=Pacer(pace, FakeClock()))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.head, "a")
        assert entered.wait(60)
        second = threads.submit(store.head, "b")
        assert pace.state().in_flight == 1
        assert not second.done()
        leave.set()
        first.result(60)
        second.result(60)
    assert pace.state().in_flight == 0


def test_the_pace_is_told_of_bytes_either_way() -> None:
    sizes: list[tuple[int, bool]] = []

    class Counting(Pace):
        def begin(self, now: float, size_bytes: int, *, reads: bool = False) -> Ticket:
            sizes.append((size_bytes, reads))
            return super().begin(now, size_bytes, reads=reads)

    store = CallPolicy(MemoryObjectStore(), pacer=Pacer(Counting(4), FakeClock()))
    store.put("a", b"12345", digest=crc64nvme(b"12345"))
    store.read_into("a", 0, memoryview(bytearray(5)))
    store.head("a")
    assert sizes == [(5, False), (5, True), (0, True)]


def test_a_crowd_that_waits_does_not_look_at_every_turn() -> None:
    looks: list[float] = []

    class Counting(Pace):
        def wait_seconds(self, now: float, size_bytes: int, *, reads: bool = False) -> float:
            looks.append(now)
            return super().wait_seconds(now, size_bytes, reads=reads)

    calls = 64
    store = CallPolicy(MemoryObjectStore(), pacer=Pacer(Counting(1), FakeClock()))
    with ThreadPoolExecutor(calls) as threads:
        for asked in [threads.submit(store.head, "a") for _ in range(calls)]:
            asked.result(60)
    assert len(looks) <= 4 * calls
