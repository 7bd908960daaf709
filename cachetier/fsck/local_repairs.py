"""Repair the bytes of shards on this node: take damaged ones out of use, and fetch them again."""

from __future__ import annotations

from cachetier_client.clock import Clock

from cachetier.errors import CachetierError, IntegrityError, NotFoundError, RemoteError
from cachetier.fsck.adopt_files import FileReclaimer
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import LeftError
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.local.catalog import shards
from cachetier.local.store import Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.restore.restore import Restore, local_damage

FETCH_SECONDS = 600.0
NO_COPY = "no sound copy is left. Save the step again, or restore another one"


class LocalRepairs:
    """Mends local bytes of one store; damaged ones go only when a remote says that it has others.

    Every method takes a shard as it is now, and raises LeftError where it cannot do what it says.
    """

    def __init__(
        self,
        store: Store,
        lookup: CatalogLookup,
        remote_index: RemoteIndex,
        reclaimer: FileReclaimer,
        restore: Restore | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._reclaimer = reclaimer
        self._lookup = lookup
        self._remote_index = remote_index
        self._restore = restore
        self._clock = clock

    def take_out_of_use(self, shard: Shard) -> str:
        """Replace damaged bytes by those of a remote; without any, keep them in quarantine."""
        self._quarantine_or_drop(shard)
        return self.fetch(self._lookup.shard(shard.version))

    def fetch(self, shard: Shard) -> str:
        """Bring back what has no sound bytes here; what is clean need not be here."""
        if shard.state in (ShardState.DIRTY, ShardState.CLEAN):
            return f"its bytes are here again, {shard.state}"
        if shard.state is ShardState.QUARANTINED and self._reads_right(shard):
            self._store.write(shards.reinstate, shard.version)
            state = self._lookup.shard(shard.version).state
            return f"its bytes here have their digest after all: it is {state}"
        if shard.state is ShardState.QUARANTINED and self._reclaimer.reclaim(shard):
            return f"its file was in lost+found: it is {self._lookup.shard(shard.version).state}"
        why = self._not_fetched(shard)
        if why is None:
            return f"fetched: it is {self._lookup.shard(shard.version).state}"
        if shard.state is ShardState.QUARANTINED:
            raise LeftError(f"its bytes are kept in quarantine: {why}")
        if why == NO_COPY:
            raise LeftError(why)
        return "it is evicted: readers get it from the remote"

    def made_sound(self, shard: Shard) -> Shard:
        """Return the shard with sound bytes here, from another remote if need be."""
        if self.is_sound(shard):
            return shard
        if shard.state is not ShardState.EVICTED:
            self.take_out_of_use(shard)
        elif (why := self._not_fetched(shard)) is not None:
            raise LeftError(why)
        shard = self._lookup.shard(shard.version)
        if not self.is_sound(shard):
            raise LeftError("its bytes could not be fetched: repair again once remotes answer")
        return shard

    def are_there(self, shard: Shard) -> bool:
        """Return whether the bytes that the row names inside the catalog, if it does, are there."""
        if not shard.inline:
            return True
        return self._store.read(shards.body_of, shard.version) is not None

    def is_elsewhere(self, shard: Shard) -> bool:
        """Return whether a remote says that it has a clean shard now."""
        if self._restore is None:
            return False
        try:
            return self._restore.sources.still_there(shard)
        except RemoteError:
            return False

    def _quarantine_or_drop(self, shard: Shard) -> None:
        incident, now = local_damage(shard), self._clock.now()
        if shard.state is ShardState.CLEAN and not self.is_elsewhere(shard):
            self._store.write(shards.quarantine, shard.version, incident, now)
            return
        before = self._store.write(shards.record_damage, shard.version, incident, now)
        if before.state in (ShardState.CLEAN, ShardState.EVICTED):
            self._store.drop([before])

    def _not_fetched(self, shard: Shard) -> str | None:
        """Fetch a shard from a remote; return why that is not possible, None if it was."""
        if self._restore is None:
            return "no remote was asked; leave out --local"
        try:
            self._learn_if_forgotten(shard)
            self._restore.bring_back(shard, FETCH_SECONDS)
        except (IntegrityError, NotFoundError):
            return NO_COPY
        except CachetierError as error:
            return f"not now: {error.message}"
        return None

    def _learn_if_forgotten(self, shard: Shard) -> None:
        """Ask the remotes how they store a shard, where the catalog lost that."""
        row = self._lookup.row(shard.version)
        for remote in row.unreadable or (() if row.remotes else (DURABLE,)):
            save = self._lookup.save_of(shard)
            self._remote_index.learn(shard, save, self._lookup.remote(remote))

    def is_sound(self, shard: Shard) -> bool:
        """Return whether the bytes of a shard are here, and have their digest."""
        return shard.state is not ShardState.QUARANTINED and self._reads_right(shard)

    def _reads_right(self, shard: Shard) -> bool:
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            return False
        if copy is None:
            return False
        try:
            return copy.reads_right()
        finally:
            copy.close()
