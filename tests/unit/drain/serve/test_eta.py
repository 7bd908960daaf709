"""How fast the drain is, and when each step will be through."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Content, Stored
from cachetier_client.clock import Clock

from cachetier.drain.schedule.queue_state import EQUAL, Group, Weights
from cachetier.drain.schedule.tasks import TaskKind, Work
from cachetier.drain.serve.eta import WINDOW_SECONDS, FinishedUpload, etas, measured_rate
from cachetier.drain.serve.stats import DrainStats
from cachetier.local.catalog.rows import Backlog
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.model.shard import Shard
from tests.fakes.fake_clock import FakeClock

MB = 1_000_000
SHARD = Shard(
    1, 1, "run", 1, "s", "a", 0, Content(10 * MB, 1, (1,)), ShardState.DIRTY, None, True, 0.0
)
UPLOAD = Work(TaskKind.UPLOAD, Save(1, "run", 1, "s", SaveState.OPEN, 1, False, 0.0))


def waiting(
    number: int,
    dirty_bytes: int,
    run: str = "run",
    *,
    sealed: bool = True,
    state: SaveState = SaveState.OPEN,
) -> Backlog:
    save = Save(number, run, number, f"s{number}", state, 1, False, 0.0)
    return Backlog(save, 1, dirty_bytes, int(dirty_bytes > 0), dirty_bytes, sealed, sealed)


def found(
    *backlog: Backlog, rate: float | None = 100.0, first: int = 0, weights: Weights = EQUAL
) -> dict[int, float]:
    return etas(backlog, rate, lambda save: save.number == first, weights)


# --- the rate -----------------------------------------------------------------------------------


def test_nothing_uploaded_is_no_rate() -> None:
    assert measured_rate([], 100.0, uploading=True) is None
    assert measured_rate([FinishedUpload(50.0, 1.0, 0)], 100.0, uploading=False) is None


@pytest.mark.parametrize(
    ("uploads", "known"),
    [
        ([FinishedUpload(2.0, 1.0, 64 * MB)], False),
        ([FinishedUpload(2.0, 1.0, 64 * MB)] * 2, True),
        ([FinishedUpload(2.0, 0.02, 50)] * 15, False),  # 2.5 kB/s would be days for what follows
        ([FinishedUpload(2.0, 0.02, 50)] * 16, True),
    ],
)
def test_few_uploads_or_small_ones_are_no_rate_yet(
    uploads: list[FinishedUpload], known: bool
) -> None:
    assert (measured_rate(uploads, 3.0, uploading=True) is not None) == known


def test_uploads_at_once_add_up_and_pauses_do_not_count() -> None:
    at_once = [FinishedUpload(10.0, 10.0, 5 * MB), FinishedUpload(10.0, 10.0, 5 * MB)]
    later = [*at_once, FinishedUpload(500.0, 10.0, 10 * MB)]

    assert measured_rate(at_once, 10.0, uploading=False) == pytest.approx(1 * MB)
    assert measured_rate(later, 700.0, uploading=False) == pytest.approx(1 * MB)


def test_only_the_last_uploads_count() -> None:
    later = [FinishedUpload(WINDOW_SECONDS + 50, 10.0, 5 * MB)] * 2
    uploads = [FinishedUpload(0.0, 1.0, 10), *later]

    assert measured_rate(uploads, WINDOW_SECONDS + 60, uploading=False) == pytest.approx(1 * MB)
    assert measured_rate(uploads, 3 * WINDOW_SECONDS, uploading=False) is None


def test_a_standstill_slows_the_rate_once_it_is_longer_than_any_upload() -> None:
    uploads = [FinishedUpload(10.0, 10.0, 5 * MB)] * 2

    assert measured_rate(uploads, 19.0, uploading=True) == pytest.approx(1 * MB)
    assert measured_rate(uploads, 30.0, uploading=True) == pytest.approx(0.5 * MB)
    assert measured_rate(uploads, 30.0, uploading=False) == pytest.approx(1 * MB)


# --- the order ----------------------------------------------------------------------------------


def test_steps_of_a_run_follow_one_another() -> None:
    assert found(waiting(1, 1000), waiting(2, 500), waiting(3, 0)) == {1: 10.0, 2: 15.0, 3: 15.0}


def test_runs_share_the_rate_by_their_weights_until_one_is_through() -> None:
    weights = Weights((("big", 3.0),))
    backlog = waiting(1, 750, "big"), waiting(2, 500, "small")

    assert found(*backlog, weights=weights) == {1: pytest.approx(10.0), 2: pytest.approx(12.5)}


def test_tenants_share_the_rate_before_their_runs_do() -> None:
    weights = Weights((("a-big", 3.0),), (Group("a", ("a-*",), 1.0), Group("b", ("b-*",), 1.0)))
    backlog = waiting(1, 300, "a-big"), waiting(2, 100, "a-small"), waiting(3, 400, "b-run")

    assert found(*backlog, weights=weights) == pytest.approx({1: 8.0, 2: 8.0, 3: 8.0})


def test_what_is_waited_for_goes_first() -> None:
    assert found(waiting(1, 1000), waiting(2, 500), first=2) == {2: 5.0, 1: 15.0}


def test_nobody_can_tell_without_a_rate_or_a_seal() -> None:
    assert found(waiting(1, 1000), rate=None) == {}
    assert found(waiting(1, 1000, sealed=False), waiting(2, 500)) == {2: 5.0}
    assert found(waiting(1, 0, state=SaveState.DELETED)) == {}


def test_unsealed_shards_that_are_flushed_take_their_time_too() -> None:
    assert found(waiting(1, 1000, sealed=False), waiting(2, 500), first=1) == {2: 15.0}


# --- what was measured -----------------------------------------------------------------------


def stats_with(clock: Clock) -> DrainStats:
    stats = DrainStats("durable", clock)
    stats.process_started(7, again=False)
    return stats


def test_the_rate_is_of_what_was_verified() -> None:
    clock = FakeClock()
    stats = stats_with(clock)
    assert stats.rate([]) is None
    clock.advance(10.0)
    for _ in range(2):
        stats.drained(SHARD, Stored.raw(SHARD.content), 10.0)

    assert stats.rate([]) == pytest.approx(2 * MB)
    assert stats.snapshot([]).rate_bytes_per_second == pytest.approx(2 * MB)
    clock.advance(20.0)
    assert stats.rate([UPLOAD]) == pytest.approx(1 * MB)


@pytest.mark.parametrize("state", ["refused", "unreachable"])
def test_there_is_no_rate_while_the_remote_is_away_or_the_drain_is_down(state: str) -> None:
    stats = stats_with(FakeClock())
    for _ in range(2):
        stats.drained(SHARD, Stored.raw(SHARD.content), 10.0)
    stats.remote_health(state, "because")
    assert stats.rate([]) is None
    stats.remote_health("ok", "")
    assert stats.rate([]) is not None
    stats.process_ended()
    assert stats.rate([]) is None
