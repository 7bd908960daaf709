"""What a finding is about, as the catalog has it now."""

from __future__ import annotations

from collections.abc import Sequence

from cachetier.errors import IntegrityError, NotFoundError
from cachetier.fsck.findings import Finding, LeftError
from cachetier.local.catalog import queries, replica_queries
from cachetier.local.catalog.replica_queries import Replication
from cachetier.local.repair import check_queries
from cachetier.local.store import Store
from cachetier.model.checkpoint import RankPart, Save, SaveState
from cachetier.model.names import DURABLE
from cachetier.model.replication import ReplicaState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote


class Known:
    """Looks up shards and saves of one store, and what they have reached at its remotes."""

    def __init__(self, store: Store, remotes: Sequence[Remote]) -> None:
        self._store = store
        self._remotes = {remote.name: remote for remote in remotes}

    def shard(self, version: int) -> Shard:
        """Return a shard as it is now; raises NotFoundError where it is gone."""
        shard = self._store.read(lambda sql: queries.shard_by_version(sql, version))
        if shard is None:
            raise NotFoundError("it is gone meanwhile")
        return shard

    def row(self, version: int) -> check_queries.CheckedRow:
        """Return what the catalog says of a shard and its remote copies, damaged or not."""
        row = self._store.read(lambda sql: check_queries.checked_row(sql, version))
        if row is None:
            raise NotFoundError("it is gone meanwhile")
        return row

    def save(self, finding: Finding) -> Save:
        save = self._store.read(lambda sql: queries.save_by_number(sql, finding.number))
        if save is None:
            raise IntegrityError("the catalog has no such save")
        return save

    def save_of(self, shard: Shard) -> Save:
        """Return the save of a shard."""
        run, step, save_id = shard.run, shard.step, shard.save_id
        save = self._store.read(lambda sql: queries.save_named(sql, run, step, save_id))
        assert save is not None
        return save

    def knows(self, run: str, step: int, save_id: str) -> bool:
        """Return whether this node ever heard of a save."""
        found = self._store.read(lambda sql: queries.save_named(sql, run, step, save_id))
        return found is not None

    def remote(self, name: str | None) -> Remote:
        """Return a remote, the durable one without a name.

        Raises:
            LeftError: No remote is asked in this run.
        """
        found = self._remotes.get(name or DURABLE)
        if found is None:
            raise LeftError(f"{name or DURABLE} was not asked; leave out --local")
        return found

    def location(self, save: Save, remote: str) -> str | None:
        """Return where the objects of a save are at a remote."""
        if remote == DURABLE:
            return save.location
        there = self._replication(save, remote)
        return there.location if there is not None else None

    def is_published(self, save: Save, remote: str) -> bool:
        if remote == DURABLE:
            return save.state is SaveState.PUBLISHED
        there = self._replication(save, remote)
        return there is not None and there.state is ReplicaState.PUBLISHED

    def parts(self, save: Save, remote: str) -> list[RankPart]:
        """Return the parts of a save that this node has; ``uploaded`` tells of the remote."""
        if remote == DURABLE:
            return self._store.read(lambda sql: queries.parts_of(sql, save.number))
        return self._store.read(lambda sql: replica_queries.parts_at(sql, save.number, remote))

    def _replication(self, save: Save, replica: str) -> Replication | None:
        return self._store.read(
            lambda sql: replica_queries.replication_of(sql, save.number, replica)
        )

    def is_described(self, save: Save, rank: int, remote: str) -> bool:
        """Return whether a document at a remote says as what it holds the shards of a rank.

        The drain writes it once, so those may not be sent as anything else from then on.
        """
        uploaded = (part.rank for part in self.parts(save, remote) if part.uploaded)
        return self.is_published(save, remote) or rank in uploaded
