"""Every state meets every event, and each named set of states has a meaning."""

from __future__ import annotations

from itertools import product

import pytest

from cachetier.model import lifecycle
from cachetier.model.lifecycle import (
    CopyEvent,
    CopyState,
    ForbiddenTransitionError,
    ObjectEvent,
    ObjectState,
    PartEvent,
    PartState,
    RowEvent,
    RowState,
    SaveEvent,
    SaveState,
    ShardEvent,
    ShardState,
    StateSet,
    after,
    moves,
    shown_state,
)

DIRTY, CLEAN, EVICTED, QUARANTINED = ShardState
OPEN, LOCAL_ONLY, PUBLISHED, SUPERSEDED, REFUSED, DELETED, REPLICATED, OBJECTS = SaveState

ALLOWED: dict[tuple[RowState, RowEvent], RowState] = {
    (DIRTY, ShardEvent.VERIFIED_REMOTELY): CLEAN,
    (DIRTY, ShardEvent.LOCAL_DAMAGE): QUARANTINED,
    (CLEAN, ShardEvent.VERIFIED_REMOTELY): CLEAN,
    (EVICTED, ShardEvent.VERIFIED_REMOTELY): EVICTED,
    (CLEAN, ShardEvent.EVICT): EVICTED,
    (CLEAN, ShardEvent.LOCAL_DAMAGE): EVICTED,
    (CLEAN, ShardEvent.LOST_REMOTELY): DIRTY,
    (CLEAN, ShardEvent.REMOTE_ADDED): DIRTY,
    (EVICTED, ShardEvent.RESTORED): CLEAN,
    (EVICTED, ShardEvent.LOCAL_DAMAGE): EVICTED,
    (QUARANTINED, ShardEvent.RESTORED): DIRTY,
    (QUARANTINED, ShardEvent.LOCAL_DAMAGE): QUARANTINED,
}

SAVES: dict[tuple[RowState, RowEvent], RowState] = {
    (OPEN, SaveEvent.PUBLISH): PUBLISHED,
    (LOCAL_ONLY, SaveEvent.PUBLISH): PUBLISHED,
    (PUBLISHED, SaveEvent.PUBLISH): PUBLISHED,
    (SUPERSEDED, SaveEvent.PUBLISH): PUBLISHED,
    (REFUSED, SaveEvent.PUBLISH): PUBLISHED,
    (REPLICATED, SaveEvent.PUBLISH): PUBLISHED,
    (OPEN, SaveEvent.SUPERSEDE): SUPERSEDED,
    (LOCAL_ONLY, SaveEvent.SUPERSEDE): SUPERSEDED,
    (PUBLISHED, SaveEvent.SUPERSEDE): SUPERSEDED,
    (REPLICATED, SaveEvent.SUPERSEDE): SUPERSEDED,
    (OPEN, SaveEvent.REFUSE): REFUSED,
    (LOCAL_ONLY, SaveEvent.REFUSE): REFUSED,
    **{(state, SaveEvent.DELETE): DELETED for state in SaveState if state is not OBJECTS},
    (OPEN, SaveEvent.KEEP_LOCAL): LOCAL_ONLY,
    **{(state, SaveEvent.WANT): state for state in (OPEN, PUBLISHED, REPLICATED)},
    (LOCAL_ONLY, SaveEvent.WANT): OPEN,
    (PUBLISHED, SaveEvent.REOPEN): OPEN,
    (REPLICATED, SaveEvent.REOPEN): OPEN,
}

COPIES: dict[tuple[RowState, RowEvent], RowState] = {
    (CopyState.OPEN, CopyEvent.PUBLISH): CopyState.PUBLISHED,
    (CopyState.OPEN, CopyEvent.SUPERSEDE): CopyState.SUPERSEDED,
    (CopyState.OPEN, CopyEvent.REFUSE): CopyState.REFUSED,
    (CopyState.OPEN, CopyEvent.GIVE_UP): CopyState.GIVEN_UP,
    **{(state, CopyEvent.DELETE): CopyState.DELETED for state in CopyState},
    (CopyState.OPEN, CopyEvent.REOPEN): CopyState.OPEN,
    (CopyState.PUBLISHED, CopyEvent.REOPEN): CopyState.OPEN,
}

PARTS: dict[tuple[RowState, RowEvent], RowState] = {
    **{(state, PartEvent.PUT): PartState.OPEN for state in PartState},
    **{(state, PartEvent.SEAL): PartState.SEALED for state in PartState},
    **{(state, PartEvent.ABORT): PartState.ABORTED for state in PartState},
}

OBJECT_VERSIONS: dict[tuple[RowState, RowEvent], RowState] = {
    (ObjectState.DIRTY, ObjectEvent.SHOW): ObjectState.CLEAN,
    (ObjectState.CONFLICT, ObjectEvent.SHOW): ObjectState.CLEAN,
    (ObjectState.DIRTY, ObjectEvent.DISPUTE): ObjectState.CONFLICT,
    (ObjectState.CONFLICT, ObjectEvent.KEEP_OURS): ObjectState.DIRTY,
    **{(state, ObjectEvent.LOST_REMOTELY): ObjectState.DIRTY for state in ObjectState},
}

