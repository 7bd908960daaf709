"""The thread that makes room looks when something changed, and only then."""

from __future__ import annotations

import threading

import pytest
from cachetier_client.clock import SystemClock

from cachetier.local.files.space import Space
from cachetier.notifier import Changes
from cachetier.reclaim.evict import Evictor
from cachetier.reclaim.loop import Housekeeping
from cachetier.reclaim.retention import Retention


class CountingEvictor(Evictor):
    """Frees what is used above half, and says when it was asked."""

    def __init__(self, space: Space) -> None:  # the store is never touched
        self._kept = space
        self.asked = threading.Event()

    def look_at_disk(self) -> None:
        """It is never full."""

    def make_room(self) -> int:
        freed = self._kept.used_bytes
        self._kept.release(freed)
        self.asked.set()
        return freed

    def collect(self) -> int:
        return 0


@pytest.fixture
def space() -> Space:
    return Space(100)


def test_a_change_above_the_high_watermark_makes_room(space: Space) -> None:
    changes, evictor = Changes(SystemClock()), CountingEvictor(space)
    freed: list[int] = []
    keeping = Housekeeping(
        evictor, space, changes, SystemClock(), high_watermark=0.5, on_evicted=freed.append
    )
    keeping.start()
    try:
        assert space.try_reserve(60)
        changes.ring()
        assert evictor.asked.wait(60)
    finally:
        keeping.stop(5)
    assert freed == [60]


def test_below_the_high_watermark_nothing_is_evicted(space: Space) -> None:
    changes, evictor = Changes(SystemClock()), CountingEvictor(space)
    freed: list[int] = []
    keeping = Housekeeping(
        evictor, space, changes, SystemClock(), high_watermark=0.5, on_evicted=freed.append
    )
    keeping.start()
    assert space.try_reserve(40)
    changes.ring()
    keeping.stop(5)
    assert not freed
    assert space.used_bytes == 40


class Clearing(Retention):
    """Gives room back when it is asked, and says that it was."""

    def __init__(self, space: Space) -> None:  # the store is never touched
        self._kept = space
        self.asked = threading.Event()

    def make_room(self) -> int:
        self._kept.release(30)
        self.asked.set()
        return 30


def test_local_only_steps_are_asked_for_only_while_a_put_waits_for_room(space: Space) -> None:
    evictor, retention = CountingEvictor(Space(1)), Clearing(space)
    keeping = Housekeeping(
        evictor,
        space,
        Changes(SystemClock()),
        SystemClock(),
        high_watermark=0.5,
        on_evicted=lambda _size_bytes: None,
        retention=retention,
    )
    assert space.try_reserve(90)
    keeping.make_room()
    assert not retention.asked.is_set()

    assert space.reserve(30, 0.0, lambda: discard(keeping.make_room()))
    assert retention.asked.is_set()


def discard(_freed_bytes: int) -> None:
    """Make a callback of something that returns a number."""


@pytest.mark.parametrize("stopped", [False, True], ids=["while it runs", "after its stop"])
def test_a_round_that_fails_is_told_unless_all_is_being_closed(
    space: Space, caplog: pytest.LogCaptureFixture, stopped: bool
) -> None:
    class HangingEvictor(CountingEvictor):
        def make_room(self) -> int:
            self.asked.set()
            assert closed.wait(60)
            raise OSError("what it needs is closed")

    changes, closed, evictor = Changes(SystemClock()), threading.Event(), HangingEvictor(space)
    keeping = Housekeeping(
        evictor, space, changes, SystemClock(), high_watermark=0.5, on_evicted=lambda _: None
    )
    keeping.start()
    assert space.try_reserve(60)
    changes.ring()
    assert evictor.asked.wait(60)
    if stopped:
        keeping.stop(0)
    closed.set()
    if not stopped:
        assert changes.wait_for(lambda: "eviction failed" in caplog.text, 10, 0.01)
    keeping.stop(5)
    assert ("eviction failed" in caplog.text) is not stopped
