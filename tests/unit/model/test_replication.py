"""What a replica's drain sees of a save: every pair of what it is, and what it reached there."""

from __future__ import annotations

import pytest

from cachetier.model.checkpoint import SaveState
from cachetier.model.levels import Level, covers
from cachetier.model.replication import AWAITED_STATES, ReplicaState, ended_there, shown_state

OPEN, LOCAL_ONLY, PUBLISHED, SUPERSEDED, REFUSED, DELETED, REPLICATED, OBJECTS = SaveState


@pytest.mark.parametrize(
    ("save", "seen"),
    [
        (OPEN, OPEN),
        (PUBLISHED, OPEN),
        (LOCAL_ONLY, LOCAL_ONLY),
        (SUPERSEDED, SUPERSEDED),
        (REFUSED, REFUSED),
        (REPLICATED, REPLICATED),
        (OBJECTS, OBJECTS),
    ],
)
def test_what_is_open_at_the_replica_is_drained_while_the_save_has_a_future(
    save: SaveState, seen: SaveState
) -> None:
    assert shown_state(save, ReplicaState.OPEN) is seen


@pytest.mark.parametrize("there", ReplicaState)
def test_what_is_deleted_is_deleted_at_every_replica(there: ReplicaState) -> None:
    assert shown_state(DELETED, there) is DELETED


@pytest.mark.parametrize("save", [OPEN, LOCAL_ONLY, PUBLISHED, SUPERSEDED, REFUSED, REPLICATED])
@pytest.mark.parametrize("there", [state for state in ReplicaState if state != ReplicaState.OPEN])
def test_what_ended_at_the_replica_is_never_drained_there(
    save: SaveState, there: ReplicaState
) -> None:
    assert shown_state(save, there) not in (OPEN, LOCAL_ONLY)


def test_a_required_replica_is_awaited_until_it_can_never_have_the_save() -> None:
    assert set(AWAITED_STATES) == {ReplicaState.OPEN, ReplicaState.PUBLISHED}


@pytest.mark.parametrize("state", [PUBLISHED, SUPERSEDED, REFUSED, DELETED])
def test_the_replicas_arbitration_ends_the_save_there(state: SaveState) -> None:
    assert ended_there(state).value == state.value


@pytest.mark.parametrize("wanted", Level)
@pytest.mark.parametrize("reached", Level)
def test_a_level_covers_itself_and_those_below(reached: Level, wanted: Level) -> None:
    order = [Level.LOCAL, Level.REPLICATED, Level.DURABLE]
    assert covers(reached, wanted) is (order.index(reached) >= order.index(wanted))
