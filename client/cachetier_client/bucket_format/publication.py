"""Who owns a step's manifest: the service's rules, as its ``model/publication.py`` has them.

A client that saves directly decides as a drain would; a test holds the two against each other, over
a table of cases. See there for why.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from cachetier_client.bucket_format.documents import CLAIMED, DELETED, PUBLISHED, Manifest
from cachetier_client.bucket_format.layout import own_location, plain_location
from cachetier_client.identity.names import SaveIds


@dataclass(frozen=True, slots=True)
class Claimant:
    """A save that wants its step."""

    run: str
    step: int
    save_id: str
    world_size: int
    overwrite: bool
    started_at: float

    @classmethod
    def of(cls, part: SaveIds, started_at: float) -> Claimant:
        """Return the save that ``part`` is of."""
        ids = (part.run, part.step, part.save_id, part.world_size, part.overwrite)
        return cls(*ids, started_at)


class ClaimState(Enum):
    """The state of a save's claim on the manifest, which says what the save may do."""

    CLAIM = auto()
    HOLD = auto()
    REPLACE_WHEN_WHOLE = auto()
    PUBLISHED = auto()
    SUPERSEDED = auto()
    REFUSED = auto()
    DELETED = auto()


def claim_state(save: Claimant, seen: Manifest | None) -> ClaimState:
    """Return the state of the claim of ``save`` on the manifest ``seen``."""
    if seen is None:
        return ClaimState.CLAIM
    if seen.save_id == save.save_id:
        return {
            CLAIMED: ClaimState.HOLD,
            PUBLISHED: ClaimState.PUBLISHED,
            DELETED: ClaimState.DELETED,
        }[seen.state]
    if seen.state == PUBLISHED and not save.overwrite:
        return ClaimState.REFUSED
    if not is_newer(save, seen):
        return ClaimState.SUPERSEDED
    return ClaimState.REPLACE_WHEN_WHOLE if seen.state == PUBLISHED else ClaimState.CLAIM


def is_newer(save: Claimant, seen: Manifest) -> bool:
    """Return whether ``save`` comes after the save that wrote ``seen``."""
    return save.save_id not in seen.replaces and save.started_at > seen.started_at


def location_of(save: Claimant, seen: Manifest | None, *, spread: bool) -> str:
    """Return where the shards of ``save`` go, once its standing allows it to write."""
    if seen is None:
        return plain_location(save.step, spread=spread)
    if seen.save_id == save.save_id:
        return seen.location
    return own_location(save.step, save.save_id, spread=spread)


def claim(save: Claimant, seen: Manifest | None, nonce: str, *, spread: bool) -> Manifest:
    """Return the document that claims the step for ``save`` over ``seen``."""
    earlier = set() if seen is None else {*seen.replaces, seen.save_id}
    return Manifest(
        state=CLAIMED,
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        location=location_of(save, seen, spread=spread),
        nonce=nonce,
        started_at=save.started_at,
        replaces=tuple(sorted(earlier - {save.save_id})),
        world_size=save.world_size,
    )
