"""What the drain asks and reports of shards, and of packs of them, as ``serve`` answers it.

A *donor* is an object that may have bytes of a shard already. First a *twin*: another shard of the
same save with the same bytes, as parameters that all ranks hold; it is copied whole. Else the shard
of the same name in the run's save before. What is named was verified once; whether it still lies
there, the drain finds out.
"""

from __future__ import annotations

from typing import assert_never

from cachetier_client.bucket_format.stored import Stored

from cachetier.drain import messages
from cachetier.drain.messages import DonorShard, LocalShard, ShardRequest, replied
from cachetier.drain.serve.context import DrainContext
from cachetier.errors import IntegrityError, NotFoundError
from cachetier.local.catalog import copies, shards, uploads
from cachetier.local.catalog.rows import IncidentRecord, UploadRecord
from cachetier.local.catalog.shards import small_of
from cachetier.local.local_copy import LocalCopy
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardState
from cachetier.model.packs import PACK_MEMBERS, Member, next_pack
from cachetier.model.shard import Shard


class ShardReports:
    """Answers requests about shards. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context
        self._store = context.store
        self._remote_state = context.remote_state
        self._remote = context.remote_state.remote
        self._stats = context.stats

    def answer(self, request: ShardRequest) -> object:
        """Do what ``request`` asks, and return the reply that it names."""
        match request:
            case messages.OpenShard():
                return replied(request, self._open(request.version))
            case messages.FinishedParts():
                return replied(request, self._recorded(request.version).parts)
            case messages.FindDonor():
                return replied(request, self.donor(request.version))
            case messages.UploadBegun():
                self._upload_begun(request)
            case messages.UploadGone():
                self._store.write(uploads.forget_upload, request.version, self._remote)
            case messages.PartsDone():
                version, remote = request.version, self._remote
                self._store.write(uploads.record_parts, version, remote, request.parts)
                self._stats.progressed()
            case messages.ShardVerified():
                self._verified(request)
            case messages.ShardDamaged():
                self._quarantine(self._context.shard(request.version), request.message)
            case messages.ShardsLost():
                self._lost(request)
            case messages.PackMembers():
                return replied(request, self._pack_members(request.save, request.rank))
            case messages.PackVerified():
                self._packed(request)
            case _:
                assert_never(request)
        return None

    # --- what a worker needs to know -------------------------------------------------------------

    def _open(self, version: int) -> LocalShard:
        shard = self._context.shard(version)
        if not self._remote_state.wants(shard):
            raise NotFoundError(f"shard version {version} is {shard.state}")
        upload = self._recorded(version)
        replaced = self._store.read(uploads.replaced_by, shard.save, shard.name, self._remote)
        copy = self._local_copy(shard)
        begun = upload.upload_id, upload.part_bytes, upload.codec, upload.element_size
        block_digests = shard.content.block_digests
        return LocalShard(copy.body, block_digests, copy.descriptor, *begun, replaced)

    def _recorded(self, version: int) -> UploadRecord:
        return self._store.read(uploads.progress_of, version, self._remote)

    def _local_copy(self, shard: Shard) -> LocalCopy:
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            if self._context.shard(shard.version).file_id == shard.file_id:
                self._quarantine(shard, "its data file is missing")
            copy = None
        if copy is None:
            raise NotFoundError(f"shard version {shard.version} has no bytes here")
        return copy

    def donor(self, version: int) -> DonorShard | None:
        """Return what lies at the remote that a shard may be put together from."""
        shard, remote = self._context.shard(version), self._remote
        found = self._store.read(copies.donor_of, shard, remote)
        if found is None:
            return None
        donor, stored = found
        there = self._remote_state.save(donor.save)
        if there is None or there.location is None:
            return None
        return DonorShard(
            donor.run, there.location, donor.name, donor.save_id, donor.content, stored
        )

    # --- reports on shards -----------------------------------------------------------------------

    def _upload_begun(self, request: messages.UploadBegun) -> None:
        lost = self._store.read(copies.lost_as, request.version, self._remote)
        how = request.codec, request.element_size
        if lost is not None and (lost.codec, lost.element_size) != how:
            self._refuse_if_described(self._context.shard(request.version))
        begun = self._remote, request.upload_id, request.part_bytes, *how
        self._store.write(uploads.begin_upload, request.version, *begun)

    def _verified(self, request: messages.ShardVerified) -> None:
        shard, stored = self._context.shard(request.version), request.stored
        lost = self._store.read(copies.lost_as, shard.version, self._remote)
        if lost not in (None, stored):
            self._refuse_if_described(shard)
        try:
            self._remote_state.verified(shard.version, self._context.clock.now(), stored)
        except ForbiddenTransitionError:
            return  # a reader met damage meanwhile: the shard stays quarantined
        self._stats.drained(shard, stored, request.seconds, request.phases)
        self._context.changes.ring()

    def _refuse_if_described(self, shard: Shard) -> None:
        """Refuse what sends a lost shard again otherwise than it was stored.

        Raises:
            IntegrityError: A document says how it was: nobody could read it any more by that.
        """
        if self._store.read(copies.is_described, shard.save, shard.rank, self._remote):
            message = f"{shard.name} is lost in the bucket and cannot be sent as it was stored"
            if self._stats.conflict(shard.version, message):
                hint = "Its bytes stay on this node: read it here, or save the step again."
                self._context.add_incident(shard, message, hint)
            raise IntegrityError(message, **shard.context)

    def _quarantine(self, shard: Shard, what: str) -> None:
        incident = IncidentRecord(
            code="integrity",
            message=f"shard {shard.name} is damaged on this node and was not sent: {what}",
            hint="Save the step again, or restore another one.",
            **shard.context,
        )
        now = self._context.clock.now()
        before = self._store.write(shards.record_damage, shard.version, incident, now)
        elsewhere = before.state is ShardState.CLEAN  # at another remote
        self._stats.quarantined(shard, what, lost=not elsewhere)
        if elsewhere:
            self._store.drop([before])  # only the local bytes go
        self._context.announce()

    def _lost(self, request: messages.ShardsLost) -> None:
        """Shards that were verified are gone from the remote: send them again, if they are here."""
        states = self._remote_state.lost(request.versions)
        for version, state in zip(request.versions, states, strict=True):
            shard = self._context.shard(version)
            message = f"{shard.name} is not in the bucket as it was verified"
            new = self._stats.conflict(version, message)
            if new and self._remote_state.decides and state is not ShardState.DIRTY:
                hint = "Its bytes are not on this node any more: save the step again."
                self._context.add_incident(shard, message, hint)

    # --- packs -----------------------------------------------------------------------------------

    def _pack_members(self, number: int, rank: int) -> list[Member]:
        """Return the members of a rank's next pack; what is on its way already stays out."""
        busy = self._context.queue.names_in_flight(number)
        small = self._remote_state.wanted(number, PACK_MEMBERS + len(busy), small_of(rank))
        lost = self._store.read(copies.lost_packs, number, self._remote)
        free = [shard for shard in small if shard.name not in busy]
        # What was in one pack goes in one again: the same members make the same object.
        together = [each for each in free if lost.get(each.version) == lost.get(free[0].version)]
        return next_pack(map(Member.of, together))

    def _packed(self, request: messages.PackVerified) -> None:
        """Record a pack that was verified: all its members in one transaction."""
        lost = self._store.read(copies.lost_packs, request.save, self._remote)
        for version, pack in request.members.items():
            if lost.get(version, pack.name) != pack.name:
                self._refuse_if_described(self._context.shard(version))
        recorded = self._remote_state.packed(request.members, self._context.clock.now())
        self._stats.packed(len(recorded), request.size_bytes)
        for shard in recorded:
            share = shard.content.size_bytes / max(1, request.size_bytes)
            self._stats.drained(shard, Stored.raw(shard.content), request.seconds * share)
        self._context.changes.ring()
