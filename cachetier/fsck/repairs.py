"""Repair what was found, in the service's own words: nothing here deletes the only copy of a shard.

What is damaged here is fetched again, or quarantined; what a remote lost is sent again; documents
are written again as they were. Somebody else's objects are left alone. Each repair is said before
it is tried.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

from cachetier_client.digests import digest_of, to_hex

from cachetier.clock import Clock
from cachetier.errors import CachetierError, IntegrityError, NotFoundError, RemoteError
from cachetier.fsck.findings import Finding, Kind, LeftError, Outcome
from cachetier.fsck.resending import CannotResendError, Resending
from cachetier.fsck.row_repairs import OF_THE_CATALOG
from cachetier.local import check_queries, copies, queries, replica_queries
from cachetier.local.records import Incident
from cachetier.local.store import Store
from cachetier.model import publication
from cachetier.model.checkpoint import Save, SaveState
from cachetier.model.documents import Part, ShardEntry, encode
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardEvent, ShardState
from cachetier.model.publication import Claimant, Standing
from cachetier.model.replication import DURABLE, ReplicaState
from cachetier.model.shard import Content, Shard
from cachetier.remote.base import IF_ABSENT, if_match
from cachetier.remote.bucket import MANIFEST_NONCE_KEY, Remote, SeenManifest
from cachetier.restore import Restore

FETCH_SECONDS = 600.0
ABOUT_TO: dict[Kind, str] = {
    Kind.FILE_UNMARKED: "remove it",
    Kind.FILE_ORPHAN: "set it aside, in lost+found",
    Kind.FILE_MISSING: "take its bytes here out of use, and fetch them again",
    Kind.FILE_SIZE: "take its bytes here out of use, and fetch them again",
    Kind.ROW_CONTRADICTS: "put its row right",
    Kind.BYTES_DAMAGED: "take its bytes here out of use, and fetch them again",
    Kind.QUARANTINED: "fetch its bytes from a remote that has them",
    Kind.OBJECT_MISSING: "bring it there again",
    Kind.OBJECT_DIFFERS: "bring it there again",
    Kind.MANIFEST_MISSING: "let the drain publish the step again",
    Kind.MANIFEST_DAMAGED: "claim the step again in its place, and let the drain publish it",
    Kind.PART_DAMAGED: "write it again, as the manifest knows it",
    Kind.UPLOAD_STALE: "abort the upload",
}
# Opening the store does these: start-up is recovery.
AT_START = (Kind.FILE_UNMARKED, Kind.FILE_ORPHAN, Kind.FILE_MISSING, Kind.FILE_SIZE)


_MAY_PUBLISH = (Standing.HOLD, Standing.CLAIM, Standing.REPLACE_WHEN_WHOLE)


class Repairs:
    """Repairs one store that nobody else uses. The durable remote is the first of ``remotes``."""

    def __init__(
        self, store: Store, remotes: list[Remote], restore: Restore | None, clock: Clock
    ) -> None:
        self._store = store
        self._remotes = {remote.name: remote for remote in remotes}
        self._restore = restore
        self._clock = clock

    def all(self, findings: Iterable[Finding], say: Callable[[str], None]) -> Iterator[Outcome]:
        """Repair what can be, and yield what became of each finding that is any work."""
        for finding in findings:
            if finding.kind in OF_THE_CATALOG:
                continue
            act = _ACTIONS.get(finding.kind)
            if act is None:
                if finding.is_problem:
                    yield Outcome(finding, False, _LEFT.get(finding.kind, "look at it"))
                continue
            if finding.kind not in AT_START:
                say(f"repair {finding.where}: {ABOUT_TO[finding.kind]}")
            try:
                yield Outcome(finding, True, act(self, finding))
            except (LeftError, CannotResendError) as reason:
                yield Outcome(finding, False, str(reason))
            except (CachetierError, ForbiddenTransitionError, OSError) as error:
                yield Outcome(finding, False, str(error))

    # --- rows ------------------------------------------------------------------------------------

    def _put_right(self, finding: Finding) -> str:
        shard = self._shard(finding)
        here = shard.file_id is not None or shard.inline
        if shard.state is ShardState.CLEAN and here and self._body_is_there(shard):
            state = self._store.drain_log.record_lost(shard.version, DURABLE)
            return f"it is {state} now: the drain sends it"
        if shard.state is ShardState.EVICTED and not here:
            raise LeftError("no copy is left anywhere: delete the step")
        if shard.state is ShardState.EVICTED and self._is_elsewhere(shard) is not True:
            raise LeftError("no remote says that it has it: its bytes here stay as they are")
        return self._out_of_use(finding)

    def _body_is_there(self, shard: Shard) -> bool:
        if not shard.inline:
            return True
        return self._store.read(lambda sql: queries.body_of(sql, shard.version)) is not None

    # --- bytes here ------------------------------------------------------------------------------

    def _out_of_use(self, finding: Finding) -> str:
        shard = self._shard(finding)
        incident = Incident(
            "integrity",
            f"the local bytes of shard {shard.name} fail their digest",
            "Save the step again, or restore an older one.",
            shard.run,
            shard.step,
            shard.name,
            shard.rank,
        )
        there = self._is_elsewhere(shard)
        if there is False and shard.state is ShardState.CLEAN:
            self._store.drain_log.record_lost(shard.version, DURABLE)  # so it is quarantined
        now = self._clock.now()
        before = self._store.catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, incident, now)
        if before.state in (ShardState.CLEAN, ShardState.EVICTED):
            if there is None and before.file_id is not None:
                self._store.files.set_aside(before.file_id)
            else:
                self._store.drop([before])
        return self._fetched(finding)

    def _is_elsewhere(self, shard: Shard) -> bool | None:
        """Return whether a remote has a clean shard now; None where none can be asked."""
        if self._restore is None:
            return None
        try:
            return self._restore.sources.still_there(shard)
        except RemoteError:
            return None

    def _fetched(self, finding: Finding) -> str:
        """Bring back what has no sound bytes here; what is clean need not be here."""
        shard = self._shard(finding)
        if shard.state in (ShardState.DIRTY, ShardState.CLEAN):
            return f"its bytes are here again, {shard.state}"
        why = self._not_fetched(shard)
        if why is None:
            return f"fetched: it is {self._shard(finding).state}"
        if shard.state is ShardState.QUARANTINED:
            raise LeftError(f"its bytes are kept in quarantine: {why}")
        return "it is evicted: readers get it from the remote"

    def _not_fetched(self, shard: Shard) -> str | None:
        """Fetch a shard from a remote; return why that is not possible, None if it was."""
        if self._restore is None:
            return "no remote was asked; leave out --local"
        try:
            self._restore.bring_back(shard, FETCH_SECONDS)
        except (IntegrityError, NotFoundError):
            return "no sound copy is left. Save the step again, or restore another one"
        except CachetierError as error:
            return f"not now: {error.message}"
        return None

    # --- objects ---------------------------------------------------------------------------------

    def _bring_there(self, finding: Finding) -> str:
        remote = self._remote_of(finding)
        if not finding.version:
            raise LeftError("another node put it: run fsck --repair there")
        shard = self._with_bytes(finding)
        save = self._save(finding)
        if finding.kind is Kind.OBJECT_MISSING and not self._is_published(save, remote.name):
            return self._dirty_again(shard, remote.name)
        stored = self._store.read(
            lambda sql: check_queries.stored_at(sql, shard.version, remote.name)
        )
        if stored is None or finding.key is None:
            raise LeftError("nobody knows as what it was stored: save the step again")
        Resending(self._store, remote).resend(shard, save.number, stored, finding.key)
        return f"sent to {remote.name} as it was"

    def _dirty_again(self, shard: Shard, remote: str) -> str:
        if remote == DURABLE:
            state = self._store.drain_log.record_lost(shard.version, remote)
        else:
            state = self._store.replica_log.record_lost(shard.version, remote)
        return f"it is {state} again: the drain sends it"

    def _with_bytes(self, finding: Finding) -> Shard:
        """Return the shard with sound bytes here, from another remote if need be."""
        shard = self._shard(finding)
        if not self._is_sound(shard):
            if shard.state is not ShardState.EVICTED:
                self._out_of_use(finding)
            elif (why := self._not_fetched(shard)) is not None:
                raise LeftError(why)
            shard = self._shard(finding)
            if not self._is_sound(shard):
                raise LeftError("its bytes could not be fetched: repair again once remotes answer")
        return shard

    def _is_sound(self, shard: Shard) -> bool:
        if shard.state is ShardState.QUARANTINED:
            return False
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            return False
        if copy is None:
            return False
        try:
            return copies.reads_right(copy)
        finally:
            copies.close(copy)

    # --- documents -------------------------------------------------------------------------------

    def _publish_again(self, finding: Finding) -> str:
        remote, save = self._remote_of(finding), self._save(finding)
        seen = remote.bucket.manifest(save.run, save.step)
        if seen is not None and self._standing(save, seen) not in _MAY_PUBLISH:
            other = seen.manifest
            raise LeftError(f"save {other.save_id} has the step there now: it is {other.state}")
        log, number = self._store.mend_log, finding.number
        reopened = (
            log.reopen(number) if remote.name == DURABLE else log.reopen_at(number, remote.name)
        )
        if not reopened:
            raise LeftError("this node has no part of it: run fsck --repair on one that saved it")
        return "the drain publishes it once the service runs"

    def _claim_and_publish(self, finding: Finding) -> str:
        """Put a claim in the place of a damaged manifest.

        With none at all, another save could begin where the objects of this one lie.
        """
        remote, save = self._remote_of(finding), self._save(finding)
        key = remote.bucket.layout.manifest_key(save.run, save.step)
        info = remote.bucket.objects.head(key)
        if info is not None and MANIFEST_NONCE_KEY not in info.metadata:
            raise LeftError(f"{key} was not written by cachetier: look at it, and remove it")
        if not self._store.read(lambda sql: queries.parts_of(sql, finding.number)):
            raise LeftError("this node has no part of it: run fsck --repair on one that saved it")
        try:
            remote.bucket.manifest(save.run, save.step)
        except IntegrityError:
            pass
        else:
            raise LeftError("it was written anew meanwhile: look again")
        location = self._location_at(save, remote.name)
        claimed = publication.claim(self._claimant(save), None, secrets.token_hex(8))
        claimed = claimed.model_copy(update={"location": location})
        over = SeenManifest(claimed, info.etag) if info is not None else None
        if location is None or remote.bucket.put_manifest(claimed, over) is None:
            raise LeftError("it was written anew meanwhile: look again")
        return self._publish_again(finding)

    def _claimant(self, save: Save) -> Claimant:
        replaced = self._store.read(lambda sql: queries.replaced_by(sql, save))
        return publication.claimant_of(save, replaced)

    def _standing(self, save: Save, seen: SeenManifest) -> Standing:
        return publication.standing(self._claimant(save), seen.manifest)

    def _location_at(self, save: Save, remote: str) -> str | None:
        if remote == DURABLE:
            return save.location
        there = self._store.read(
            lambda sql: replica_queries.replication_of(sql, save.number, remote)
        )
        return there.location if there is not None else None

    def _write_part(self, finding: Finding) -> str:
        """Write a rank's part again, if that is byte for byte what the manifest names."""
        remote, save, rank = self._remote_of(finding), self._save(finding), finding.rank
        assert rank is not None
        seen = remote.bucket.manifest(save.run, save.step)
        named = {part.rank: part.digest for part in seen.manifest.parts} if seen else {}
        body = encode(self._part(save, rank, remote.name))
        if to_hex(digest_of(body)) != named.get(rank):
            raise LeftError("this node cannot make it again: run fsck --repair where its rank was")
        assert seen is not None
        key = remote.bucket.layout.part_key(save.run, seen.manifest.location, rank)
        found = remote.bucket.objects.head(key)
        condition = IF_ABSENT if found is None else if_match(found.etag)
        remote.bucket.objects.put(key, body, digest=digest_of(body), condition=condition)
        return "it is what the manifest names"

    def _part(self, save: Save, rank: int, remote: str) -> Part:
        found = self._store.read(
            lambda sql: queries.stored_shards_of_rank(sql, save.number, rank, remote, 0, -1)
        )
        entries = [
            ShardEntry.of(shard.name, rank, _plain(shard.content), stored)
            for shard, stored in found
        ]
        return publication.part_of(self._claimant(save), rank, entries)

    def _abort(self, finding: Finding) -> str:
        remote = self._remote_of(finding)
        assert finding.key is not None
        assert finding.file_id is not None
        remote.bucket.objects.abort_upload(finding.key, finding.file_id)
        return "aborted"

    # --- what a finding is about -----------------------------------------------------------------

    def _started(self, finding: Finding) -> str:
        """Start-up has dealt with it already."""
        if not finding.version:
            return "removed" if finding.kind is Kind.FILE_UNMARKED else "moved to lost+found"
        return self._fetched(finding)

    def _shard(self, finding: Finding) -> Shard:
        shard = self._store.read(lambda sql: queries.shard_by_version(sql, finding.version))
        if shard is None:
            raise NotFoundError("it is gone meanwhile")
        return shard

    def _save(self, finding: Finding) -> Save:
        save = self._store.read(lambda sql: queries.save_by_number(sql, finding.number))
        if save is None:
            raise IntegrityError("the catalog has no such save")
        return save

    def _remote_of(self, finding: Finding) -> Remote:
        return self._remotes[finding.remote or DURABLE]

    def _is_published(self, save: Save, remote: str) -> bool:
        if remote == DURABLE:
            return save.state is SaveState.PUBLISHED
        there = self._store.read(
            lambda sql: replica_queries.replication_of(sql, save.number, remote)
        )
        return there is not None and there.state is ReplicaState.PUBLISHED


def _plain(content: Content) -> Content:
    """Return a content as it crosses to the drain, which makes the parts: without the hint."""
    return Content(content.size_bytes, content.digest, content.block_digests)


_ACTIONS: dict[Kind, Callable[[Repairs, Finding], str]] = {
    **dict.fromkeys(AT_START, Repairs._started),
    Kind.ROW_CONTRADICTS: Repairs._put_right,
    Kind.BYTES_DAMAGED: Repairs._out_of_use,
    Kind.QUARANTINED: Repairs._fetched,
    Kind.OBJECT_MISSING: Repairs._bring_there,
    Kind.OBJECT_DIFFERS: Repairs._bring_there,
    Kind.MANIFEST_MISSING: Repairs._publish_again,
    Kind.MANIFEST_DAMAGED: Repairs._claim_and_publish,
    Kind.PART_DAMAGED: Repairs._write_part,
    Kind.UPLOAD_STALE: Repairs._abort,
}
_LEFT = {
    Kind.OBJECT_FOREIGN: "left alone, as it is not ours: move it away and repair again",
}
