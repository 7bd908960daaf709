"""Repair the objects of shards at the remotes, and the catalog's rows about them."""

from __future__ import annotations

from cachetier_client.bucket_format.stored import Stored

from cachetier.errors import CachetierError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, LeftError
from cachetier.fsck.local_checks import doubtful_copies
from cachetier.fsck.local_repairs import LocalRepairs
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.fsck.resend import CannotResendError, Resender
from cachetier.local.catalog import drain_writes, replica_writes
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote

ANOTHERS = "another node put it: run fsck --repair there"
RIGHT = "its row is as it should be"


class ObjectRepairs:
    """Mends objects of one store at its remotes, and the rows that are wrong about them."""

    def __init__(
        self, store: Store, lookup: CatalogLookup, remote_index: RemoteIndex, local: LocalRepairs
    ) -> None:
        self._store = store
        self._lookup = lookup
        self._remote_index = remote_index
        self._local = local

    def bring_there(self, finding: Finding) -> str:
        """Bring an object to its remote again that is missing there, or is another one."""
        remote = self._lookup.remote(finding.remote)
        if not finding.version:
            raise LeftError(ANOTHERS)
        shard, save = self._lookup.shard(finding.version), self._lookup.save(finding)
        described = self._lookup.at(remote.name).is_described(save, shard.rank)
        if finding.kind is FindingKind.OBJECT_MISSING and not described:
            return self._all_dirty_again(shard, save, remote)
        try:
            return self._as_described(shard, save, remote)
        except CannotResendError:
            raise
        except LeftError:
            if any(part.rank == shard.rank for part in self._lookup.at(remote.name).parts(save)):
                raise
            raise LeftError(ANOTHERS) from None  # what was read here of it does not suffice

    def put_right(self, finding: Finding) -> str:
        """Put a row right that says what cannot be."""
        save, row = self._lookup.save(finding), self._lookup.row(finding.version)
        outcome, doubtful = RIGHT, doubtful_copies(row, self._lookup.shard(finding.version))
        for name in [finding.remote] if finding.remote is not None else doubtful:
            outcome = self._copy_put_right(self._lookup.shard(finding.version), save, name)
        return self._bytes_put_right(self._lookup.shard(finding.version), outcome)

    # --- rows ------------------------------------------------------------------------------------

    def _copy_put_right(self, shard: Shard, save: Save, name: str) -> str:
        """Find out as what a remote holds a shard of which the catalog says nothing that can be."""
        if self._lookup.at(name).is_described(save, shard.rank):
            return self._as_described(shard, save, self._lookup.remote(name))
        if shard.state is not ShardState.EVICTED:
            return self._dirty_again(shard, name)
        if self._lookup.at(name).location(save) is None:
            return RIGHT
        if not self._remote_index.learn(shard, save, self._lookup.remote(name)):
            raise LeftError("nobody knows as what it was stored: save the step again")
        return "the object is there: the catalog knows again as what"

    def _bytes_put_right(self, shard: Shard, outcome: str) -> str:
        row = self._lookup.row(shard.version)
        here = shard.file_id is not None or shard.inline
        if shard.state is ShardState.EVICTED and not here:
            if not row.remotes:
                raise LeftError("no copy is left anywhere: delete the step")
            return outcome
        if shard.state is ShardState.EVICTED and not self._local.is_elsewhere(shard):
            raise LeftError("no remote says that it has it: its bytes here stay as they are")
        wrong = shard.state is ShardState.EVICTED or not here or not self._local.are_there(shard)
        return self._local.take_out_of_use(shard) if wrong else outcome

    # --- objects ---------------------------------------------------------------------------------

    def _as_described(self, shard: Shard, save: Save, remote: Remote) -> str:
        """See to it that a remote holds a shard as its documents say, and that its row says so."""
        location = self._lookup.at(remote.name).location(save)
        stored = self._remote_index.stored(shard, save, remote)
        if stored is None or location is None:
            raise LeftError("nobody knows as what it was stored: save the step again")
        if self._remote_index.learn(shard, save, remote):
            return "the object is there, as the step says: the catalog was wrong, and is right now"
        key = remote.bucket.layout.object_key(save.run, location, shard.name, stored.pack_name)
        shards = self._remote_index.together(shard, save, remote, stored)
        sound = [self._local.made_sound(each) for each in shards]
        Resender(self._store, remote).resend(sound, stored, key)
        for each in sound:
            self._remote_index.remember(each, remote, self._stored(each, save, remote, stored))
        return f"sent to {remote.name} as it was"

    def _stored(self, shard: Shard, save: Save, remote: Remote, stored: Stored) -> Stored:
        if stored.pack is None:
            return stored
        own = self._remote_index.stored(shard, save, remote)
        return own if own is not None else stored

    def _all_dirty_again(self, shard: Shard, save: Save, remote: Remote) -> str:
        """Let the drain send a shard again, of a packed one all that were in its pack."""
        stored = self._remote_index.stored(shard, save, remote)
        shards = [shard]
        if stored is not None:
            shards = self._remote_index.together(shard, save, remote, stored)
        outcome, lost = "", []
        for each in shards:
            try:
                outcome = self._dirty_again(self._local.made_sound(each), remote.name)
            except CachetierError as error:
                lost.append(f"{each.name}: {error.message}")
            except LeftError as error:
                lost.append(f"{each.name}: {error}")
        if lost:
            raise LeftError("; ".join(lost))
        others = len(shards) - 1
        return outcome if not others else f"{outcome}, and the {others} others of its pack"

    def _dirty_again(self, shard: Shard, remote: str) -> str:
        if remote == DURABLE:
            state = self._store.write(drain_writes.record_lost, shard.version, remote)
        else:
            state = self._store.write(replica_writes.record_lost, shard.version, remote)
        if state is ShardState.DIRTY:
            return "it is dirty again: the drain sends it"
        return f"the drain sends it to {remote} again"
