"""The publisher: claims a step for a save, writes rank parts, publishes, deletes.

A library over ``Bucket``, by the rules of ``bucket_format.publication``: each method reads the
manifest, decides, and writes under a condition; whoever loses a race reads again and decides again.
What this drain wrote itself (``OwnWrites``) is not read before the next write. All of it may be
repeated at any time, after a crash or a lost reply.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    ReadPart,
    SeenManifest,
    ShardEntry,
    ShardSummary,
    manifest_of,
)
from cachetier_client.bucket_format.publication import LEADER, RACES, Claimant, ClaimState
from cachetier_client.bucket_format.uploads import SINGLE_PUT_BYTES
from cachetier_client.clock import Clock
from cachetier_client.io.digests import to_hex

from cachetier.drain.publish.own_writes import OwnWrites
from cachetier.errors import RemoteRefusedError, TransientError
from cachetier.model.lifecycle import SaveState
from cachetier.remote.bucket import Bucket, Each
from cachetier.remote.ownership import owned_keys

SWEEPS = 5
CROWD_RANKS = 64
GIVE_WAY_SECONDS = 20.0

Ours = Callable[[Sequence[str]], set[str]]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a save ended; ``message`` is for its clients, empty where nothing went wrong."""

    state: SaveState
    message: str = ""


@dataclass(frozen=True, slots=True)
class Located:
    """The save may write, at ``location``; where it is ``published``, only what is there already.

    That is news where the disk of its node went back in time.
    """

    location: str
    published: bool = False


@dataclass(frozen=True, slots=True)
class NotWhole:
    """A save lacks parts; those of ``ranks`` are there."""

    ranks: tuple[int, ...]


class LostShardsError(Exception):
    """``shards`` that were verified are not in the bucket any more."""

    def __init__(self, shards: Sequence[ShardEntry]) -> None:
        names = ", ".join(shard.name for shard in shards[:5])
        super().__init__(f"not in the bucket any more: {names}")
        self.shards = tuple(shards)


