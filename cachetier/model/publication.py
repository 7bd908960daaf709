"""Who owns a step's manifest: the only arbitration between saves of different nodes.

``manifest.json`` moves absent → claimed → published → deleted by conditional puts of a small
document with a nonce. The first save to claim an absent manifest takes the plain keys; any other
save uses keys of its own, so data keys are written by one save only. A claim reserves keys; it
never stands in the way of a newer save:

=============  ============================  =======================================
manifest is    and belongs to                then this save
=============  ============================  =======================================
absent         —                             claims it, at the plain location
claimed        this save                     uses the location of the claim
claimed        an older save                 claims it, at a location of its own
claimed        a newer save                  is superseded
published      this save                     is published
published      another; overwrite is set     replaces it, once this save is whole
published      another                       is refused
deleted        this save                     is deleted
deleted        another                       as if claimed by it
=============  ============================  =======================================

Save ids have no order. A save is newer than another if its node saw the other arrive first, or if
the manifest says so; otherwise the later start wins. The outcome of a wrong clock is that the older
of two complete saves is published: never a mix of the two, never a lost byte.

Source: docs/design/0002-save-identity.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from cachetier.model.checkpoint import Save
from cachetier.model.documents import Manifest, ManifestState, PartDocument, ShardEntry
from cachetier.model.layout import own_location, plain_location


@dataclass(frozen=True, slots=True)
class Claimant:
    """A save that wants its step; ``replaced`` are the saves this node saw it supersede."""

    run: str
    step: int
    save_id: str
    world_size: int
    overwrite: bool
    started_at: float
    replaced: tuple[str, ...] = ()


def claimant_of(save: Save, replaced: tuple[str, ...]) -> Claimant:
    """Return ``save`` as the bucket's arbitration knows it; ``replaced`` came before it here."""
    return Claimant(
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        world_size=save.world_size,
        overwrite=save.overwrite,
        started_at=save.started_at,
        replaced=replaced,
    )


def part_of(claimant: Claimant, rank: int, shards: Iterable[ShardEntry]) -> PartDocument:
    """Return the document of a rank's part, which has the same bytes whoever writes it."""
    return PartDocument(
        run=claimant.run,
        step=claimant.step,
        save_id=claimant.save_id,
        rank=rank,
        world_size=claimant.world_size,
        shards=tuple(sorted(shards, key=lambda shard: shard.name)),
    )


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
            ManifestState.CLAIMED: ClaimState.HOLD,
            ManifestState.PUBLISHED: ClaimState.PUBLISHED,
            ManifestState.DELETED: ClaimState.DELETED,
        }[seen.state]
    if seen.state is ManifestState.PUBLISHED and not save.overwrite:
        return ClaimState.REFUSED
    if not is_newer(save, seen):
        return ClaimState.SUPERSEDED
    if seen.state is ManifestState.PUBLISHED:
        return ClaimState.REPLACE_WHEN_WHOLE
    return ClaimState.CLAIM


def is_newer(save: Claimant, seen: Manifest) -> bool:
    """Return whether ``save`` comes after the save that wrote ``seen``."""
    if save.save_id in seen.replaces:
        return False
    return seen.save_id in save.replaced or save.started_at > seen.started_at


def location_of(save: Claimant, seen: Manifest | None, *, spread: bool = False) -> str:
    """Return where the shards of ``save`` go, once its standing allows it to write."""
    if seen is None:
        return plain_location(save.step, spread=spread)
    if seen.save_id == save.save_id:
        return seen.location
    return own_location(save.step, save.save_id, spread=spread)


def claim(save: Claimant, seen: Manifest | None, nonce: str, *, spread: bool = False) -> Manifest:
    """Return the document that claims the step for ``save`` over ``seen``."""
    return Manifest(
        state=ManifestState.CLAIMED,
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        location=location_of(save, seen, spread=spread),
        nonce=nonce,
        started_at=save.started_at,
        replaces=_replaces(save, seen),
        world_size=save.world_size,
    )


def _replaces(save: Claimant, seen: Manifest | None) -> tuple[str, ...]:
    earlier = () if seen is None else (*seen.replaces, seen.save_id)
    return tuple(sorted({*earlier, *save.replaced} - {save.save_id}))


def published(claimed: Manifest, *, at: float, nonce: str, **content: object) -> Manifest:
    """Return ``claimed`` as a published manifest, its parts and shards being ``content``."""
    update = {"state": ManifestState.PUBLISHED, "published_at": at, "nonce": nonce, **content}
    return claimed.model_copy(update=update)


def deleted(seen: Manifest, nonce: str) -> Manifest:
    """Return the tombstone of ``seen``: readers treat the step as gone before its objects go."""
    update = {"state": ManifestState.DELETED, "nonce": nonce, "parts": (), "shards": ()}
    return seen.model_copy(update=update)


def tombstone(save: Claimant, location: str, seen: Manifest | None, nonce: str) -> Manifest | None:
    """Return what deletes ``save``, or None where the manifest is another's, or does so already."""
    if seen is None:
        claimed = claim(save, None, "").model_copy(update={"location": location})
        return deleted(claimed, nonce)
    if seen.save_id != save.save_id or seen.state is ManifestState.DELETED:
        return None
    return deleted(seen, nonce)


def given_up(save: Claimant, location: str, seen: Manifest | None, nonce: str) -> Manifest | None:
    """Return what keeps ``save``, which is not published, from ever being; None: what is there.

    Where the manifest is another save's, ``save`` is entered there among those that came before.
    """
    where = claim_state(save, seen)
    if where in (ClaimState.SUPERSEDED, ClaimState.REFUSED, ClaimState.DELETED):
        return None
    if seen is None or seen.save_id == save.save_id:
        return tombstone(save, location, seen, nonce)
    replaces = tuple(sorted({*seen.replaces, save.save_id}))
    return seen.model_copy(update={"replaces": replaces, "nonce": nonce})
