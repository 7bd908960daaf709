"""Index a remote's own documents: how each shard is stored there, whatever the catalog lost."""

from __future__ import annotations

from collections.abc import Mapping

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    ShardEntry,
    ShardSummary,
)
from cachetier_client.bucket_format.stored import Codec, Stored
from cachetier_client.clock import Clock

from cachetier.errors import IntegrityError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import LeftError
from cachetier.local.catalog import copies
from cachetier.local.repair import check_queries
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote

Entries = Mapping[str, ShardSummary]


class RemoteIndex:
    """Reads what was written down of shards at remotes, and writes the catalog's rows again."""

    def __init__(self, store: Store, lookup: CatalogLookup, clock: Clock) -> None:
        self._store = store
        self._lookup = lookup
        self._clock = clock
        self._read: tuple[tuple[str, int, int], Entries] | None = None  # the last part

    def stored(self, shard: Shard, save: Save, remote: Remote) -> Stored | None:
        """Return how ``remote`` stores, or stored, a shard: by its documents, else by its row.

        Raises:
            LeftError: The step there is not of this save any more, or does not name the shard.
            RemoteError: The remote cannot be asked.
        """
        if self._lookup.at(remote.name).is_described(save, shard.rank):
            entries = self._entries(save, shard.rank, remote)
            stored = _stored_of(shard, entries.get(shard.name)) if entries else None
            if stored is not None and (stored.codec is Codec.RAW or stored.frames):
                return stored
        return self._store.read(check_queries.stored_at, shard.version, remote.name)

    def learn(self, shard: Shard, save: Save, remote: Remote) -> bool:
        """Write a shard's row again if ``remote`` has the object now; return whether it has.

        Raises as ``stored`` does.
        """
        location = self._lookup.at(remote.name).location(save)
        stored = self.stored(shard, save, remote) or Stored.raw(shard.content)
        if location is None or not remote.bucket.holds(shard, location, stored):
            return False
        self.remember(shard, remote, stored)
        return True

    def remember(self, shard: Shard, remote: Remote, stored: Stored) -> None:
        """Write into the catalog that ``remote`` holds a shard, and how it stores it."""
        now = self._clock.now()
        self._store.write(copies.remember, shard.version, remote.name, stored, now)

    def together(self, shard: Shard, save: Save, remote: Remote, stored: Stored) -> list[Shard]:
        """Return the shards that lie in one object with ``shard``, in the order of its bytes."""
        if stored.pack is None:
            return [shard]
        name, names = stored.pack.name, []
        if self._lookup.at(remote.name).is_described(save, shard.rank):
            entries = self._entries(save, shard.rank, remote).values()
            starts = [
                (entry.pack.start, entry.size_bytes, entry.name)
                for entry in entries
                if entry.pack is not None and entry.pack.name == name
            ]
            names = [each for _, _, each in sorted(starts)]
        return self._store.read(check_queries.pack_of, save.number, remote.name, name, names)

    def _entries(self, save: Save, rank: int, remote: Remote) -> Entries:
        """Return what the part of a rank says, else the manifest, without frames; else nothing."""
        key = remote.name, save.number, rank
        if self._read is None or self._read[0] != key:
            self._read = key, _entries_at(remote, save, rank, self._lookup)
        return self._read[1]


def _entries_at(remote: Remote, save: Save, rank: int, lookup: CatalogLookup) -> Entries:
    bucket, location = remote.bucket, lookup.at(remote.name).location(save)
    manifest = _manifest(remote, save)
    pins = {part.rank: part.digest for part in manifest.parts} if manifest is not None else {}
    if location is None:
        return {}
    try:
        part = bucket.part(save.run, location, rank, pins.get(rank))
    except IntegrityError:
        listed = manifest.shards if manifest is not None else ()
        return {entry.name: entry for entry in listed if entry.rank == rank}
    of_this = (part.step, part.save_id) == (save.step, save.save_id)
    return {entry.name: entry for entry in part.shards} if of_this else {}


def _manifest(remote: Remote, save: Save) -> Manifest | None:
    """Return the manifest that publishes ``save``, or None where it is damaged, or not there yet.

    Raises:
        LeftError: Another save has the step, or it was deleted.
    """
    try:
        seen = remote.bucket.manifest(save.run, save.step)
    except IntegrityError:
        return None
    if seen is None or (
        seen.manifest.save_id == save.save_id and seen.manifest.state is ManifestState.CLAIMED
    ):
        return None
    if seen.manifest.save_id == save.save_id and seen.manifest.state is ManifestState.PUBLISHED:
        return seen.manifest
    raise LeftError(f"the step is not this save's at {remote.name} any more: {gone(save)}")


def gone(save: Save) -> str:
    """Say what to do about a save whose step another node deleted or replaced."""
    return f"`cachetier delete {save.run} {save.step}` removes what is left of it here"


def _stored_of(shard: Shard, entry: ShardSummary | None) -> Stored | None:
    if entry is None:
        raise LeftError(
            "the step in the bucket does not name it, so nothing sends it: read it while it is "
            "here, or save the step again"
        )
    if not is_same(shard, entry):
        raise LeftError("the step in the bucket has other bytes under its name")
    return entry.stored()


def is_same(shard: Shard, entry: ShardSummary) -> bool:
    """Return whether a document says of a shard's bytes what the catalog does."""
    content = shard.content
    same = (entry.size_bytes, int(entry.digest, 16)) == (content.size_bytes, content.digest)
    if isinstance(entry, ShardEntry):
        return same and entry.content().block_digests == content.block_digests
    return same
