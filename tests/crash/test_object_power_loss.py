"""Power is cut at every step of puts, overwrites, deletions, parts and completions of objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.sweep import live, sweep
from tests.crash.workload import ObjectWorkload
from tests.faults.counting import count
from tests.faults.slices import share_of

SEEDS, STATES = range(10), 150
SHORT_LIVES, TOGETHER, SHORT_CALLS = 100, 5, 30
TABLES = ("object_uploads", "object_upload_parts", "objects")


@pytest.mark.slow
@pytest.mark.parametrize("seed", share_of(SEEDS))
def test_no_object_that_was_promised_is_lost_when_the_power_goes_at_any_step(
    tmp_path: Path, seed: int, request: pytest.FixtureRequest
) -> None:
    report = sweep(tmp_path, seed, restarts=60, every=8, plays=ObjectWorkload)
    count(request, "states after a power cut", report.states, seed)

    assert report.states >= STATES


@pytest.mark.slow
@pytest.mark.parametrize("first", share_of(range(0, SHORT_LIVES, TOGETHER)))
def test_no_object_is_lost_when_the_power_goes_in_a_short_life_of_any_calls(
    tmp_path: Path, first: int, request: pytest.FixtureRequest
) -> None:
    for seed in range(first, first + TOGETHER):
        report = sweep(
            tmp_path, seed, calls=SHORT_CALLS, overture=False, every=25, plays=ObjectWorkload
        )
        count(request, "states after a power cut", report.states, seed)
        count(request, "short lives that were cut", 1, seed)


def test_a_life_stops_around_every_mark_of_a_file(tmp_path: Path) -> None:
    """A completion marks its first piece anew: between that and its row the power goes, too."""
    moments = live(tmp_path / "life", 0, 0, plays=ObjectWorkload)

    trace = moments[-1].disk.trace
    marks = sum(step.startswith("mark cache/data") for step in trace)
    creations = sum(step.startswith("create cache/data") for step in trace)
    restored = creations - sum(step.startswith("unlink cache/data") for step in trace)
    assert marks > restored > 0