class Publisher:
    """Claims, publishes and deletes saves in one bucket. Thread-safe."""

    def __init__(
        self,
        bucket: Bucket,
        clock: Clock,
        *,
        each: Each = map,
        confirm: Callable[[], bool] = lambda: True,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """A publisher; ``confirm`` says before a publication whether nobody else writes as we."""
        self._bucket = bucket
        self._confirm = confirm
        self._clock = clock
        self._each = each
        self._nonce = nonce
        self._own = OwnWrites(clock)
        # Saves whose parts were not all there when we looked, and until when others publish them.
        self._gives_way: dict[tuple[str, str], float] = {}

    def claim(self, save: Claimant) -> Located | Ended:
        """Secure the step for ``save``, and with it the location of its objects.

        Raises:
            TransientError: Others keep changing the manifest.
        """
        for seen in self._tries(save):
            claim_state = publication.claim_state(save, manifest_of(seen))
            if claim_state is ClaimState.CLAIM:
                claimed = publication.claim(
                    save, manifest_of(seen), self._nonce(), spread=self._bucket.layout.spread
                )
                written = self._bucket.put_manifest(claimed, seen)
                if written is None:
                    continue
                self._own.claimed(written)
                return Located(claimed.location)
            if claim_state.has_no_future:
                return _ended(save, claim_state, manifest_of(seen))
            spread = self._bucket.layout.spread
            location = publication.location_of(save, manifest_of(seen), spread=spread)
            return Located(location, claim_state is ClaimState.PUBLISHED)
        raise _too_many_races(save)

    def write_part(
        self, save: Claimant, location: str, rank: int, shards: Sequence[ShardEntry]
    ) -> None:
        """Write the part of ``rank``, after a HEAD of each object that holds its ``shards``.

        Raises:
            LostShardsError: Some are not there as they were verified.
            IntegrityError: Another part of this rank is there.
        """
        self._look(save, location, shards)
        self._gives_way.pop((save.run, location), None)
        part = publication.part_of(save, rank, shards)
        body = self._bucket.put_part(part, location)
        self._own.wrote_part(location, part, body)

    def is_fixed(self, save: Claimant, location: str, rank: int, name: str, digest: int) -> bool:
        """Return whether a document of ``save`` says that other bytes than ours lie at ``name``.

        Those are its rank's part, which is written once, and the manifest once it is published.

        Raises:
            IntegrityError: One of them is damaged.
        """
        documents: list[Sequence[ShardSummary]] = []
        if rank in self._bucket.part_ranks(save.run, location):
            documents.append(self._part(save, location, rank)[0].shards)
        manifest = self._bucket.published(save.run, save.step)
        if manifest is not None and manifest.save_id == save.save_id:
            documents.append(manifest.shards)
        ours = name, to_hex(digest)
        return any(
            ours not in {(each.name, each.digest) for each in listed} for listed in documents
        )

    def publish(self, save: Claimant, location: str) -> Ended | NotWhole:
        """Publish ``save`` if its every rank's part is there.

        Raises:
            LostShardsError: Some shards are not there as its parts say.
            IntegrityError: Its objects are elsewhere, or a part is damaged.
            TransientError: Others keep changing the manifest.
        """
        own = self._own_publication(save, location)
        sure = own is not None and self._confirm()
        if own is not None and sure and self._bucket.put_manifest(*own) is not None:
            return Ended(SaveState.PUBLISHED)
        for seen in self._tries(save):
            manifest = manifest_of(seen)
            claim_state = publication.claim_state(save, manifest)
            if claim_state is ClaimState.PUBLISHED or claim_state.has_no_future:
                self._gives_way.pop((save.run, location), None)
                return _ended(save, claim_state, manifest)
            whole = self._whole(save, location)
            if isinstance(whole, NotWhole):
                return whole
            sure = own is None and self._confirm()
            self._look_again(save, location, whole, everything=not sure)
            if self._bucket.put_manifest(self._publication(save, location, seen, whole), seen):
                return Ended(SaveState.PUBLISHED)
        raise _too_many_races(save)

    def follow(self, save: Claimant, location: str) -> Ended | bool:
        """Return whether rank 0 of ``save`` has sealed, by its part, or how the save ended.

        Raises:
            IntegrityError: Its part is damaged.
        """
        manifest = manifest_of(self._bucket.manifest(save.run, save.step))
        claim_state = publication.claim_state(save, manifest)
        if claim_state is ClaimState.PUBLISHED or claim_state.has_no_future:
            return _ended(save, claim_state, manifest)
        if LEADER not in self._bucket.part_ranks(save.run, location):
            return False
        return publication.are_of(save, [self._part(save, location, LEADER)])

    def location_of(self, save: Claimant) -> str | None:
        """Return where the manifest says the objects of ``save`` are; None if it says nothing."""
        manifest = manifest_of(self._bucket.manifest(save.run, save.step))
        return manifest.location if manifest and manifest.save_id == save.save_id else None

    def delete(self, save: Claimant, location: str, ours: Ours) -> tuple[str, ...]:
        """Take ``save`` off the bucket: its tombstone first, then its objects.

        What says which they are goes last, so that it may be repeated after a crash anywhere.

        Args:
            save: What to delete.
            location: Where its objects are.
            ours: As for ``sweep``.

        Returns:
            The keys of objects there that are not the save's: they stay.

        Raises:
            TransientError: Others keep changing the manifest.
        """
        self._own.forget(save, location)
        self._gives_way.pop((save.run, location), None)
        for seen in self._tries(save):
            tombstone = publication.tombstone(save, location, manifest_of(seen), self._nonce())
            if tombstone is None or self._bucket.put_manifest(tombstone, seen) is not None:
                break
        else:
            raise _too_many_races(save)
        self.sweep(save, location, ours)
        found = owned_keys(self._bucket, save, location, each=self._each)
        for keys in (found.shards, found.packs, found.parts):
            for _ in self._each(self._bucket.objects.delete, keys):
                pass
        return found.others

    def sweep(self, save: Claimant, location: str, ours: Ours) -> None:
        """Abort what ``save``, which has ended, left unfinished: uploads of lost replies or kills.

        Whoever else has an upload under way beside it, or in it, keeps it. Where the store does not
        let us list uploads there is nothing to be done.

        Args:
            save: Whose uploads.
            location: Where its objects are.
            ours: Picks from names those that are shards of the save on this node.

        Raises:
            TransientError: Some uploads that the store said it aborted are still there.
        """
        for prefix in self._bucket.layout.shard_prefixes(save.run, location):
            self._sweep_prefix(save, prefix, ours)

    def _sweep_prefix(self, save: Claimant, prefix: str, ours: Ours) -> None:
        for _ in range(SWEEPS):
            try:
                found = list(self._bucket.objects.list_uploads(prefix))
            except RemoteRefusedError:
                return
            names = {key.removeprefix(prefix) for key, _ in found if key.startswith(prefix)}
            wanted = ours(sorted(names)) if names else set()
            left = [(key, upload) for key, upload in found if key.removeprefix(prefix) in wanted]
            if not left:
                return
            for key, upload_id in left:
                self._bucket.objects.abort_upload(key, upload_id)
        raise TransientError(
            f"unfinished uploads of {prefix} cannot be removed", run=save.run, step=save.step
        )

    # --- claiming and publishing -----------------------------------------------------------------

    def _tries(self, save: Claimant) -> Iterator[SeenManifest | None]:
        """Yield the manifest as it is now, again after each lost race."""
        for _ in range(RACES):
            yield self._bucket.manifest(save.run, save.step)

    def _look_again(
        self, save: Claimant, location: str, parts: Sequence[ReadPart], *, everything: bool
    ) -> None:
        """Look again at what went in parts, but for what this drain verified a moment ago.

        At ``everything`` where somebody else wrote as we. No condition protects a multipart upload:
        one whose caller died long ago may still end.

        Raises:
            LostShardsError: Some are not there as their part says.
        """
        older = [
            part
            for part, _ in parts
            if everything or not self._own.part(save.run, location, part.rank)
        ]
        shards = [shard for part in older for shard in part.shards]
        in_parts = [each for each in shards if not each.pack and each.size_bytes > SINGLE_PUT_BYTES]
        self._look(save, location, shards if everything else in_parts)

    def _look(self, save: Claimant, location: str, shards: Sequence[ShardEntry]) -> None:
        """Look at the object of each of ``shards``; a pack is asked for once.

        Raises:
            LostShardsError: Some are not there as they were verified.
        """
        held: dict[str, list[ShardEntry]] = {}
        for shard in shards:
            key = self._bucket.layout.object_key(save.run, location, shard.name, shard.pack_name)
            held.setdefault(key, []).append(shard)

        def is_there(key: str) -> bool:
            digest, stored = int(held[key][0].digest, 16), held[key][0].stored()
            return self._bucket.has(key, save.save_id, digest, stored)

        found = zip(held.values(), self._each(is_there, held), strict=True)
        lost = [shard for group, there in found if not there for shard in group]
        if lost:
            self._bucket.objects.check()  # a bucket that is gone looks the same
            raise LostShardsError(lost)

    def _own_publication(
        self, save: Claimant, location: str
    ) -> tuple[Manifest, SeenManifest] | None:
        """Return what publishes what we wrote all of, over our own claim, which are forgotten."""
        seen = self._own.claim(save)
        if seen is None:
            return None
        found = [self._own.part(save.run, location, rank) for rank in range(save.world_size)]
        parts = [part for part in found if part is not None]
        ranks = [part.rank for part, _ in parts]
        if not publication.is_whole(save.world_size, ranks) or not publication.are_of(save, parts):
            return None
        self._own.forget(save, location)
        return self._publication(save, location, seen, parts), seen

    def _part(self, save: Claimant, location: str, rank: int) -> ReadPart:
        own = self._own.part(save.run, location, rank)
        return own or self._bucket.part_with_digest(save.run, location, rank)

    def _whole(self, save: Claimant, location: str) -> list[ReadPart] | NotWhole:
        """Return the parts that publish ``save``, if they are there and none is of another."""
        there = self._bucket.part_ranks(save.run, location)
        whole = publication.is_whole(save.world_size, there)
        if self._is_left_to_others(save, location, whole=whole):
            return NotWhole(tuple(sorted(there)))
        ranks = publication.published_ranks(save.world_size, there)
        parts = list(self._each(lambda rank: self._part(save, location, rank), ranks))
        return parts if publication.are_of(save, parts) else NotWhole(tuple(ranks))

    def _is_left_to_others(self, save: Claimant, location: str, *, whole: bool) -> bool:
        """Return whether ``save`` is not to be published here, or not yet.

        Whoever writes the last part publishes. Where there are many ranks the nodes that looked in
        vain before leave it to that one for a while: else hundreds would read all parts at once,
        and the store would throttle the one that matters.
        """
        key, now = (save.run, location), self._clock.monotonic()
        if not whole:
            if save.world_size > CROWD_RANKS:
                self._gives_way[key] = math.inf
            return True
        until = self._gives_way.get(key, 0.0)
        if until == math.inf:
            until = self._gives_way[key] = now + GIVE_WAY_SECONDS
        return now < until

    def _publication(
        self, save: Claimant, location: str, seen: SeenManifest | None, parts: Sequence[ReadPart]
    ) -> Manifest:
        return publication.published(
            save, location, manifest_of(seen), parts, at=self._clock.now(), nonce=self._nonce()
        )


def _ended(save: Claimant, claim_state: ClaimState, seen: Manifest | None) -> Ended:
    other = seen.save_id if seen is not None else ""
    what = f"save {save.save_id} of step {save.step}"
    if claim_state is ClaimState.PUBLISHED:
        return Ended(SaveState.PUBLISHED)
    if claim_state is ClaimState.DELETED:
        return Ended(SaveState.DELETED)
    if claim_state is ClaimState.REFUSED:
        return Ended(SaveState.REFUSED, f"{what} is refused: save {other} is published")
    published = seen is not None and seen.state is ManifestState.PUBLISHED
    message = f"{what} is superseded: the newer save {other} is published" if published else ""
    return Ended(SaveState.SUPERSEDED, message)


def _too_many_races(save: Claimant) -> TransientError:
    return TransientError(
        f"the manifest of step {save.step} keeps changing", run=save.run, step=save.step
    )
