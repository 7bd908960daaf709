"""Theory of operation: the lasting states of a shard, and the events that move it between them.

``dirty``        committed on this node, not yet verified at every required remote
``clean``        verified remotely; the local copy may go
``evicted``      known here, bytes only remote
``quarantined``  the local bytes fail their digest: never served, never sent, kept for a person;
                 or until sound ones come from a remote that had the shard before

Stages and tasks in flight are not states: they live in memory and die with their connection or
process, so that start-up is recovery. A shard row disappears only by replacement, abort or delete.
"""

from __future__ import annotations

from enum import StrEnum


class ShardState(StrEnum):
    DIRTY = "dirty"
    CLEAN = "clean"
    EVICTED = "evicted"
    QUARANTINED = "quarantined"


class ShardEvent(StrEnum):
    VERIFIED_REMOTELY = "verified remotely"
    EVICT = "evict"
    RESTORED = "restored"
    LOCAL_DAMAGE = "local damage"
    LOST_REMOTELY = "lost remotely"


_TRANSITIONS: dict[tuple[ShardState, ShardEvent], ShardState] = {
    (ShardState.DIRTY, ShardEvent.VERIFIED_REMOTELY): ShardState.CLEAN,
    (ShardState.DIRTY, ShardEvent.LOCAL_DAMAGE): ShardState.QUARANTINED,
    (ShardState.CLEAN, ShardEvent.VERIFIED_REMOTELY): ShardState.CLEAN,
    (ShardState.CLEAN, ShardEvent.EVICT): ShardState.EVICTED,
    # The remote copy is sound, so damage to a clean shard only costs its local bytes.
    (ShardState.CLEAN, ShardEvent.LOCAL_DAMAGE): ShardState.EVICTED,
    # Somebody removed or replaced the object before it was published: the local bytes go again.
    (ShardState.CLEAN, ShardEvent.LOST_REMOTELY): ShardState.DIRTY,
    (ShardState.EVICTED, ShardEvent.RESTORED): ShardState.CLEAN,
    # Another remote got it just before the local bytes went: that copy counts.
    (ShardState.EVICTED, ShardEvent.VERIFIED_REMOTELY): ShardState.EVICTED,
    # Two readers may find the same damage; the second finds it dealt with.
    (ShardState.EVICTED, ShardEvent.LOCAL_DAMAGE): ShardState.EVICTED,
    # A replica had it, though not every remote that has to: the sound bytes go on to the others.
    (ShardState.QUARANTINED, ShardEvent.RESTORED): ShardState.DIRTY,
    (ShardState.QUARANTINED, ShardEvent.LOCAL_DAMAGE): ShardState.QUARANTINED,
}


class ForbiddenTransitionError(Exception):
    """A defect: something tried to move a shard in a way that could lose it."""


def after(state: ShardState, event: ShardEvent) -> ShardState:
    """Return the state that ``event`` leads to, or raise ForbiddenTransitionError."""
    try:
        return _TRANSITIONS[state, event]
    except KeyError:
        raise ForbiddenTransitionError(f"a {state} shard may not see '{event}'") from None
