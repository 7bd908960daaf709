"""The ownership of a step's manifest: the only arbitration between saves of different nodes.

``manifest.json`` moves absent → claimed → published → deleted by conditional puts of a small
document with a nonce. The first save to claim an absent manifest takes the plain keys; any other
save uses keys of its own, so data keys are written by one save only. A claim reserves keys; it
never stands in the way of a save that is whole:

=============  ============================  =======================================
manifest is    and belongs to                then this save
=============  ============================  =======================================
absent         —                             claims it, at the plain location
claimed        this save                     uses the location of the claim
claimed        an older save that has ended  claims it, at a location of its own
claimed        another                       replaces it, once this save is whole
published      this save                     is published
published      an older save; or overwrite   replaces it, once this save is whole
published      another                       is refused
deleted        this save                     is deleted
deleted        another                       claims it, at a location of its own
any            another that replaced this    is superseded
=============  ============================  =======================================

Save ids have no order. A save is newer than another if its node saw the other arrive first, or if
the manifest says so. Where nobody knows, the first that is whole is published: no clock is asked.

Source: docs/design/0002-save-identity.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    PartReference,
    ReadPart,
    ShardEntry,
)
from cachetier_client.bucket_format.layout import own_location, plain_location
from cachetier_client.errors import IntegrityError
from cachetier_client.identity.names import SaveIds

RACES = 20  # how often a writer who lost a race for the manifest reads it again
LEADER = 0  # the rank that others may follow
MANIFEST_NONCE_KEY = "cachetier-nonce"  # metadata of a manifest


@dataclass(frozen=True, slots=True)
class Claimant:
    """A save that wants its step, and what this node saw before it.

    ``replaced`` ended when it came; ``preceding`` stand until it is whole.
    """

    run: str
    step: int
    save_id: str
    world_size: int
    overwrite: bool
    started_at: float
    replaced: tuple[str, ...] = ()
    preceding: tuple[str, ...] = ()

    @classmethod
    def of(cls, ids: SaveIds, started_at: float) -> Claimant:
        """Return the save that ``ids`` are of."""
        return cls(ids.run, ids.step, ids.save_id, ids.world_size, ids.overwrite, started_at)


class ClaimState(Enum):
    """The state of a save's claim on the manifest, which says what the save may do."""

    CLAIM = auto()
    HOLD = auto()
    REPLACE_WHEN_WHOLE = auto()
    PUBLISHED = auto()
    SUPERSEDED = auto()
    REFUSED = auto()
    DELETED = auto()

    @property
    def has_no_future(self) -> bool:
        """Whether the save can never be published."""
        return self in (ClaimState.SUPERSEDED, ClaimState.REFUSED, ClaimState.DELETED)


def claim_state(save: Claimant, seen: Manifest | None) -> ClaimState:
    """Return the state of the claim of ``save`` on the manifest ``seen``.

    A save comes after those that somebody saw it replace. Of two that nobody ordered, the first
    that is whole gets the step: neither waits for the claim of the other, whose node may be lost,
    and the clocks of their nodes may differ.
    """
    if seen is None:
        return ClaimState.CLAIM
    if seen.save_id == save.save_id:
        return {
            ManifestState.CLAIMED: ClaimState.HOLD,
            ManifestState.PUBLISHED: ClaimState.PUBLISHED,
            ManifestState.DELETED: ClaimState.DELETED,
        }[seen.state]
    is_newer = seen.save_id in (*save.replaced, *save.preceding)
    published = seen.state is ManifestState.PUBLISHED
    if published and not (save.overwrite or is_newer):
        return ClaimState.REFUSED
    if save.save_id in seen.replaces:
        return ClaimState.SUPERSEDED
    has_ended = seen.save_id in save.replaced or seen.state is ManifestState.DELETED
    return ClaimState.CLAIM if has_ended and not published else ClaimState.REPLACE_WHEN_WHOLE


def location_of(save: Claimant, seen: Manifest | None, *, spread: bool = False) -> str:
    """Return where the shards of ``save`` go, once its standing allows it to write.

    It is the same whoever has the step by the time that a node of the save asks.
    """
    if seen is not None and seen.save_id == save.save_id:
        return seen.location
    if seen is None or _first_of(seen) == save.save_id:
        return plain_location(save.step, spread=spread)
    return own_location(save.step, save.save_id, spread=spread)


def _first_of(seen: Manifest) -> str | None:
    """Return the save that has the plain keys."""
    plain = (plain_location(seen.step), plain_location(seen.step, spread=True))
    return seen.save_id if seen.location in plain else seen.first


# --- which save is whole --------------------------------------------------------------------------


def missing_ranks(world_size: int, there: Iterable[int]) -> list[int]:
    """Return the ranks whose parts a save still needs before it may be published, ascending.

    This is the rule of publication: each rank's part has to be there. Every judgement of it asks
    here or ``is_whole``; whether the ranks *of one node* have sealed is another question.

    Args:
        world_size: How many ranks the save has.
        there: The ranks whose parts are there, or sealed, where the caller looks.
    """
    return sorted(set(range(world_size)).difference(there))


