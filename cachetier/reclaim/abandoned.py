"""Find abandoned saves by what the bucket says of them, and end them there.

A save may go of which a rank here never sealed: no other node can complete it. One that lacks other
nodes' ranks alone is theirs to complete with what they acknowledged and have not sent yet, however
long that takes; it stays. So does one that fsck took back, until its ranks here seal it again.

Before anything of a save goes here it is ended in the bucket, over the very manifest that was
looked at. Whoever publishes it in between was first, and it stays; whoever comes later finds it
ended. After a crash between the two the drain finds that, or the next collection.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import SeenManifest, manifest_of
from cachetier_client.bucket_format.publication import Claimant, ClaimState

from cachetier.local.catalog import notes, saves
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import PartState
from cachetier.remote.bucket import Bucket

RANKS_NAMED = 5
_TAKEN_BACK = "taken back by fsck, and a rank here has not sealed it since"
_PAST_US = "its ranks here sealed past this service, which is to complete them"
_HOPEFUL = (ClaimState.CLAIM, ClaimState.HOLD, ClaimState.REPLACE_WHEN_WHOLE)


@dataclass(frozen=True, slots=True)
class SaveInBucket:
    """The documents of an incomplete save in the bucket.

    ``location`` is where its objects are (None: nobody sent any), ``hopeless`` that nobody can
    complete it. ``left`` says why it stays that is not hopeless; empty where it ends by itself.
    """

    claimant: Claimant
    seen: SeenManifest | None
    location: str | None
    hopeless: bool = False
    left: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether no other save has the step in the bucket."""
        return self.seen is None or self.seen.manifest.save_id == self.claimant.save_id


class AbandonedSaves:
    """Looks for incomplete saves at the durable remote, and ends them. Thread-safe."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        *,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._nonce = nonce

    def look(self, save: Save) -> SaveInBucket:
        """Ask the bucket about ``save``, which is incomplete by what is known here.

        Raises:
            RemoteError: It cannot say.
            IntegrityError: The manifest is damaged.
        """
        claimant = self._store.read(saves.claimant, save)
        seen = self._bucket.manifest(save.run, save.step)
        manifest = manifest_of(seen)
        claimed = manifest is not None and manifest.save_id == save.save_id
        location = save.location or (manifest.location if manifest and claimed else None)
        look = SaveInBucket(claimant, seen, location)
        claim_state = publication.claim_state(claimant, manifest)
        unsealed = self._store.read(saves.lacks_ranks_here, save)
        taken_back = self._store.read(notes.was_taken_back, save)
        if unsealed and taken_back and claim_state is not ClaimState.PUBLISHED:
            return replace(look, left=_TAKEN_BACK)
        if claim_state not in _HOPEFUL:
            ended = unsealed and claim_state is not ClaimState.PUBLISHED
            return replace(look, hopeless=ended)
        missing, past_us = self._missing(save, location)
        if not missing:
            return look  # whoever looks next publishes it
        if unsealed and not past_us:
            return replace(look, hopeless=True)
        return replace(look, left=_PAST_US if unsealed else _awaited(missing, save.world_size))

    def end(self, look: SaveInBucket) -> bool:
        """Make sure that the save of ``look`` is never published; False if it may not go any more.

        Raises:
            RemoteError: It may be ended, or not.
        """
        seen, location = look.seen, look.location
        if seen is None and location is None:
            return True  # nothing of it is there, and nobody claimed it
        manifest = manifest_of(seen)
        document = publication.given_up(look.claimant, location or "", manifest, self._nonce())
        return document is None or self._bucket.put_manifest(document, seen) is not None

    def _missing(self, save: Save, location: str | None) -> tuple[list[int], bool]:
        """Return the ranks without a part there, and whether those open here sealed past us."""
        if location is None:
            return publication.missing_ranks(save.world_size, ()), False
        layout = self._bucket.layout
        keys = set(self._bucket.objects.list(layout.parts_prefix(save.run, location)).keys)
        ranks = range(save.world_size)
        sealed = {r for r in ranks if layout.part_key(save.run, location, r) in keys}
        pending = {r for r in ranks if layout.pending_key(save.run, location, r) in keys}
        parts = self._store.read(saves.parts_of, save.number)
        here = {part.rank for part in parts if part.state is PartState.OPEN}
        past_us = bool(here) and here <= sealed | pending
        return publication.missing_ranks(save.world_size, sealed), past_us


def _awaited(ranks: Sequence[int], world_size: int) -> str:
    """Say that a save only lacks ``ranks``."""
    named = ", ".join(map(str, ranks[:RANKS_NAMED]))
    more = f" and {len(ranks) - RANKS_NAMED} more" if len(ranks) > RANKS_NAMED else ""
    noun, verb = ("rank", "is") if len(ranks) == 1 else ("ranks", "are")
    return f"whole here; {noun} {named}{more} of {world_size} {verb} to come from other nodes"
