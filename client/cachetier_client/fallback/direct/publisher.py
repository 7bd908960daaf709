"""Bring a save into the bucket without a service: claim its step, write a part, publish it.

As the service's ``drain/publish/publisher.py`` does: each method reads the manifest, decides by
the rules of ``publication``, and writes under a condition; whoever loses a race reads again. All
of it may be repeated at any time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import (
    Manifest,
    PartDocument,
    PendingSeal,
    ReadPart,
    SeenManifest,
    encode,
    manifest_of,
    read_manifest,
    read_part,
)
from cachetier_client.bucket_format.layout import Layout, rank_of_part
from cachetier_client.bucket_format.publication import (
    LEADER,
    MANIFEST_NONCE_KEY,
    RACES,
    Claimant,
    ClaimState,
)
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import (
    AbortedError,
    CachetierClientError,
    IntegrityError,
    PreconditionFailedError,
    RemoteUnavailableError,
    SaveSupersededError,
    SealedError,
    StepPublishedError,
)
from cachetier_client.fallback.direct.remote import DirectBucket
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of


class DirectPublisher:
    """Claims and publishes saves in one bucket. Thread-safe."""

    def __init__(
        self,
        objects: DirectBucket,
        clock: Clock,
        *,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._objects = objects
        self._layout = Layout(objects.address.prefix, objects.address.spread)
        self._clock = clock
        self._nonce = nonce

    def claim(self, save: Claimant, deadline: Deadline) -> str:
        """Secure the step for ``save``; return the location of its objects.

        Raises:
            SaveSupersededError, StepPublishedError, AbortedError: As the service would.
        """
        for seen in self._tries(save, deadline):
            manifest, spread = manifest_of(seen), self._layout.spread
            claim_state = publication.claim_state(save, manifest)
            if claim_state is ClaimState.CLAIM:
                claimed = publication.claim(save, manifest, self._nonce(), spread=spread)
                if self._put_manifest(claimed, seen, deadline):
                    return claimed.location
                continue
            _refuse_ended(save, claim_state, manifest)
            return publication.location_of(save, manifest, spread=spread)
        raise _too_many_races(save)

    def write_part(
        self,
        part: PartDocument,
        location: str,
        deadline: Deadline,
        over: PartDocument | None = None,
    ) -> None:
        """Write the part of a rank; again, nothing changes.

        Args:
            over: What this client wrote of the part before, which then had fewer shards.

        Raises:
            IntegrityError: Another part of this rank is there.
        """
        key = self._layout.part_key(part.run, location, part.rank)
        body, version = encode(part), None
        if over not in (None, part):
            found = self._objects.get(key, deadline)
            version = found[1] if found is not None and found[0] == encode(over) else None
        try:
            self._objects.put(key, [body], deadline, digest=digest_of(body), over=version)
        except PreconditionFailedError:
            there = self._objects.get(key, deadline)
            if there is None or there[0] != body:
                raise IntegrityError(
                    f"{key} holds another part than rank {part.rank} put here",
                    hint="Save the step again, under a save_id of its own.",
                ) from None

    def check_growing(self, save: Claimant, location: str, deadline: Deadline) -> None:
        """Check that a part which follows rank 0 may still change.

        Raises:
            SealedError: Rank 0 has sealed: its part is there.
            SaveSupersededError, StepPublishedError, AbortedError: As the service would.
        """
        key = self._layout.part_key(save.run, location, LEADER)
        leader = self._objects.get(key, deadline)
        manifest = manifest_of(self._manifest(save, deadline))
        claim_state = publication.claim_state(save, manifest)
        _refuse_ended(save, claim_state, manifest)
        if leader is not None or claim_state is ClaimState.PUBLISHED:
            raise SealedError(
                f"rank {LEADER}, which this rank follows, has sealed step {save.step}",
                hint="Put every rank's shards before rank 0 seals.",
            )

    def remove_part(self, part: SaveIds, location: str, deadline: Deadline) -> None:
        """Take back a part that is not final."""
        key = self._layout.part_key(part.run, location, part.rank)
        self._objects.delete(key, deadline)

    def write_pending(self, pending: PendingSeal, location: str, deadline: Deadline) -> None:
        """Leave the document that asks the service to seal a part, over an earlier one."""
        key = self._layout.pending_key(pending.run, location, pending.rank)
        body = encode(pending)
        for _ in range(RACES):
            there = self._objects.get(key, deadline)
            if there is not None and there[0] == body:
                return
            over = None if there is None else there[1]
            try:
                self._objects.put(key, [body], deadline, digest=digest_of(body), over=over)
            except PreconditionFailedError:
                continue
            return
        raise RemoteUnavailableError(f"{key} keeps changing")

    def publish(self, save: Claimant, location: str, deadline: Deadline) -> bool:
        """Publish ``save`` if its every rank's part is there; False while it is not whole.

        Raises:
            SaveSupersededError, StepPublishedError, AbortedError: As the service would.
            IntegrityError: Its objects are elsewhere, or a part is damaged.
        """
        for seen in self._tries(save, deadline):
            manifest = manifest_of(seen)
            claim_state = publication.claim_state(save, manifest)
            if claim_state is ClaimState.PUBLISHED:
                return True
            _refuse_ended(save, claim_state, manifest)
            parts = self._whole(save, location, deadline)
            if parts is None:
                return False
            now, nonce = self._clock.now(), self._nonce()
            published = publication.published(save, location, manifest, parts, at=now, nonce=nonce)
            if self._put_manifest(published, seen, deadline):
                return True
        raise _too_many_races(save)

    # --- the manifest ----------------------------------------------------------------------------

    def _tries(self, save: Claimant, deadline: Deadline) -> Iterator[SeenManifest | None]:
        """Yield the manifest as it is now, again after each lost race."""
        for _ in range(RACES):
            yield self._manifest(save, deadline)

    def _manifest(self, save: Claimant, deadline: Deadline) -> SeenManifest | None:
        key = self._layout.manifest_key(save.run, save.step)
        found = self._objects.get(key, deadline)
        if found is None:
            return None
        body, etag = found
        return SeenManifest(read_manifest(body, save.run, save.step, key), etag)

    def _put_manifest(
        self, manifest: Manifest, over: SeenManifest | None, deadline: Deadline
    ) -> bool:
        """Write ``manifest`` if the step's is still ``over``; whether it lies there.

        The nonce tells our own write, whose answer was lost, from another writer's.
        """
        key = self._layout.manifest_key(manifest.run, manifest.step)
        body = encode(manifest)
        version = None if over is None else over.etag
        try:
            self._objects.put(
                key,
                [body],
                deadline,
                digest=digest_of(body),
                metadata={MANIFEST_NONCE_KEY: manifest.nonce},
                over=version,
            )
        except PreconditionFailedError:
            there = self._objects.get(key, deadline)
            return there is not None and there[0] == body
        return True

    # --- parts -----------------------------------------------------------------------------------

    def _whole(self, save: Claimant, location: str, deadline: Deadline) -> list[ReadPart] | None:
        """Return every rank's part, or None; those of another save do not count."""
        prefix = self._layout.parts_prefix(save.run, location)
        keys = self._objects.list(prefix, deadline)
        there = {rank for key in keys if (rank := rank_of_part(key)) is not None}
        if not publication.is_whole(save.world_size, there):
            return None
        parts = []
        for rank in publication.published_ranks(save.world_size, there):
            key = self._layout.part_key(save.run, location, rank)
            found = self._objects.get(key, deadline)
            if found is None:
                return None
            parts.append(read_part(found[0], save.run, rank, key))
        return parts if publication.are_of(save, parts) else None


def _refuse_ended(save: Claimant, claim_state: ClaimState, seen: Manifest | None) -> None:
    other = seen.save_id if seen is not None else ""
    what = f"save {save.save_id} of step {save.step}"
    errors: dict[ClaimState, CachetierClientError] = {
        ClaimState.SUPERSEDED: SaveSupersededError(f"{what} is superseded by save {other}"),
        ClaimState.REFUSED: StepPublishedError(f"{what} is refused: save {other} is published"),
        ClaimState.DELETED: AbortedError(f"{what} was deleted"),
    }
    if claim_state in errors:
        raise errors[claim_state]


def _too_many_races(save: Claimant) -> RemoteUnavailableError:
    return RemoteUnavailableError(f"the manifest of step {save.step} keeps changing")