def is_whole(world_size: int, there: Iterable[int]) -> bool:
    """Return whether a save may be published with the parts of the ranks ``there``."""
    return not missing_ranks(world_size, there)


def published_ranks(world_size: int, there: Iterable[int]) -> list[int]:
    """Return the ranks whose parts the manifest of a whole save names, ascending."""
    return sorted(set(range(world_size)).intersection(there))


# --- documents -----------------------------------------------------------------------------------


def claim(save: Claimant, seen: Manifest | None, nonce: str, *, spread: bool = False) -> Manifest:
    """Return the document that claims the step for ``save`` over ``seen``.

    A claim that nobody saw it replace is not entered as replaced: what overwrites may come yet.
    """
    earlier = {*save.replaced}
    if seen is not None:
        earlier.update(seen.replaces)
        if seen.state is not ManifestState.CLAIMED:
            earlier.add(seen.save_id)
    return Manifest(
        state=ManifestState.CLAIMED,
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        location=location_of(save, seen, spread=spread),
        nonce=nonce,
        started_at=save.started_at,
        replaces=tuple(sorted(earlier - {save.save_id})),
        world_size=save.world_size,
        first=_first_of(seen) if seen is not None else None,
    )


def part_of(save: Claimant | SaveIds, rank: int, shards: Iterable[ShardEntry]) -> PartDocument:
    """Return the document of a rank's part."""
    return PartDocument(
        run=save.run,
        step=save.step,
        save_id=save.save_id,
        rank=rank,
        world_size=save.world_size,
        shards=tuple(sorted(shards, key=lambda shard: shard.name)),
    )


def are_of(save: Claimant, parts: Iterable[ReadPart]) -> bool:
    """Return whether ``parts`` are all of ``save``: those of another do not count."""
    ours = (save.step, save.save_id, save.world_size)
    return all((part.step, part.save_id, part.world_size) == ours for part, _ in parts)


def published(
    save: Claimant,
    location: str,
    seen: Manifest | None,
    parts: Sequence[ReadPart],
    *,
    at: float,
    nonce: str,
) -> Manifest:
    """Return what publishes ``save``, whose objects are at ``location``, over ``seen``.

    Raises:
        IntegrityError: The save has claimed the step at another location, or two ranks put
            different bytes by one name.
    """
    if seen is None or seen.save_id != save.save_id:
        seen = replace(claim(save, seen, ""), location=location)
    elif seen.location != location:
        raise IntegrityError(
            f"step {save.step} is claimed at {seen.location}, not at {location}",
            run=save.run,
            step=save.step,
        )
    try:
        return replace(
            seen,
            state=ManifestState.PUBLISHED,
            published_at=at,
            nonce=nonce,
            replaces=tuple(sorted({*seen.replaces, *save.preceding} - {save.save_id})),
            world_size=save.world_size,
            parts=tuple(_reference(part, digest) for part, digest in parts),
            shards=tuple(shard.summary() for part, _ in parts for shard in part.shards),
        )
    except ValueError as error:
        raise IntegrityError(
            f"step {save.step} cannot be published: {error}",
            hint="Save the step again; each rank's shards need names of their own.",
            run=save.run,
            step=save.step,
        ) from None


def _reference(part: PartDocument, digest: str) -> PartReference:
    size_bytes = sum(shard.size_bytes for shard in part.shards)
    return PartReference(
        rank=part.rank, digest=digest, shards=len(part.shards), size_bytes=size_bytes
    )


def deleted(seen: Manifest, nonce: str) -> Manifest:
    """Return the tombstone of ``seen``: readers treat the step as gone before its objects go."""
    return replace(seen, state=ManifestState.DELETED, nonce=nonce, parts=(), shards=())


def tombstone(save: Claimant, location: str, seen: Manifest | None, nonce: str) -> Manifest | None:
    """Return what deletes ``save``, or None where the manifest is another's, or does so already."""
    if seen is None:
        return deleted(replace(claim(save, None, ""), location=location), nonce)
    if seen.save_id != save.save_id or seen.state is ManifestState.DELETED:
        return None
    return deleted(seen, nonce)


def given_up(save: Claimant, location: str, seen: Manifest | None, nonce: str) -> Manifest | None:
    """Return what keeps ``save``, which is not published, from ever being; None: what is there.

    Where the manifest is another save's, ``save`` is entered there among those that came before.
    """
    if claim_state(save, seen).has_no_future:
        return None
    if seen is None or seen.save_id == save.save_id:
        return tombstone(save, location, seen, nonce)
    return replace(seen, replaces=tuple(sorted({*seen.replaces, save.save_id})), nonce=nonce)
