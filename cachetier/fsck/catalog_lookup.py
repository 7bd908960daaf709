"""Look up in the catalog what a finding is about."""

from __future__ import annotations

from collections.abc import Sequence

from cachetier.errors import IntegrityError, NotFoundError
from cachetier.fsck.findings import Finding, LeftError
from cachetier.local.catalog import copies, saves, shards
from cachetier.local.catalog.copies import SaveCopy
from cachetier.local.repair import check_queries
from cachetier.local.repair.open_catalog import CatalogView
from cachetier.local.store import Store
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import CANDIDATE_SAVES, CopyState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote


class CatalogLookup:
    """Looks up shards and saves of one store, and what they have reached at its remotes."""

    def __init__(self, store: Store, remotes: Sequence[Remote]) -> None:
        self._store = store
        self._remotes = {remote.name: remote for remote in remotes}

    def shard(self, version: int) -> Shard:
        """Return a shard as it is now; raises NotFoundError where it is gone."""
        shard = self._store.read(shards.shard_by_version, version)
        if shard is None:
            raise NotFoundError("it has been removed in the meantime")
        return shard

    def row(self, version: int) -> check_queries.CheckedRow:
        """Return what the catalog says of a shard and its remote copies, damaged or not."""
        row = self._store.read(check_queries.checked_row, version)
        if row is None:
            raise NotFoundError("it has been removed in the meantime")
        return row

    def save(self, finding: Finding) -> Save:
        save = self._store.read(saves.save_by_number, finding.number)
        if save is None:
            raise IntegrityError("the catalog has no such save")
        return save

    def save_of(self, shard: Shard) -> Save:
        """Return the save of a shard."""
        save = self._store.read(saves.save_by_number, shard.save)
        assert save is not None
        return save

    def save_named(self, run: str, step: int, save_id: str) -> Save | None:
        """Return a save; None if this node never heard of it."""
        return self._store.read(saves.save_named, run, step, save_id)

    def remote(self, name: str | None) -> Remote:
        """Return a remote, the durable one without a name.

        Raises:
            LeftError: No remote is asked in this run.
        """
        found = self._remotes.get(name or DURABLE)
        if found is None:
            raise LeftError(f"{name or DURABLE} was not asked; leave out --local")
        return found

    def at(self, remote: str) -> SavesAt:
        """Return what saves have reached at a remote."""
        return SavesAt(self._store, remote)


class SavesAt:
    """Looks up in a catalog what saves have reached at one remote."""

    def __init__(self, catalog: Store | CatalogView, remote: str) -> None:
        self._catalog = catalog
        self._remote = remote

    def location(self, save: Save) -> str | None:
        """Return where the objects of a save are."""
        copy = self._copy(save)
        return copy.location if copy is not None else None

    def is_published(self, save: Save) -> bool:
        copy = self._copy(save)
        return copy is not None and copy.state is CopyState.PUBLISHED

    def is_open(self, save: Save) -> bool:
        """Return whether a save may still be published: at a replica also once it is durable."""
        copy = self._copy(save)
        return save.state in CANDIDATE_SAVES and copy is not None and copy.state is CopyState.OPEN

    def parts(self, save: Save) -> list[RankPart]:
        """Return the parts of a save that this node has; ``uploaded`` tells of the remote."""
        return self._catalog.read(saves.parts_of, save.number, self._remote)

    def is_described(self, save: Save, rank: int) -> bool:
        """Return whether a document at the remote says how it stores the shards of a rank."""
        return self._catalog.read(copies.is_described, save.number, rank, self._remote)

    def _copy(self, save: Save) -> SaveCopy | None:
        return self._catalog.read(copies.copy_of, save.number, self._remote)