EVERY_PAIR = [
    (allowed, state, event)
    for allowed, states, events in (
        (ALLOWED, ShardState, ShardEvent),
        (SAVES, SaveState, SaveEvent),
        (COPIES, CopyState, CopyEvent),
        (PARTS, PartState, PartEvent),
        (OBJECT_VERSIONS, ObjectState, ObjectEvent),
    )
    for state, event in product(states, events)
]


@pytest.mark.parametrize(
    ("allowed", "state", "event"), EVERY_PAIR, ids=lambda each: "" if type(each) is dict else None
)
def test_a_state_and_an_event_lead_to_one_state_or_are_refused(
    allowed: dict[tuple[RowState, RowEvent], RowState], state: RowState, event: RowEvent
) -> None:
    if (state, event) in allowed:
        assert after(state, event) is allowed[state, event]
    else:
        with pytest.raises(ForbiddenTransitionError):
            after(state, event)


def test_dirty_bytes_can_only_go_clean_or_be_set_aside() -> None:
    """Nothing leads from dirty to evicted but a verified remote copy."""
    reached = {target for (state, _), target in ALLOWED.items() if state is DIRTY}

    assert reached == {CLEAN, QUARANTINED}


def test_a_deleted_save_stays_deleted() -> None:
    reached = {target for (state, _), target in SAVES.items() if state is DELETED}

    assert reached == {DELETED}


def test_the_objects_of_a_mount_never_become_a_step() -> None:
    reached = {target for (state, _), target in SAVES.items() if state is OBJECTS}

    assert reached == set()


def test_events_lead_on_from_what_the_one_before_led_to() -> None:
    assert moves(ShardEvent.LOST_REMOTELY, ShardEvent.LOCAL_DAMAGE) == {CLEAN: QUARANTINED}
    assert after(QUARANTINED, ShardEvent.RESTORED, ShardEvent.VERIFIED_REMOTELY) is CLEAN
    with pytest.raises(ForbiddenTransitionError, match="'evict' and 'evict'"):
        after(CLEAN, ShardEvent.EVICT, ShardEvent.EVICT)


# --- sets ----------------------------------------------------------------------------------------


def test_every_save_is_open_or_closed_or_a_mount() -> None:
    kinds = (lifecycle.OPEN_SAVES, lifecycle.CLOSED_SAVES, lifecycle.MOUNT_SAVES)

    assert sorted(state for states in kinds for state in states) == sorted(SaveState)


def test_every_step_is_live_or_ended() -> None:
    kinds = (lifecycle.LIVE_SAVES, lifecycle.ENDED_SAVES, lifecycle.MOUNT_SAVES)

    assert sorted(state for states in kinds for state in states) == sorted(SaveState)


def test_a_required_replica_is_awaited_until_it_can_never_have_the_save() -> None:
    kinds = (lifecycle.AWAITED_COPIES, lifecycle.LOST_COPIES, (CopyState.DELETED,))

    assert sorted(state for states in kinds for state in states) == sorted(CopyState)


@pytest.mark.parametrize("state", lifecycle.SAVE_ENDS)
def test_a_report_that_a_save_ended_so_ends_it_so_at_every_remote(state: SaveState) -> None:
    assert after(OPEN, lifecycle.SAVE_ENDS[state]) is state
    assert after(CopyState.OPEN, lifecycle.COPY_ENDS[state]).value == state.value


def test_a_set_renders_the_condition_that_its_index_has() -> None:
    assert lifecycle.OPEN_SAVES.sql() == "state IN ('open', 'local_only')"
    assert lifecycle.OPEN_SAVES.sql_not("saves.state") == (
        "saves.state NOT IN ('open', 'local_only')"
    )
    assert lifecycle.DURABLE_SAVES.sql("+newer.state") == "+newer.state = 'published'"
    assert DIRTY.sql("shards.state") == "shards.state = 'dirty'"
    assert ObjectState.CLEAN.sql_not() == "state <> 'clean'"
    assert StateSet((CLEAN, DIRTY)).sql() == "state IN ('clean', 'dirty')"


# --- what a replica's drain sees -----------------------------------------------------------------


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
    assert shown_state(save, CopyState.OPEN) is seen


@pytest.mark.parametrize("there", CopyState)
def test_what_is_deleted_is_deleted_at_every_replica(there: CopyState) -> None:
    assert shown_state(DELETED, there) is DELETED


@pytest.mark.parametrize("save", [OPEN, LOCAL_ONLY, PUBLISHED, SUPERSEDED, REFUSED, REPLICATED])
@pytest.mark.parametrize("there", [state for state in CopyState if state != CopyState.OPEN])
def test_what_ended_at_the_replica_is_never_drained_there(
    save: SaveState, there: CopyState
) -> None:
    assert shown_state(save, there) not in (OPEN, LOCAL_ONLY)
