"""Enter files of ``lost+found`` into the catalog that no row accounts for.

That is for a catalog that was lost, or replaced by an older one: then such a file is an
acknowledged shard. Its own mark says whose it is, and its bytes must have the digest that it says.
What comes back is dirty, in a part that nobody has sealed: a person looks at it, and seals it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    ShardSummary,
    manifest_of,
)
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of

from cachetier.errors import CachetierError, IntegrityError, RemoteError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, RepairOutcome
from cachetier.local.catalog import notes, parts, saves, shards
from cachetier.local.catalog.rows import NewShard
from cachetier.local.files.permissions import unfollowed
from cachetier.local.lost_and_found import Identity, LostAndFound, SetAside, superfluous_because
from cachetier.local.store import Store
from cachetier.model.lifecycle import OPEN_SAVES, ShardState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket

_KIND = FindingKind.FILE_SET_ASIDE
Key = tuple[str, int, str, str, int, int]


class FileAdopter:
    """Adopts into one store that nobody else uses."""

    def __init__(self, store: Store, cache_dir: Path, durable: Bucket, clock: Clock) -> None:
        self._store = store
        self._lost = LostAndFound(cache_dir)
        self._lookup = CatalogLookup(store, [])
        self._reclaimer = FileReclaimer(store, cache_dir)
        self._durable = durable
        self._clock = clock
        self._manifests: dict[tuple[str, int], Manifest | None] = {}
        self._parts: dict[tuple[str, int, int], Mapping[str, ShardSummary]] = {}
        self.unanswered = False

    def all(self, say: Callable[[str], None]) -> Iterator[RepairOutcome]:
        """Adopt every file that may be one of a lost catalog, oldest first.

        ``unanswered`` is then whether the remote could not say of one of them.
        """
        files = sorted(self._lost.all(), key=lambda file: file.written_at)
        for file in files:
            identity = file.identity
            why = self._store.read(superfluous_because, identity, file.written_at)
            finding = Finding.of_file(_KIND, "set aside", file.file_id, identity)
            if file.piece is not None:
                continue  # see ``adopt_objects``
            if identity is None:
                yield RepairOutcome(finding, False, "it has no readable label")
                continue
            if why is not None:
                continue  # nobody needs it
            say(f"adopt {finding.where}: check its bytes, and take them back")
            try:
                yield RepairOutcome(finding, True, self._taken(file, identity))
            except (CachetierError, OSError) as error:
                self.unanswered |= isinstance(error, RemoteError)
                reason = error.message if isinstance(error, CachetierError) else str(error)
                yield RepairOutcome(finding, False, f"it stays in lost+found: {reason}")

    def _taken(self, file: SetAside, identity: Identity) -> str:
        """Take a file back if its bytes are needed; return what became of it."""
        there = self._why_it_is_there(identity)
        if there is not None:
            return there
        if self._reclaimed(identity):
            return "the shard that lacked its bytes has them again"
        self._adopt(file, identity)
        return "it is dirty again; seal its rank to complete it"

    def _adopt(self, file: SetAside, identity: Identity) -> None:
        self._refuse_if_older(file, identity.ids)
        content = content_in(self._lost, file.file_id, identity.size_bytes)
        if content.digest != identity.digest:
            raise IntegrityError("its bytes fail their digest")
        ids = replace(identity.ids, world_size=self._world_size(identity))
        began_at = min(file.written_at, self._clock.now())  # now it would seem the newest
        self._store.write(notes.record_taken_back, ids.run, ids.step, ids.save_id)
        self._lost.take_back(file.file_id)
        self._store.files.sync_name(file.file_id)
        try:
            what = identity.name, ids.rank, content
            new = NewShard(*what, file_id=file.file_id, facts=identity.facts)
            committed = self._store.write(
                parts.commit_shard, self._store.policy, ids, new, began_at
            )
        except BaseException:
            self._store.files.set_aside(file.file_id)
            raise
        if committed.repeated:
            self._store.files.set_aside(file.file_id)
        self._store.drop(committed.replaced)

    def _refuse_if_older(self, file: SetAside, ids: SaveIds) -> None:
        """Refuse a file of a save that would supersede one that began after it was written."""
        found = self._store.read(saves.saves_of, ids.run, ids.step)
        if any(save.save_id == ids.save_id for save in found):
            return
        for save in found:
            since = save.started_at > file.written_at
            if save.state in OPEN_SAVES and since:
                raise IntegrityError(f"the newer save {save.save_id} of the step has replaced it")

    def _world_size(self, identity: Identity) -> int:
        """Return how many ranks its save has, from the first source that knows it."""
        ids = identity.ids
        save = self._lookup.save_named(ids.run, ids.step, ids.save_id)
        if save is not None:
            return save.world_size
        if identity.world_size:
            return identity.world_size
        manifest = self._manifest(ids)
        if manifest is None:
            raise IntegrityError("the number of ranks of its save is not recorded")
        return manifest.world_size

    def _reclaimed(self, identity: Identity) -> bool:
        """Give the file to the row that it is of, if that has no sound bytes."""
        ids, name = identity.ids, identity.name
        save = self._lookup.save_named(ids.run, ids.step, ids.save_id)
        if save is None:
            return False
        shard = self._store.read(shards.shard_named, save.number, name)
        if shard is None or shard.state is not ShardState.QUARANTINED:
            return False
        return self._reclaimer.reclaim(shard)

    def _why_it_is_there(self, identity: Identity) -> str | None:
        """Say why a file is not needed: the remote has its bytes, as documents of its save say.

        Raises:
            IntegrityError: The step is published with other bytes.
        """
        manifest = self._manifest(identity.ids)
        if manifest is None:
            return None
        published = manifest.state is ManifestState.PUBLISHED
        shard = self._listed(manifest, identity.ids).get(identity.name)
        if shard is None or int(shard.digest, 16) != identity.digest:
            if published:
                raise IntegrityError("its step is published with other bytes by its name")
            return None
        if not self._is_there(manifest, shard):
            return None
        if published:
            return "its step is published: the remote has it"
        return "its rank's part is at the remote, and has it: do not seal the rank again"

    def _is_there(self, manifest: Manifest, shard: ShardSummary) -> bool:
        run, location = manifest.run, manifest.location
        key = self._durable.layout.object_key(run, location, shard.name, shard.pack_name)
        return self._durable.has(key, manifest.save_id, int(shard.digest, 16), shard.stored())

    def _listed(self, manifest: Manifest, ids: SaveIds) -> Mapping[str, ShardSummary]:
        """Return what a published step has; else what the part of a rank that the drain wrote."""
        key = ids.run, ids.step, ids.rank
        if key not in self._parts:
            shards: Sequence[ShardSummary] = manifest.shards
            if manifest.state is not ManifestState.PUBLISHED:
                try:
                    shards = self._durable.part(ids.run, manifest.location, ids.rank).shards
                except IntegrityError:
                    shards = ()
            self._parts[key] = {shard.name: shard for shard in shards}
        return self._parts[key]

    def _manifest(self, ids: SaveIds) -> Manifest | None:
        """Return the manifest of a save; None where another one has the step, or none."""
        step = ids.run, ids.step
        if step not in self._manifests:
            self._manifests[step] = manifest_of(self._durable.manifest(*step))
        manifest = self._manifests[step]
        return manifest if manifest is not None and manifest.save_id == ids.save_id else None


class FileReclaimer:
    """Looks for lost bytes of one store's shards in ``lost+found``, which it reads once."""

    def __init__(self, store: Store, cache_dir: Path) -> None:
        self._store = store
        self._lost = LostAndFound(cache_dir)
        self._files: dict[Key, list[str]] | None = None

    def reclaim(self, shard: Shard) -> bool:
        """Give ``shard`` a file that says it holds it, and does; return whether there was one."""
        return any(self._take(shard, file_id) for file_id in self._found(shard))

    def _found(self, shard: Shard) -> list[str]:
        if self._files is None:
            self._files = {}
            for file in self._lost.all():
                if file.identity is not None:
                    of, ids = file.identity, file.identity.ids
                    key = ids.run, ids.step, ids.save_id, of.name, of.size_bytes, of.digest
                    self._files.setdefault(key, []).append(file.file_id)
        content = shard.content
        key = shard.run, shard.step, shard.save_id, shard.name, content.size_bytes, content.digest
        return self._files.pop(key, [])

    def _take(self, shard: Shard, file_id: str) -> bool:
        if not self._is_sound(shard, file_id):
            return False
        self._lost.take_back(file_id)
        self._store.files.sync_name(file_id)
        before = self._store.write(shards.attach, shard.version, file_id)
        if before.file_id == file_id:  # the row's own file, which somebody had moved away
            self._store.space.release(before.content.size_bytes)
        else:
            self._store.drop([before])
        return True

    def _is_sound(self, shard: Shard, file_id: str) -> bool:
        try:
            found = content_in(self._lost, file_id, shard.content.size_bytes)
        except IntegrityError:
            return False
        return found.block_digests == shard.content.block_digests


def content_in(lost: LostAndFound, file_id: str, size_bytes: int) -> Content:
    """Describe the bytes of a file.

    Raises:
        IntegrityError: It has another size.
    """
    with open(lost.path(file_id), "rb", buffering=0, opener=unfollowed) as file:
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise IntegrityError("the file has another size than its label says")
        return content_of(size_bytes, lambda at: os.pread(file.fileno(), BLOCK_BYTES, at))


def content_of(size_bytes: int, block: Callable[[int], bytes]) -> Content:
    """Describe bytes: a digest for each block, and of the whole; ``block`` reads from an offset."""
    blocks = tuple(digest_of(block(at)) for at in range(0, size_bytes, BLOCK_BYTES))
    return Content(size_bytes, combine(blocks, size_bytes), blocks)
