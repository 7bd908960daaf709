"""Which steps need not go to S3, and which may leave the node."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState
from cachetier.model.policy import LocalStep, Policy, surplus

OPEN, LOCAL_ONLY, PUBLISHED = SaveState.OPEN, SaveState.LOCAL_ONLY, SaveState.PUBLISHED


def save(
    number: int,
    step: int,
    state: SaveState = OPEN,
    *,
    location: str | None = None,
    wanted: bool = False,
) -> Save:
    return Save(
        number=number,
        run="run",
        step=step,
        save_id=f"save-{number}",
        state=state,
        world_size=2,
        overwrite=False,
        started_at=float(number),
        location=location,
        wanted=wanted,
    )


def local(
    number: int, step: int, state: SaveState = LOCAL_ONLY, *, complete: bool = True
) -> LocalStep:
    return LocalStep(save(number, step, state), complete)


def gone(steps: Sequence[LocalStep], keep: int) -> list[int]:
    return [each.step for each in surplus(steps, keep)]


def test_by_default_every_step_is_drained_and_none_is_skipped() -> None:
    policy = Policy()

    assert not any(policy.keeps_local(step) for step in range(20))
    assert policy.skipped_by(save(2, 2, PUBLISHED), [save(1, 1)]) == []


def test_durable_every_drains_the_steps_it_divides() -> None:
    policy = Policy(durable_every=1000)

    assert [step for step in range(0, 4001, 500) if not policy.keeps_local(step)] == [
        0,
        1000,
        2000,
        3000,
        4000,
    ]


def test_a_published_step_supersedes_older_ones_that_are_not_started() -> None:
    policy = Policy(supersede=True)
    published = save(5, 50, PUBLISHED)
    saves = [save(1, 10), save(2, 20, location="20"), save(3, 30, wanted=True), save(4, 40)]

    assert [each.step for each in policy.skipped_by(published, saves)] == [10, 40]


def test_a_newer_step_is_never_superseded_by_number_or_by_arrival() -> None:
    policy = Policy(supersede=True)
    published = save(5, 50, PUBLISHED)

    assert policy.skipped_by(published, [save(4, 60), save(6, 40), save(6, 60), published]) == []


def test_only_open_steps_are_superseded() -> None:
    others = [save(1, 10, state) for state in SaveState if state is not OPEN]

    assert Policy(supersede=True).skipped_by(save(5, 50, PUBLISHED), others) == []


def test_the_newest_complete_steps_stay_and_older_ones_go() -> None:
    steps = [local(number, number * 10) for number in range(1, 6)]

    assert gone(steps, 2) == [10, 20, 30]
    assert gone(steps, 9) == []


def test_what_is_dirty_stays_and_counts() -> None:
    steps = [local(1, 10, OPEN), local(2, 20), local(3, 30, OPEN), local(4, 40, OPEN)]

    assert gone(steps, 1) == [20]


def test_after_a_roll_back_the_newest_by_arrival_stay_as_well() -> None:
    steps = [local(1, 60), local(2, 70), local(3, 40), local(4, 50)]

    assert gone(steps, 1) == [60, 40]


def test_the_newest_published_step_stays_beside_the_newest_complete_one() -> None:
    steps = [local(1, 10, PUBLISHED), local(2, 20, PUBLISHED), local(3, 30), local(4, 40)]

    assert gone(steps, 1) == [10, 30]


def test_an_incomplete_step_goes_once_all_that_stay_are_newer() -> None:
    left_behind, under_way = local(1, 10, complete=False), local(3, 30, complete=False)

    assert gone([left_behind, local(2, 20), under_way], 1) == [10]
    assert gone([left_behind, under_way], 1) == []
    assert gone([local(2, 5), left_behind], 1) == [], "it may have been saved again from there"


STEPS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([OPEN, LOCAL_ONLY, PUBLISHED]), st.booleans()),
    max_size=12,
)


@given(STEPS, st.integers(0, 4))
def test_the_newest_step_at_any_level_never_goes(
    drawn: list[tuple[int, SaveState, bool]], keep: int
) -> None:
    steps = [
        local(number, step, state, complete=complete)
        for number, (step, state, complete) in enumerate(drawn, 1)
    ]
    going = surplus(steps, keep)

    assert all(each.state is not OPEN for each in going)
    for level in (
        [each.save for each in steps if each.complete],
        [each.save for each in steps if each.save.state is PUBLISHED],
    ):
        newest = max(level, key=lambda each: (each.step, each.number), default=None)
        assert newest not in going
    assert len([each for each in steps if each.complete and each.save not in going]) >= min(
        max(1, keep), sum(each.complete for each in steps)
    )
