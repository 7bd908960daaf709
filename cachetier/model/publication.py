"""The documents that the rules of ``cachetier_client.bucket_format.publication`` lead to."""

from __future__ import annotations

from collections.abc import Iterable

from cachetier_client.bucket_format import publication as rules
from cachetier_client.bucket_format.publication import Claimant, ManifestState

from cachetier.model.checkpoint import Save
from cachetier.model.documents import Manifest, PartDocument, ShardEntry


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


def claim(save: Claimant, seen: Manifest | None, nonce: str, *, spread: bool = False) -> Manifest:
    """Return the document that claims the step for ``save`` over ``seen``."""
    return Manifest(**rules.claim(save, seen, nonce, spread=spread))


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
    if rules.claim_state(save, seen).has_no_future:
        return None
    if seen is None or seen.save_id == save.save_id:
        return tombstone(save, location, seen, nonce)
    replaces = tuple(sorted({*seen.replaces, save.save_id}))
    return seen.model_copy(update={"replaces": replaces, "nonce": nonce})
