"""Adopt a published step that this node never saw: its shards enter the catalog, evicted.

The manifest pins the part of each rank by its digest, and the part describes the rank's shards;
both are read from a place that others can write, so nothing in them is taken on trust. A replica's
copy of a shard is taken along where its part describes the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cachetier_client.bucket_format.documents import Manifest, PartDocument, ShardEntry
from cachetier_client.clock import Clock

from cachetier.errors import (
    DigestMismatchError,
    IntegrityError,
    NotFoundError,
    RemoteError,
    SizeMismatchError,
)
from cachetier.local.catalog import manifests
from cachetier.local.catalog.rows import NewShard, RemoteCopy, RemoteSave
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.remote.bucket import Remote
from cachetier.restore.published import FoundStep, PublishedSteps


class Adoption:
    """Brings published steps into the catalog. Thread-safe."""

    def __init__(
        self, store: Store, durable: Remote, published: PublishedSteps, clock: Clock
    ) -> None:
        self._store = store
        self._durable = durable
        self._published = published
        self._clock = clock

    def adopt(self, run: str, step: int, name: str) -> None:
        """Learn what the rank of shard ``name`` put.

        Raises:
            NotFoundError: There is no such published step, or it has no such shard.
            IntegrityError: What the remotes say of it contradicts itself.
            RemoteError: Who may know cannot be asked.
        """
        found = self._published.find(run, step)
        if found is None:
            raise NotFoundError(f"run {run} has no step {step}", run=run, step=step, name=name)
        manifest = found.manifest
        listed = next((entry for entry in manifest.shards if entry.name == name), None)
        if listed is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        self.adopt_rank(found, listed.rank)

    def adopt_rank(self, found: FoundStep, rank: int) -> None:
        """Learn what a rank of a published step put; raises IntegrityError and RemoteError."""
        shards = self._shards(found, rank)
        replicas = [
            RemoteSave(remote.name, seen.location, seen.published_at or seen.started_at)
            for remote, seen in found.replicas
        ]
        self._store.write(
            manifests.adopt, self._store.policy, save_of(found), shards, self._clock.now(), replicas
        )

    def _shards(self, found: FoundStep, rank: int) -> list[NewShard]:
        """Return the shards of a rank, with every remote copy that is known of."""
        sources = list(found.replicas)
        if found.durable:
            sources.insert(0, (self._durable, found.manifest))
        (first, manifest), *others = sources
        truth = _part(first, manifest, rank)
        copies = {entry.name: [RemoteCopy(first.name, entry.stored())] for entry in truth.shards}
        for remote, seen in others:
            for entry in self._same(truth, remote, seen, rank):
                copies[entry.name].append(RemoteCopy(remote.name, entry.stored()))
        return [
            NewShard(
                entry.name,
                entry.rank,
                entry.content(),
                state=ShardState.EVICTED,
                copies=tuple(copies[entry.name]),
                facts=entry.known_facts(),
            )
            for entry in truth.shards
        ]

    def _same(
        self, truth: PartDocument, remote: Remote, manifest: Manifest, rank: int
    ) -> Sequence[ShardEntry]:
        """Return what ``remote`` describes as the same bytes; nothing where it cannot be read."""
        if self._published.absences.away(remote.name):
            return ()
        try:
            part = _part(remote, manifest, rank)
        except (IntegrityError, RemoteError):
            return ()
        known = {entry.name: entry.content() for entry in truth.shards}
        return [entry for entry in part.shards if known.get(entry.name) == entry.content()]


def save_of(found: FoundStep) -> Save:
    """Return the save of a published step, as a node that never saw it knows it."""
    save = manifests.save_of(found.manifest)
    return save if found.durable else replace(save, state=SaveState.REPLICATED, location=None)


def _part(remote: Remote, manifest: Manifest, rank: int) -> PartDocument:
    """Read the part of ``rank`` and check all it says; raises IntegrityError."""
    pinned = next((part.digest for part in manifest.parts if part.rank == rank), None)
    if pinned is None:
        raise IntegrityError(f"the manifest names no part of rank {rank}", run=manifest.run)
    part = remote.bucket.part(manifest.run, manifest.location, rank, pinned)
    for entry in part.shards:
        _check_entry(part, entry)
    return part


def _check_entry(part: PartDocument, entry: ShardEntry) -> None:
    """Refuse what a part says of a shard if that contradicts itself: the bucket is not ours alone.

    Raises:
        IntegrityError: The blocks are not those of the whole.
    """
    try:
        entry.content().checked()
    except (SizeMismatchError, DigestMismatchError) as error:
        raise IntegrityError(
            f"the part of rank {part.rank} is wrong about shard {entry.name}: {error.message}",
            run=part.run,
            step=part.step,
            rank=part.rank,
            name=entry.name,
        ) from None
