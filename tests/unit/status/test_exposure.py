"""How much training losing the node would cost: when it counts, from when on, and for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cachetier.local.catalog.figures import Dirty, DurableStep, OpenSave, Run
from cachetier.status.exposure import (
    PATIENCE_SECONDS,
    RUN_LIMIT,
    RunExposure,
    incomplete,
    is_incomplete,
    of_runs,
)

NOW = 10_000.0
SAVE = OpenSave(
    number=1,
    run="run",
    step=2,
    started_at=NOW - 60,
    local_only=False,
    sealed_at=NOW - 50,
    grew_at=NOW - 50,
    sent=False,
    dirty=Dirty(1, 100, 1),
)
OLD = NOW - PATIENCE_SECONDS - 1


def durable_at(step: int, started_at: float) -> DurableStep:
    """Return a durable step that arrived before every other save."""
    return DurableStep(0, step, started_at)


def level_of(durable: DurableStep | None, *saves: OpenSave) -> RunExposure:
    """Return the level of the one run there is."""
    newest_at = max((save.started_at for save in saves), default=9_000.0)
    known = {} if durable is None else {"run": durable}
    (level,) = of_runs([Run("run", newest_at)], known, saves, {"run": 100}, NOW)
    return level


def test_a_run_is_exposed_from_the_begin_of_its_durable_save_on() -> None:
    level = level_of(durable_at(1, NOW - 300), SAVE)

    assert level == RunExposure("run", 1, 300.0, 300.0, 100)


def test_a_run_without_a_durable_step_is_exposed_from_its_first_save_on() -> None:
    level = level_of(None, replace(SAVE, started_at=NOW - 900), SAVE)

    assert (level.durable_step, level.durable_age_seconds) == (None, None)
    assert level.exposure_seconds == 900.0


def test_nothing_newer_than_the_durable_step_is_no_exposure() -> None:
    newer = DurableStep(2, 3, NOW - 30)
    assert level_of(newer).exposure_seconds == 0.0
    assert level_of(newer, SAVE).exposure_seconds == 0.0


KEPT = replace(SAVE, local_only=True)


def test_what_a_policy_keeps_here_is_exposed_up_to_the_newest_save_and_grows_no_more() -> None:
    durable = durable_at(1, NOW - 300)
    newest = replace(KEPT, number=2, started_at=NOW - 20)

    assert level_of(durable, KEPT).exposure_seconds == 240.0
    assert level_of(durable, KEPT, newest).exposure_seconds == 280.0
    (later,) = of_runs(
        [Run("run", NOW)], {"run": durable}, [KEPT, newest], {}, NOW + 10 * PATIENCE_SECONDS
    )
    assert later.exposure_seconds == 280.0


def test_what_waits_for_the_drain_beside_what_a_policy_keeps_is_exposed_until_now() -> None:
    durable = durable_at(1, NOW - 300)

    assert level_of(durable, KEPT, replace(SAVE, number=2)).exposure_seconds == 300.0
    assert level_of(durable, replace(KEPT, number=2), SAVE).exposure_seconds == 300.0


def test_a_kept_step_that_no_rank_finishes_counts_no_more_once_it_is_stuck() -> None:
    whole = replace(KEPT, started_at=OLD - 60)
    stuck = replace(KEPT, number=2, started_at=OLD, grew_at=OLD, sealed_at=None)

    assert level_of(durable_at(1, OLD - 300), whole, stuck).exposure_seconds == 240.0


def test_a_run_without_a_durable_step_that_a_policy_keeps_counts_between_its_saves() -> None:
    first = replace(KEPT, started_at=NOW - 900)

    assert level_of(None, first, replace(KEPT, number=2)).exposure_seconds == 840.0


def test_a_hidden_run_is_nobodys_training() -> None:
    trial = replace(SAVE, run=".bench")
    stuck = replace(trial, sealed_at=None, started_at=OLD, grew_at=OLD)
    runs = [Run(".bench", NOW), Run("run", NOW)]

    levels = of_runs(runs, {}, [trial, SAVE], {".bench": 1}, NOW)

    assert [level.run for level in levels] == ["run"]
    assert incomplete([stuck], {}, NOW).steps == 0


UNSEALED = replace(SAVE, sealed_at=None)
WAITING = replace(SAVE, sent=True)
GONE: Any = {"started_at": OLD, "grew_at": OLD}


@pytest.mark.parametrize(
    ("save", "stuck"),
    [
        (SAVE, False),
        (UNSEALED, False),
        (replace(UNSEALED, **GONE), True),
        (replace(UNSEALED, started_at=OLD), False),  # shards of it still come
        (WAITING, False),
        (replace(WAITING, **GONE), True),
        (replace(SAVE, **GONE), False),  # it drains, however slowly
        (replace(WAITING, **GONE, local_only=True), False),  # it waits for nobody
        (replace(UNSEALED, **GONE, local_only=True), True),
    ],
)
def test_a_save_is_stuck_once_it_has_waited_long_for_a_rank_or_a_node(
    save: OpenSave, stuck: bool
) -> None:
    assert is_incomplete(save, NOW) is stuck


def test_a_stuck_save_is_counted_as_that_and_exposes_nothing() -> None:
    stuck = replace(UNSEALED, **GONE)

    assert level_of(durable_at(1, OLD - 100), stuck).exposure_seconds == 0.0
    found = incomplete([stuck, SAVE, replace(stuck, started_at=OLD - 5)], {}, NOW)
    assert (found.steps, found.oldest_seconds) == (2, PATIENCE_SECONDS + 6)
    assert incomplete([SAVE], {}, NOW).oldest_seconds == 0.0


def test_a_stuck_save_is_missed_by_nobody_once_a_newer_step_is_durable() -> None:
    stuck = replace(UNSEALED, **GONE)

    assert incomplete([stuck], {"run": DurableStep(0, 1, OLD - 9)}, NOW).steps == 1
    assert incomplete([stuck], {"run": DurableStep(2, 3, NOW - 30)}, NOW).steps == 0
    assert incomplete([stuck], {"other": DurableStep(2, 3, NOW - 30)}, NOW).steps == 1


def test_a_thousand_runs_show_twenty_the_most_exposed_first() -> None:
    runs = [Run(f"run-{number:04}", NOW - number) for number in range(1000)]
    saves = [replace(SAVE, run="run-0999"), replace(SAVE, run="run-0500")]
    durable = {"run-0999": durable_at(1, NOW - 100), "run-0500": durable_at(1, NOW - 200)}

    levels = of_runs(runs, durable, saves, {}, NOW)

    assert len(levels) == RUN_LIMIT + 1
    assert [level.run for level in levels[:4]] == ["run-0500", "run-0999", "run-0000", "run-0001"]


def test_a_clock_that_was_set_back_shows_no_negative_ages() -> None:
    level = level_of(durable_at(1, NOW + 50), replace(SAVE, started_at=NOW + 60))

    assert (level.durable_age_seconds, level.exposure_seconds) == (0.0, 0.0)


def test_what_came_after_a_durable_step_is_exposed_though_the_clock_was_set_back_between() -> None:
    assert level_of(durable_at(1, NOW + 3600), SAVE).exposure_seconds == 60.0


def test_the_files_of_a_run_are_one_run_with_the_newest_of_their_steps() -> None:
    files = [f"run~epoch={n}-step={16 * n}.ckpt" for n in (1, 2, 3)]
    durable = {files[0]: DurableStep(1, 16, NOW - 300), files[1]: DurableStep(2, 32, NOW - 200)}
    last = replace(SAVE, number=3, run=files[2], step=48, started_at=NOW - 60)
    dirty_bytes = {files[2]: 100, "run": 5}
    runs = [Run(file, NOW - 60) for file in files]

    (level,) = of_runs(runs, durable, [last], dirty_bytes, NOW)

    assert level == RunExposure("run", 32, 200.0, 200.0, 105)


def test_a_small_file_that_overtakes_a_checkpoint_does_not_make_it_safe() -> None:
    durable = {
        "run": DurableStep(1, 10, NOW - 300),
        "run~tokenizer.json": DurableStep(9, 0, NOW - 5),
    }
    open_step = replace(SAVE, number=3, step=20)

    (level,) = of_runs(
        [Run("run", NOW - 60), Run("run~tokenizer.json", NOW)], durable, [open_step], {}, NOW
    )

    assert (level.durable_step, level.exposure_seconds) == (10, 300.0)


def test_a_file_that_was_never_whole_is_forgotten_with_the_next_of_its_run() -> None:
    stuck = replace(SAVE, run="run~step=1.ckpt", sealed_at=None, grew_at=OLD, started_at=OLD)
    assert incomplete([stuck], {}, NOW).steps == 1
    assert incomplete([stuck], {"run~step=2.ckpt": DurableStep(2, 2, NOW)}, NOW).steps == 0


def test_runs_beyond_the_limit_are_one_row() -> None:
    names = [f"run-{n:02}" for n in range(RUN_LIMIT + 2)]
    found = of_runs([Run(name, NOW) for name in names], {}, [], dict.fromkeys(names, 7), NOW)
    assert len(found) == RUN_LIMIT + 1
    assert found[-1] == RunExposure("(others)", None, None, 0.0, 14)


def test_a_run_is_quiet_while_nothing_comes_of_a_save_that_is_not_sealed() -> None:
    half = replace(SAVE, sealed_at=None, grew_at=NOW - 500)
    assert level_of(durable_at(1, NOW - 600), half).quiet_seconds == 500.0
    assert level_of(durable_at(1, NOW - 600), half, SAVE).quiet_seconds == 0.0
