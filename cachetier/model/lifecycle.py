"""Theory of operation: the lasting states of what the catalog holds, and the events that move them.

Saves, their copies at remotes, rank parts, shards and objects each have their states, their events
and one table of transitions here. The catalog changes a state by an event and in no other way
(``local.catalog.states``); what the table does not list is refused, as a defect. docs/states.md
draws the tables.

Stages and tasks in flight are not states: they live in memory and die with their connection or
process, so that start-up is recovery.

Queries do not compare states one by one. They ask for a set of states that has a name and a
meaning, which renders the condition in SQL. So a new state is an entry in the tables, and in each
set of which the meaning is true for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import TypeVar


class RowState(StrEnum):
    """A lasting state of a row of the catalog."""

    def sql(self, column: str = "state") -> str:
        """Return the condition that ``column`` is this state."""
        return StateSet((self,)).sql(column)

    def sql_not(self, column: str = "state") -> str:
        """Return the condition that ``column`` is another state."""
        return StateSet((self,)).sql_not(column)


class StateSet(tuple[RowState, ...]):
    """A set of states that have one meaning for a query.

    They stay in the order in which they were written: a partial index serves those queries alone
    that spell its condition as it does.
    """

    __slots__ = ()

    def sql(self, column: str = "state") -> str:
        """Return the condition that ``column`` is one of these states."""
        return _condition(self, column, "=", "IN")

    def sql_not(self, column: str = "state") -> str:
        """Return the condition that ``column`` is not one of these states."""
        return _condition(self, column, "<>", "NOT IN")


@cache
def _condition(states: StateSet, column: str, one: str, several: str) -> str:
    """Return the condition of a query, which is the same each time that the query is asked."""
    listed = ", ".join(f"'{state}'" for state in states)
    return f"{column} {one} {listed}" if len(states) == 1 else f"{column} {several} ({listed})"


class RowEvent(StrEnum):
    """An event of a row of the catalog, which may move it to another state."""


# --- saves ---------------------------------------------------------------------------------------


class SaveState(RowState):
    """The states of a save.

    ``open``        takes shards and seals, and is drained
    ``local_only``  takes shards and seals, but a policy keeps it from the durable remote
    ``published``   the durable remote has it whole, and it is the step
    ``superseded``  a newer save of its step took its place
    ``refused``     another save of its step was published before
    ``deleted``     a person or a policy deleted it; the row stays until its objects are gone
    ``replicated``  a replica has it whole, which is all that this node knows of it, as the durable
                    remote could not be asked: whatever comes after it takes its place
    ``objects``     no step at all, but what a mount of the S3 door holds: see ``model.objects``
    """

    OPEN = "open"
    LOCAL_ONLY = "local_only"
    PUBLISHED = "published"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    DELETED = "deleted"
    REPLICATED = "replicated"
    OBJECTS = "objects"


# They take shards and seals; readers see them.
OPEN_SAVES = StateSet((SaveState.OPEN, SaveState.LOCAL_ONLY))
# The drain of the durable remote carries them.
DRAINED_SAVES = StateSet((SaveState.OPEN,))
# A policy keeps them from the durable remote.
KEPT_SAVES = StateSet((SaveState.LOCAL_ONLY,))
# The durable remote has them whole: they are their steps.
DURABLE_SAVES = StateSet((SaveState.PUBLISHED,))
# The durable remote has them whole or is to have them, so the replicas get them too.
COPIED_SAVES = StateSet((*DRAINED_SAVES, *DURABLE_SAVES))
# Some remote has them whole.
CONFIRMED_SAVES = StateSet((*DURABLE_SAVES, SaveState.REPLICATED))
# They are their steps, or may become them, as far as this node and the durable remote know.
CANDIDATE_SAVES = StateSet((*OPEN_SAVES, *DURABLE_SAVES))
# Readers may be given them.
LIVE_SAVES = StateSet((*CANDIDATE_SAVES, SaveState.REPLICATED))
# A save of their step that begins takes their place, unless all ranks here sealed them.
REPLACEABLE_SAVES = StateSet((*OPEN_SAVES, SaveState.REPLICATED))
# Another save is the step instead.
REPLACED_SAVES = StateSet((SaveState.SUPERSEDED, SaveState.REFUSED))
# They are no step any more, and never become one.
ENDED_SAVES = StateSet((*REPLACED_SAVES, SaveState.DELETED))
# The manifest says which save is the step: nobody uploads to these any more.
DECIDED_SAVES = StateSet((*DURABLE_SAVES, *REPLACED_SAVES))
# Nothing is added to them here: the catalog may forget them once nothing else needs the row.
CLOSED_SAVES = StateSet((*CONFIRMED_SAVES, *ENDED_SAVES))
# They hold objects of the S3 door.
MOUNT_SAVES = StateSet((SaveState.OBJECTS,))


class SaveEvent(RowEvent):
    PUBLISH = "publish"
    SUPERSEDE = "supersede"
    REFUSE = "refuse"
    DELETE = "delete"
    KEEP_LOCAL = "keep local"
    WANT = "want"
    REOPEN = "reopen"


# --- copies of saves at remotes ------------------------------------------------------------------


class CopyState(RowState):
    """The states of what one remote has of a save.

    ``open``        the drain brings it there
    ``published``   it is whole there
    ``superseded``  a newer save of its step took its place there, or everywhere
    ``refused``     another save of its step was published there before
    ``given_up``    the remote can never have all shards of this node, as the local bytes of one
                    went before it was sent there, or were never here
    ``deleted``     it is to be deleted there, or is: then it has no location
    """

    OPEN = "open"
    PUBLISHED = "published"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    GIVEN_UP = "given_up"
    DELETED = "deleted"


# While a save is in one of these at a required replica, its shards are not clean without it.
AWAITED_COPIES = StateSet((CopyState.OPEN, CopyState.PUBLISHED))
# The remote never gets the save whole.
LOST_COPIES = StateSet((CopyState.GIVEN_UP, CopyState.REFUSED, CopyState.SUPERSEDED))
# The manifest there says which save is the step: nobody uploads to these any more.
DECIDED_COPIES = StateSet((CopyState.PUBLISHED, CopyState.SUPERSEDED, CopyState.REFUSED))
# The drain brings nothing more there, and sweeps up what it left unfinished.
SWEPT_COPIES = StateSet((*DECIDED_COPIES, CopyState.GIVEN_UP))


class CopyEvent(RowEvent):
    PUBLISH = "publish"
    SUPERSEDE = "supersede"
    REFUSE = "refuse"
    GIVE_UP = "give up"
    DELETE = "delete"
    REOPEN = "reopen"


# --- rank parts ----------------------------------------------------------------------------------


class PartState(RowState):
    """The states of a rank's part of a save on this node.

    ``open``     takes shards
    ``sealed``   its rank says that it is whole; one that *follows* rank 0 may still grow until rank
                 0 has sealed
    ``aborted``  its rank took back what it had put, and may begin again
    """

    OPEN = "open"
    SEALED = "sealed"
    ABORTED = "aborted"


class PartEvent(RowEvent):
    PUT = "put"
    SEAL = "seal"
    ABORT = "abort"


# --- shards --------------------------------------------------------------------------------------


class ShardState(RowState):
    """The states of a shard. Its row goes by replacement, abort or deletion alone.

    ``dirty``        committed on this node, not yet verified at every required remote
    ``clean``        verified remotely; the local bytes may go
    ``evicted``      known here, bytes only remote
    ``quarantined``  the local bytes fail their digest: never served, never sent, kept for a person;
                     or until sound ones come from a remote that had the shard before
    """

    DIRTY = "dirty"
    CLEAN = "clean"
    EVICTED = "evicted"
    QUARANTINED = "quarantined"


# Their bytes, if they are here, are sound and may be sent.
SOUND_SHARDS = StateSet((ShardState.DIRTY, ShardState.CLEAN))
# A remote may hold them: nothing is wrong with any of their bytes.
UNDAMAGED_SHARDS = StateSet((*SOUND_SHARDS, ShardState.EVICTED))
# Some remote that has to have them may lack them: their bytes never leave the node by themselves.
UNSENT_SHARDS = StateSet((ShardState.DIRTY, ShardState.QUARANTINED))


class ShardEvent(RowEvent):
    VERIFIED_REMOTELY = "verified remotely"
    EVICT = "evict"
    RESTORED = "restored"
    LOCAL_DAMAGE = "local damage"
    LOST_REMOTELY = "lost remotely"
    REMOTE_ADDED = "remote added"


# --- objects -------------------------------------------------------------------------------------


class ObjectState(RowState):
    """The states of a version of an object of the S3 door.

    ``dirty``     the bucket does not show it yet
    ``clean``     the bucket shows it, or nothing where it is a deletion
    ``conflict``  a person must decide, as somebody else changed the key, or it is refused
    """

    DIRTY = "dirty"
    CLEAN = "clean"
    CONFLICT = "conflict"


class ObjectEvent(RowEvent):
    SHOW = "show"
    DISPUTE = "dispute"
    KEEP_OURS = "keep ours"
    LOST_REMOTELY = "lost remotely"


# --- transitions ---------------------------------------------------------------------------------


StateType = TypeVar("StateType", bound=RowState)
Transitions = Mapping[RowEvent, Mapping[RowState, RowState]]


def _to(target: RowState, *sources: RowState) -> dict[RowState, RowState]:
    return dict.fromkeys(sources, target)


_SAVES: Transitions = {
    # Even one that was superseded or refused here: the durable remote decides.
    SaveEvent.PUBLISH: _to(
        SaveState.PUBLISHED,
        *(SaveState.OPEN, SaveState.LOCAL_ONLY, SaveState.PUBLISHED, SaveState.REPLICATED),
        *(SaveState.SUPERSEDED, SaveState.REFUSED),
    ),
    SaveEvent.SUPERSEDE: _to(
        SaveState.SUPERSEDED,
        *(SaveState.OPEN, SaveState.LOCAL_ONLY, SaveState.PUBLISHED, SaveState.REPLICATED),
    ),
    SaveEvent.REFUSE: _to(SaveState.REFUSED, SaveState.OPEN, SaveState.LOCAL_ONLY),
    SaveEvent.DELETE: _to(
        SaveState.DELETED,
        *(SaveState.OPEN, SaveState.LOCAL_ONLY, SaveState.PUBLISHED, SaveState.REPLICATED),
        *(SaveState.SUPERSEDED, SaveState.REFUSED, SaveState.DELETED),
    ),
    SaveEvent.KEEP_LOCAL: _to(SaveState.LOCAL_ONLY, SaveState.OPEN),
    # A person or a program wants it in the durable remote, whatever the policies say. One that
    # ended meanwhile stays as it is.
    SaveEvent.WANT: {
        **{state: state for state in LIVE_SAVES},
        SaveState.LOCAL_ONLY: SaveState.OPEN,
    },
    # The durable remote lost its documents, or never had them: they are written by this node.
    SaveEvent.REOPEN: _to(SaveState.OPEN, SaveState.PUBLISHED, SaveState.REPLICATED),
}

_COPIES: Transitions = {
    CopyEvent.PUBLISH: _to(CopyState.PUBLISHED, CopyState.OPEN),
    CopyEvent.SUPERSEDE: _to(CopyState.SUPERSEDED, CopyState.OPEN),
    CopyEvent.REFUSE: _to(CopyState.REFUSED, CopyState.OPEN),
    CopyEvent.GIVE_UP: _to(CopyState.GIVEN_UP, CopyState.OPEN),
    CopyEvent.DELETE: _to(CopyState.DELETED, *CopyState),
    # The remote lost its documents: they are written again.
    CopyEvent.REOPEN: _to(CopyState.OPEN, CopyState.OPEN, CopyState.PUBLISHED),
}

_PARTS: Transitions = {
    # Of sealed ones those that follow alone.
    PartEvent.PUT: _to(PartState.OPEN, *PartState),
    PartEvent.SEAL: _to(PartState.SEALED, *PartState),
    PartEvent.ABORT: _to(PartState.ABORTED, *PartState),
}

_SHARDS: Transitions = {
    ShardEvent.VERIFIED_REMOTELY: {
        ShardState.DIRTY: ShardState.CLEAN,
        ShardState.CLEAN: ShardState.CLEAN,
        # Another remote got it just before the local bytes went: that copy counts.
        ShardState.EVICTED: ShardState.EVICTED,
    },
    ShardEvent.EVICT: {ShardState.CLEAN: ShardState.EVICTED},
    ShardEvent.RESTORED: {
        ShardState.EVICTED: ShardState.CLEAN,
        # A replica had it, though not every remote that has to: the sound bytes go on to them.
        ShardState.QUARANTINED: ShardState.DIRTY,
    },
    ShardEvent.LOCAL_DAMAGE: {
        ShardState.DIRTY: ShardState.QUARANTINED,
        # The remote copy is sound, so damage to a clean shard only costs its local bytes.
        ShardState.CLEAN: ShardState.EVICTED,
        # Two readers may find the same damage; the second finds it dealt with.
        ShardState.EVICTED: ShardState.EVICTED,
        ShardState.QUARANTINED: ShardState.QUARANTINED,
    },
    # Somebody removed or replaced the object before it was published: the local bytes go again.
    ShardEvent.LOST_REMOTELY: {ShardState.CLEAN: ShardState.DIRTY},
    # A replica that lacks it is required from now on.
    ShardEvent.REMOTE_ADDED: {ShardState.CLEAN: ShardState.DIRTY},
}

_OBJECTS: Transitions = {
    ObjectEvent.SHOW: _to(ObjectState.CLEAN, ObjectState.DIRTY, ObjectState.CONFLICT),
    ObjectEvent.DISPUTE: _to(ObjectState.CONFLICT, ObjectState.DIRTY),
    ObjectEvent.KEEP_OURS: _to(ObjectState.DIRTY, ObjectState.CONFLICT),
    ObjectEvent.LOST_REMOTELY: _to(ObjectState.DIRTY, *ObjectState),
}

# The table of each kind of event, and the noun of what it moves.
TABLES: Mapping[type[RowEvent], tuple[str, Transitions]] = {
    SaveEvent: ("save", _SAVES),
    CopyEvent: ("copy", _COPIES),
    PartEvent: ("part", _PARTS),
    ShardEvent: ("shard", _SHARDS),
    ObjectEvent: ("object", _OBJECTS),
}


# By what a drain's report that a save ended so ends the save, and its copy at one remote.
SAVE_ENDS: Mapping[SaveState, SaveEvent] = {
    SaveState.PUBLISHED: SaveEvent.PUBLISH,
    SaveState.SUPERSEDED: SaveEvent.SUPERSEDE,
    SaveState.REFUSED: SaveEvent.REFUSE,
    SaveState.DELETED: SaveEvent.DELETE,
}
COPY_ENDS: Mapping[SaveState, CopyEvent] = {
    SaveState.PUBLISHED: CopyEvent.PUBLISH,
    SaveState.SUPERSEDED: CopyEvent.SUPERSEDE,
    SaveState.REFUSED: CopyEvent.REFUSE,
    SaveState.DELETED: CopyEvent.DELETE,
}


class ForbiddenTransitionError(Exception):
    """A defect: something tried to move a row in a way that could lose what it stands for."""


def moves(*events: RowEvent) -> dict[RowState, RowState]:
    """Return where ``events``, one after the other, lead from each state that allows them."""
    of_first, *others = (TABLES[type(event)][1][event] for event in events)
    found = dict(of_first)
    for each in others:
        found = {state: each[reached] for state, reached in found.items() if reached in each}
    return found


def after(state: StateType, *events: RowEvent) -> StateType:
    """Return the state that ``events`` lead to, or raise ForbiddenTransitionError."""
    reached = moves(*events).get(state)
    if reached is None:
        noun, _ = TABLES[type(events[0])]
        named = "' and '".join(events)
        raise ForbiddenTransitionError(f"a {state} {noun} may not see '{named}'")
    return type(state)(reached)


# --- what the durable remote decides -------------------------------------------------------------


def end_of(
    save: SaveState, there: CopyState, outcome: SaveState, *, decides: bool
) -> SaveEvent | CopyEvent | None:
    """Return what a report that a save ended as ``outcome`` at a remote is: None if it is no news.

    The durable remote ``decides``: what ends the save there ends the save. What ends it at a
    replica ends its copy there, and nothing else.
    """
    if decides:
        # One that was superseded here may have been published there before that.
        late = save is SaveState.SUPERSEDED and outcome is SaveState.PUBLISHED
        return SAVE_ENDS[outcome] if save in OPEN_SAVES or late else None
    if there is not CopyState.OPEN or is_undecided(save, outcome):
        return None
    return COPY_ENDS[outcome]


def is_undecided(save: SaveState, outcome: SaveState) -> bool:
    """Return whether a replica that refuses a save has to wait for the durable remote.

    Once the save is durable it goes before any other: one that is published by now was not when the
    replica was asked.
    """
    return outcome is SaveState.REFUSED and save in CANDIDATE_SAVES


_SHOWN = {
    CopyState.PUBLISHED: SaveState.PUBLISHED,
    CopyState.SUPERSEDED: SaveState.SUPERSEDED,
    CopyState.REFUSED: SaveState.REFUSED,
    CopyState.GIVEN_UP: SaveState.SUPERSEDED,
    CopyState.DELETED: SaveState.DELETED,
}


def shown_state(save: SaveState, there: CopyState) -> SaveState:
    """Return the state in which the drain of a remote sees a save: it drains only ``open`` ones.

    At the durable remote that is the state of the save, as that remote decides which save is *the*
    step. A replica follows it with the bytes that this node still has; what happens there ends the
    save *there* and nowhere else:

    ====================  ==============  ========================================
    the save is           at the replica  the replica's drain
    ====================  ==============  ========================================
    open, published       open            brings it there
    local-only            open            waits: it may be let go on
    superseded, refused   open            sweeps up what it left unfinished
    deleted               anything        deletes it there too
    anything else         ended           sweeps up what it left unfinished
    ====================  ==============  ========================================

    Source: docs/design/0006-remotes.md.
    """
    if save is SaveState.DELETED:
        return SaveState.DELETED
    if there is not CopyState.OPEN:
        return _SHOWN[there]
    return SaveState.OPEN if save in COPIED_SAVES else save
