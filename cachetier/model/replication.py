"""The state of a save at a replica, and what the replica's drain therefore sees.

The durable remote decides which save is *the* step. A replica follows it with the bytes this node
still has; whatever happens there ends the save *there* and nowhere else:

====================  ==============  ========================================
the save is           at the replica  the replica's drain
====================  ==============  ========================================
open, published       open            brings it there
local-only            open            waits: it may be let go on
superseded, refused   open            sweeps up what it left unfinished
deleted               anything        deletes it there too
anything else         ended           sweeps up what it left unfinished
====================  ==============  ========================================

``given_up``: the replica can never have all of this node's shards, as the local bytes of one went
before it was sent there, or were never here.

Source: docs/design/0006-remotes.md.
"""

from __future__ import annotations

from enum import StrEnum

from cachetier.model.checkpoint import SaveState


class ReplicaState(StrEnum):
    OPEN = "open"
    PUBLISHED = "published"
    SUPERSEDED = "superseded"
    REFUSED = "refused"
    GIVEN_UP = "given_up"
    DELETED = "deleted"


# While a save is in one of these at a required replica, its shards are not clean without it.
AWAITED_STATES = (ReplicaState.OPEN, ReplicaState.PUBLISHED)

_DRAINED = (SaveState.OPEN, SaveState.PUBLISHED)
_SHOWN = {
    ReplicaState.PUBLISHED: SaveState.PUBLISHED,
    ReplicaState.SUPERSEDED: SaveState.SUPERSEDED,
    ReplicaState.REFUSED: SaveState.REFUSED,
    ReplicaState.GIVEN_UP: SaveState.SUPERSEDED,
    ReplicaState.DELETED: SaveState.DELETED,
}


def shown_state(save: SaveState, there: ReplicaState) -> SaveState:
    """Return the state in which the replica's drain sees a save: it drains only ``open`` ones."""
    if save is SaveState.DELETED:
        return SaveState.DELETED
    if there is not ReplicaState.OPEN:
        return _SHOWN[there]
    return SaveState.OPEN if save in _DRAINED else save


def ended_there(state: SaveState) -> ReplicaState:
    """Return what a replica's own arbitration makes of a save that it calls ``state``."""
    return ReplicaState(state)
