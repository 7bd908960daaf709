"""Power is cut at every step of the durable core, by the strictest reading of POSIX.

The run is void unless it stopped inside every kind of step, and unless the harness reports every
planted bug: see ``test_planted_bugs``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachetier.drain.channel import METHODS
from cachetier.drain.serve.service import DrainService
from tests.crash.sweep import CHANGES, Life, judge_start, live, start, sweep, sweep_starts
from tests.crash.workload import Promise
from tests.fakes.power_loss import DATA_ONLY, NAMES_ONLY, PROCESS_ONLY, WORST, Fate
from tests.faults.counting import count
from tests.faults.slices import share_of

SEEDS = range(10)
STATES = 700  # at the least, for each seed
SHORT_LIVES, TOGETHER, SHORT_CALLS = 500, 10, 25
SEEDS_OF_STARTS, THREE_DEEP = range(10), 20  # states of each seed

STEPS_OF_THE_PATH = {
    "create cache/data",
    "allocate cache/data",
    "write cache/data",
    "mark cache/data",
    "sync cache/data",
    "unlink cache/data",
    "write cache/catalog.db-wal",
    "sync cache/catalog.db-wal",
    "write cache/catalog.db",
    "sync cache/catalog.db",
    "truncate cache/catalog.db-wal",
    "rename cache/store-id.new",
    "rename cache/running.new",
    "unlink cache/running",
    "sync cache",
    "syncfs cache",
}
RECORDS = {
    "save_located",
    "upload_begun",
    "parts_done",
    "shard_verified",
    "pack_verified",
    "part_written",
    "save_ended",
    "save_swept",
    "save_removed",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_nothing_promised_is_lost_when_the_power_goes_at_any_step(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    report = sweep(tmp_path, seed, restarts=40, every=4)
    count(request, "states after a power cut", report.states, seed)

    assert report.states >= STATES


@pytest.mark.slow
@pytest.mark.parametrize("first", share_of(range(0, SHORT_LIVES, TOGETHER)))
def test_nothing_promised_is_lost_when_the_power_goes_in_a_short_life_of_any_calls(
    tmp_path: Path, first: int, request: pytest.FixtureRequest
) -> None:
    for seed in range(first, first + TOGETHER):
        report = sweep(tmp_path, seed, calls=SHORT_CALLS, overture=False, restarts=40, every=25)
        count(request, "states after a power cut", report.states, seed)
        count(request, "short lives that were cut", 1, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", share_of(SEEDS_OF_STARTS))
def test_nothing_promised_is_lost_when_the_power_goes_in_the_life_in_the_start_and_in_the_next(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    report = sweep_starts(tmp_path, seed, THREE_DEEP)
    count(request, "starts cut three deep", report.states, seed)

    assert report.states >= THREE_DEEP


@pytest.mark.parametrize("fate", [WORST, NAMES_ONLY, DATA_ONLY], ids=["worst", "names", "data"])
def test_a_copied_directory_that_nobody_synced_survives_a_power_cut_once_its_service_has_started(
    tmp_path: Path, vfs: str, fate: Fate
) -> None:
    """As after a restored backup: the start makes sure of what it goes on with."""
    for moment in live(tmp_path / "life", seed=0)[::60]:
        copy = moment.image.survivor(PROCESS_ONLY)
        *_, started = start(tmp_path / "copy", copy, moment, copied=True)
        judge_start(tmp_path / "arena", started.survivor(fate), moment, vfs)


def test_a_life_stops_inside_every_kind_of_step(tmp_path: Path) -> None:
    moments = live(tmp_path / "life", seed=0)

    trace = moments[-1].disk.trace
    assert {kind for kind in STEPS_OF_THE_PATH if any(step.startswith(kind) for step in trace)} == (
        STEPS_OF_THE_PATH
    )


def test_a_life_stops_inside_every_kind_of_record_of_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "life", 0)
    recorded = set()

    def watched(name: str) -> Callable[..., object]:
        method = getattr(DrainService, name)

        def answered(self: DrainService, **arguments: Any) -> object:
            before = life.disk.steps
            try:
                return method(self, **arguments)
            finally:
                if life.disk.steps > before:
                    recorded.add(name)

        return answered

    for name in METHODS:
        monkeypatch.setattr(DrainService, name, watched(name))
    life.play()

    assert recorded >= RECORDS
    assert {moment.change for moment in life.moments} >= {"", *CHANGES}


def test_acknowledged_bytes_are_dirty_at_many_of_the_cuts(tmp_path: Path) -> None:
    """A cut that finds everything drained proves little."""
    moments = live(tmp_path / "life", seed=0)

    assert sum(_promises_bytes(moment.promise) for moment in moments) > len(moments) / 2


def _promises_bytes(promise: Promise) -> bool:
    saves = [save for saves in promise.before.steps.values() for save in saves]
    return any(save.shards for save in saves if save.state == "open")
