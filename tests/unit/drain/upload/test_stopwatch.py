"""What of an upload took how long."""

from __future__ import annotations

from contextvars import copy_context
from threading import Thread

import pytest
from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.drain.upload import stopwatch
from cachetier.drain.upload.compressor import Compressor, Recipe
from cachetier.drain.upload.source import InlineSource
from cachetier.drain.upload.stopwatch import (
    Stopwatch,
    TimedObjectStore,
    elapsed,
    timed,
)
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def watch(clock: FakeClock) -> Stopwatch:
    return Stopwatch(clock.monotonic)


def test_a_phase_has_its_first_begin_its_last_end_and_what_was_busy(
    watch: Stopwatch, clock: FakeClock
) -> None:
    for _ in range(2):
        clock.advance(1)
        with watch.phase("read"):
            clock.advance(2)
    assert watch.phases() == {"read": [1.0, 6.0, 4.0]}
    assert watch.seconds == 6.0


def test_a_phase_that_another_process_timed_has_just_ended(
    watch: Stopwatch, clock: FakeClock
) -> None:
    clock.advance(3)
    watch.note("read", 1.0)
    watch.note("read", 2.0)
    assert watch.phases() == {"read": [1.0, 3.0, 3.0]}


def test_a_phase_that_fails_counts(watch: Stopwatch, clock: FakeClock) -> None:
    with pytest.raises(OSError), watch.phase("read"):
        clock.advance(1)
        raise OSError
    assert watch.phases() == {"read": [0.0, 1.0, 1.0]}


def test_calls_before_the_first_byte_are_looking_and_those_after_it_verifying() -> None:
    store = TimedObjectStore(MemoryObjectStore())
    with timed() as watch:
        store.head("k")
        assert list(watch.phases()) == ["look"]
        store.put("k", b"x", digest=digest_of(b"x"))
        store.head("k")
    assert list(watch.phases()) == ["look", "send", "verify"]


def test_a_source_is_timed_whoever_reads_it_for_an_upload() -> None:
    source = InlineSource(b"abc" * BLOCK_BYTES, digest_of(b"abc" * BLOCK_BYTES))
    compressor = Compressor(1)
    with timed() as watch:
        source.read(UploadPartRange(1, 0, 3 * BLOCK_BYTES), memoryview(b""))
        assert list(watch.phases()) == ["read"]
    one = InlineSource(b"a" * BLOCK_BYTES, digest_of(b"a" * BLOCK_BYTES))
    with timed() as watch:
        compressor.submit(one, BLOCK_BYTES, 0, Recipe(1)).result()
    assert list(watch.phases()) == ["read"]
    compressor.close()


def test_a_thread_that_gets_the_context_is_timed_and_others_are_not() -> None:
    def compress() -> None:
        with stopwatch.phase(stopwatch.COMPRESS):
            pass

    with timed() as watch:
        stranger = Thread(target=compress)
        stranger.start()
        stranger.join()
        assert watch.phases() == {}
        friend = Thread(target=copy_context().run, args=(compress,))
        friend.start()
        friend.join()
    assert list(watch.phases()) == ["compress"]


def test_outside_of_a_task_nothing_is_timed() -> None:
    assert elapsed() == 0.0
    with stopwatch.phase(stopwatch.READ):
        TimedObjectStore(MemoryObjectStore()).head("k")
    with timed() as watch:
        assert elapsed() >= 0.0
    assert watch.phases() == {}
