"""Gates that let so many threads through, and no more."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachetier.drain.priority.gates import ComputeSlots, Gates, unlimited

PATIENCE_SECONDS = 30.0


class Crowd:
    """Threads that each enter one slot and stay there until they are let go."""

    def __init__(self, slots: ComputeSlots, size: int) -> None:
        self._slots = slots
        self._changed = threading.Condition()
        self._leaving = 0
        self.inside = self.most = self.gone = 0
        self._pool = ThreadPoolExecutor(size)
        self._futures = [self._pool.submit(self._work) for _ in range(size)]

    def _work(self) -> None:
        with self._slots.slot(), self._changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._leaving > 0, PATIENCE_SECONDS)
            self._leaving -= 1
            self.inside -= 1
            self.gone += 1
            self._changed.notify_all()

    def wait_inside(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.inside == count, PATIENCE_SECONDS)

    def let_go(self, count: int) -> None:
        with self._changed:
            self._leaving += count
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._leaving == 0, PATIENCE_SECONDS)

    def close(self) -> None:
        with self._changed:
            self._leaving = 1_000
            self._changed.notify_all()
        for future in self._futures:
            future.result(PATIENCE_SECONDS)
        self._pool.shutdown()


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_no_more_threads_than_the_limit_get_through() -> None:
    crowd = Crowd(ComputeSlots(3), 8)
    crowd.wait_inside(3)
    crowd.let_go(2)
    crowd.wait_inside(3)
    crowd.close()

    assert crowd.most == 3
    assert crowd.gone == 8


def test_a_narrowed_gate_lets_those_inside_end_and_then_fewer_in() -> None:
    slots = ComputeSlots(3)
    crowd = Crowd(slots, 6)
    crowd.wait_inside(3)
    slots.allow(1)
    crowd.let_go(2)
    crowd.wait_inside(1)
    crowd.let_go(1)
    crowd.wait_inside(1)
    assert crowd.gone == 3

    slots.allow(2)
    crowd.wait_inside(2)
    crowd.close()
    assert crowd.most == 3


@pytest.mark.parametrize(("asked", "got"), [(-1, 1), (0, 1), (1, 1), (4, 4), (5, 4)])
def test_at_least_one_thread_is_allowed_and_at_most_the_limit(asked: int, got: int) -> None:
    slots = ComputeSlots(4)
    slots.allow(asked)

    assert slots.allowed == got


def test_a_gate_that_lets_nobody_through_is_refused() -> None:
    with pytest.raises(ValueError, match="nobody"):
        ComputeSlots(0)


def test_a_pause_ends_as_soon_as_the_gate_is_opened() -> None:
    slots = ComputeSlots(2)
    slots.allow(1, 1_000.0)
    entered = threading.Event()

    def work() -> None:
        with slots.slot():
            entered.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not entered.is_set()
    slots.allow(2)
    thread.join(PATIENCE_SECONDS)

    assert entered.is_set()


def test_time_worked_counts_once_however_many_work() -> None:
    watch = Watch()
    slots = ComputeSlots(2, monotonic=watch)
    with slots.slot():
        watch.time += 1
        with slots.slot():
            watch.time += 1
            assert slots.worked_seconds() == 2
        watch.time += 1
    watch.time += 1
    assert slots.worked_seconds() == 3


def test_only_waiting_that_was_ordered_counts_as_slowed() -> None:
    full = ComputeSlots(1)
    crowd = Crowd(full, 2)
    crowd.wait_inside(1)
    crowd.close()
    assert full.slowed_seconds() == 0.0

    watch = Watch()
    slots = ComputeSlots(1, monotonic=watch)
    slots.allow(1, 5.0)
    wait = slots._changed.wait

    def passing(timeout: float | None = None) -> bool:
        watch.time += timeout or 0.0
        return wait(0)

    slots._changed.wait = passing  # type: ignore[method-assign]
    with slots.slot():
        pass

    assert slots.slowed_seconds() == 5.0
    assert slots.worked_seconds() == 0.0


def test_a_slot_is_given_back_when_the_work_fails() -> None:
    slots = ComputeSlots(1)
    with pytest.raises(ZeroDivisionError), slots.slot():
        raise ZeroDivisionError

    with slots.slot():
        pass


def test_an_unlimited_gate_keeps_nobody_waiting() -> None:
    crowd = Crowd(unlimited(), 16)
    crowd.wait_inside(16)
    crowd.close()


def test_gates_open_wide_again_together() -> None:
    gates = Gates(ComputeSlots(2), ComputeSlots(8))
    gates.compute.allow(1, 1.0)
    gates.reads.allow(1, 1.0)
    gates.open_wide()

    assert (gates.compute.allowed, gates.reads.allowed) == (2, 8)
    with gates.compute.slot(), gates.reads.slot():
        pass
    assert gates.slowed_seconds() == 0.0
