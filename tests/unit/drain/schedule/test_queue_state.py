"""What is in flight, put off, or in a hurry."""

from __future__ import annotations

import pytest

from cachetier.drain.schedule.queue_state import (
    BACKOFF_LIMIT_SECONDS,
    HURRY_SECONDS,
    QueueState,
    backoff_seconds,
    recheck_seconds,
)
from cachetier.drain.schedule.tasks import TaskKind, Work, name_key
from cachetier.errors import BackpressureError
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState
from tests.fakes.fake_clock import FakeClock

SAVE = Save(4, "run", 7, "save", SaveState.OPEN, 1, overwrite=False, started_at=0.0, location="7")
PUBLISH = Work(TaskKind.PUBLISH, SAVE)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def queue(clock: FakeClock) -> QueueState:
    return QueueState(clock, fraction=lambda: 1.0)


def put_off_for(queue: QueueState, clock: FakeClock) -> float:
    not_before = queue.situation(wants_room=False).not_before
    return not_before.get(PUBLISH.key, clock.monotonic()) - clock.monotonic()


def test_backoff_is_full_jitter_up_to_its_limit() -> None:
    assert [backoff_seconds(attempt, 1.0) for attempt in (1, 2, 3, 9)] == [1, 2, 4, 30]
    assert backoff_seconds(10_000, 0.5) == BACKOFF_LIMIT_SECONDS / 2
    assert backoff_seconds(5, 0.0) == 0.0


def test_rechecks_get_rarer_up_to_half_a_minute() -> None:
    assert [recheck_seconds(round_) for round_ in (1, 2, 3, 100)] == [1, 2, 4, 30]


def test_work_in_flight_cannot_be_taken_again(queue: QueueState) -> None:
    number = queue.take(PUBLISH)
    assert number is not None
    assert queue.take(PUBLISH) is None
    assert queue.in_flight() == [PUBLISH]

    queue.finish(number)
    assert queue.take(PUBLISH) is not None


def test_a_task_that_is_unknown_is_finished_without_harm(queue: QueueState) -> None:
    queue.finish(999)
    assert queue.work(999) is None


def test_a_drain_that_died_holds_nothing_but_others_do(queue: QueueState) -> None:
    queue.take(PUBLISH)
    queue.hold(4, "shard", 0.0)
    queue.forget_tasks()

    assert queue.in_flight() == []
    assert queue.situation(wants_room=False).in_flight == {name_key(4, "shard")}
    queue.release(4, "shard")
    assert queue.situation(wants_room=False).in_flight == set()


def test_a_name_that_is_held_cannot_be_held_again(queue: QueueState) -> None:
    queue.hold(4, "shard", 0.0)
    with pytest.raises(BackpressureError):
        queue.hold(4, "shard", 0.0)
    queue.hold(5, "shard", 0.0)


def test_failures_put_work_off_longer_each_time_until_forgiven(
    queue: QueueState, clock: FakeClock
) -> None:
    for seconds in (1, 2, 4):
        queue.back_off(PUBLISH.key)
        assert put_off_for(queue, clock) == seconds
    queue.forgive(PUBLISH.key)
    assert put_off_for(queue, clock) == 0

    queue.back_off(PUBLISH.key)
    assert put_off_for(queue, clock) == 1
    queue.back_off(PUBLISH.key, attempt=4)
    assert put_off_for(queue, clock) == 8


def test_a_remote_that_is_back_forgives_everything(queue: QueueState, clock: FakeClock) -> None:
    queue.back_off(PUBLISH.key, attempt=9)
    queue.forgive_all()

    assert put_off_for(queue, clock) == 0


def test_a_hurry_is_for_a_step_a_run_or_all_and_passes(queue: QueueState, clock: FakeClock) -> None:
    for run, step, hurried in (
        ("run", 7, True),
        ("run", None, True),
        (None, None, True),
        ("run", 8, False),
        ("other", None, False),
    ):
        fresh = QueueState(clock)
        fresh.hurry(run, step)
        assert fresh.hurried(SAVE) is hurried
    queue.hurry("run", 7)
    clock.advance(HURRY_SECONDS)
    assert not queue.hurried(SAVE)


def test_a_hurry_publishes_without_delay(queue: QueueState, clock: FakeClock) -> None:
    queue.recheck(PUBLISH.key)
    queue.recheck(PUBLISH.key)
    queue.hurry("run", 7)

    assert put_off_for(queue, clock) == 0
    queue.recheck(PUBLISH.key, patience_limit_seconds=2.0)
    assert put_off_for(queue, clock) == 2.0
