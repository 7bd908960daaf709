"""Which save may be written to, which one readers see, and when a step counts here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CachetierError
from cachetier.model.checkpoint import (
    RankPart,
    Save,
    admitted_save,
    claimant_of,
    sealed_here,
    visible_save,
)
from cachetier.model.lifecycle import PartState, SaveState

OPEN, LOCAL_ONLY, PUBLISHED, SUPERSEDED, REFUSED, DELETED, REPLICATED, OBJECTS = SaveState


def save(number: int, state: SaveState, save_id: str | None = None) -> Save:
    return Save(
        number=number,
        run="run",
        step=1,
        save_id=save_id or f"save-{number}",
        state=state,
        world_size=2,
        overwrite=False,
        started_at=float(number),
    )


def ids(save_id: str, *, overwrite: bool = False, world_size: int = 2) -> SaveIds:
    return SaveIds("run", 1, save_id, 0, world_size, overwrite)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (OPEN, None),
        (LOCAL_ONLY, None),
        (PUBLISHED, None),
        (SUPERSEDED, "save_superseded"),
        (REFUSED, "step_published"),
        (DELETED, "aborted"),
    ],
)
def test_a_known_save_is_written_to_or_refused_by_its_state(
    state: SaveState, code: str | None
) -> None:
    saves = [save(1, state)]
    if code is None:
        assert admitted_save(saves, ids("save-1")) is saves[0]
        return
    with pytest.raises(CachetierError) as refusal:
        admitted_save(saves, ids("save-1"))
    assert refusal.value.code == code
    assert refusal.value.context == {"run": "run", "step": 1, "rank": 0}


@pytest.mark.parametrize("state", [OPEN, LOCAL_ONLY, SUPERSEDED, REFUSED, DELETED])
def test_a_new_save_may_begin_where_none_is_published(state: SaveState) -> None:
    assert admitted_save([save(1, state)], ids("new")) is None


def test_a_new_save_of_a_published_step_must_mean_to_overwrite() -> None:
    saves = [save(1, SUPERSEDED), save(2, PUBLISHED)]

    with pytest.raises(CachetierError) as refusal:
        admitted_save(saves, ids("new"))

    assert refusal.value.code == "step_published"
    assert admitted_save(saves, ids("new", overwrite=True)) is None


def test_a_save_that_another_node_saw_replace_the_published_one_may_begin_here() -> None:
    saves = [save(1, PUBLISHED)]

    assert admitted_save(saves, ids("new"), ("save-1",)) is None
    with pytest.raises(CachetierError):
        admitted_save(saves, ids("new"), ("another",))


def test_what_another_node_saw_a_save_replace_comes_before_it() -> None:
    finished = replace(save(1, OPEN), replaces=("learned-later", "unknown"))
    saves = [finished, save(2, PUBLISHED, "learned-later")]

    assert claimant_of(finished, saves).preceding == ("learned-later", "unknown")
    assert visible_save(saves) is saves[1]
    assert visible_save(saves, {1}, {1}) is finished


def test_the_ranks_of_a_save_agree_on_its_world() -> None:
    with pytest.raises(CachetierError) as refusal:
        admitted_save([save(1, OPEN)], ids("save-1", world_size=8))
    assert refusal.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("states", "seen"),
    [
        ([], None),
        ([OBJECTS], None),
        ([OPEN], 1),
        ([OPEN, PUBLISHED], 2),
        ([PUBLISHED, OPEN], 1),
        ([SUPERSEDED, OPEN], 2),
        ([PUBLISHED, SUPERSEDED, PUBLISHED], 3),
        ([OPEN, OPEN], 2),
        ([OPEN, LOCAL_ONLY], 2),
        ([LOCAL_ONLY, OPEN], 2),
        ([PUBLISHED, LOCAL_ONLY], 1),
        ([SUPERSEDED, REFUSED, DELETED], None),
    ],
)
def test_readers_see_the_newest_published_save_else_the_newest_open_one(
    states: list[SaveState], seen: int | None
) -> None:
    saves = [save(number, state) for number, state in enumerate(states, 1)]

    found = visible_save(saves)

    assert (found.number if found else None) == seen


def test_a_save_whose_ranks_have_all_sealed_here_is_seen_before_it_is_published() -> None:
    saves = [save(number, state) for number, state in enumerate([PUBLISHED, OPEN, OPEN], 1)]

    for whole, seen in (((), 1), ((2,), 2), ((2, 3), 3)):
        found = visible_save(saves, whole, whole)
        assert found is not None and found.number == seen


def part(rank: int, state: PartState, ranks_on_node: int | None = None) -> RankPart:
    return RankPart(rank, state, ranks_on_node, None, uploaded=False)


SEALED, UNSEALED, ABORTED = PartState.SEALED, PartState.OPEN, PartState.ABORTED


@pytest.mark.parametrize(
    ("parts", "counts"),
    [
        ([], False),
        ([part(0, SEALED)], True),
        ([part(0, SEALED), part(1, UNSEALED)], False),
        ([part(0, SEALED), part(1, ABORTED)], False),
        ([part(0, SEALED, 2)], False),
        ([part(0, SEALED, 2), part(1, SEALED, 2)], True),
        ([part(0, SEALED, 2), part(1, SEALED, None)], True),
        ([part(0, SEALED, 1), part(1, SEALED, 2)], True),
        ([part(0, SEALED, 3), part(1, SEALED, 2)], False),
        ([part(0, UNSEALED, 1)], False),
        ([part(0, SEALED, 1), part(1, UNSEALED)], True),
    ],
    ids=[
        "nobody",
        "one rank, number unknown",
        "a rank seen has not sealed",
        "a rank seen has aborted",
        "one of two expected",
        "both expected",
        "one did not say",
        "the larger expectation is met",
        "the larger expectation is not met",
        "what an unsealed part expects does not count",
        "all expected have sealed, another one writes",
    ],
)
def test_a_step_counts_here_once_every_rank_expected_here_has_sealed(
    parts: list[RankPart], counts: bool
) -> None:
    assert sealed_here(parts) is counts
