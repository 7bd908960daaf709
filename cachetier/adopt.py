"""Learn from the bucket what this node never saw: a published step's shards, evicted here.

The manifest pins the part of each rank by its digest, and the part describes the rank's shards;
both are read from a place that others can write, so nothing in them is taken on trust.
"""

from __future__ import annotations

from cachetier.checkpoints import save_of
from cachetier.clock import Clock
from cachetier.errors import (
    DigestMismatchError,
    IntegrityError,
    NotFoundError,
    SizeMismatchError,
)
from cachetier.ingest import check_content
from cachetier.local.records import NewShard, RemoteCopy
from cachetier.local.store import Store
from cachetier.model.documents import Manifest, Part, ShardEntry
from cachetier.model.lifecycle import ShardState
from cachetier.remote.bucket import Bucket


class Adoption:
    """Brings published steps into the catalog. Thread-safe."""

    def __init__(self, store: Store, bucket: Bucket, clock: Clock, *, remote: str) -> None:
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self._remote = remote

    def adopt(self, run: str, step: int, name: str) -> None:
        """Learn what the rank of shard ``name`` put.

        Raises:
            NotFoundError: There is no such published step, or it has no such shard.
            IntegrityError: What the bucket says of it contradicts itself.
        """
        manifest = self._bucket.published(run, step)
        if manifest is None:
            raise NotFoundError(f"run {run} has no step {step}", run=run, step=step, name=name)
        listed = next((entry for entry in manifest.shards if entry.name == name), None)
        if listed is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        part = self._part(manifest, listed.rank)
        for entry in part.shards:
            _check_entry(part, entry)
        shards = [self._adopted(entry) for entry in part.shards]
        self._store.catalog.adopt(save_of(manifest), shards, self._clock.now())

    def _adopted(self, entry: ShardEntry) -> NewShard:
        copy = RemoteCopy(self._remote, entry.stored())
        evicted = ShardState.EVICTED
        return NewShard(entry.name, entry.rank, entry.content(), state=evicted, copy=copy)

    def _part(self, manifest: Manifest, rank: int) -> Part:
        pinned = next((part.digest for part in manifest.parts if part.rank == rank), None)
        if pinned is None:
            raise IntegrityError(f"the manifest names no part of rank {rank}", run=manifest.run)
        return self._bucket.part(manifest.run, manifest.location, rank, pinned)


def _check_entry(part: Part, entry: ShardEntry) -> None:
    """Refuse what a part says of a shard if that contradicts itself: the bucket is not ours alone.

    Raises:
        IntegrityError: The blocks are not those of the whole.
    """
    try:
        check_content(entry.content())
    except (SizeMismatchError, DigestMismatchError) as error:
        raise IntegrityError(
            f"the part of rank {part.rank} is wrong about shard {entry.name}: {error.message}",
            run=part.run,
            step=part.step,
            rank=part.rank,
            name=entry.name,
        ) from None
