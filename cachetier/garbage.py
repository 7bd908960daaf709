"""Collect what nobody needs any more: at once, and what time alone would never take.

=================  ==============================================================================
incomplete_save    a rank never sealed, and a newer step of the run is published since
replaced_save      another save of its step is published: its shards here, its objects there
set_aside_file     in ``lost+found``, and the catalog can say why nobody needs it
unfinished_upload  multipart uploads of shards here whose saves have ended
=================  ==============================================================================

Nothing that is younger than a grace period goes, nothing that is pinned, and nothing that a step
can be restored from. Objects are taken off the remotes by the drain.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cachetier.clock import Clock
from cachetier.errors import IntegrityError, InvalidRequestError, RemoteError
from cachetier.local import garbage_queries, queries
from cachetier.local.lost_and_found import LostAndFound, superfluous_because
from cachetier.local.store import Store
from cachetier.model.checkpoint import PartState, Save
from cachetier.model.documents import Manifest, ManifestState
from cachetier.model.layout import SPREAD_MARK
from cachetier.model.replication import DURABLE
from cachetier.remote.bucket import Remote

GRACE_SECONDS = 86_400.0
LISTED = 1000


Named = tuple[str | None, int | None, str | None]


class Kind(StrEnum):
    INCOMPLETE = "incomplete_save"
    REPLACED = "replaced_save"
    SET_ASIDE = "set_aside_file"
    UPLOAD = "unfinished_upload"


@dataclass(frozen=True, slots=True)
class Rubbish:
    """One thing that nobody needs.

    ``size_bytes`` is what it takes on this node, ``objects`` how many at the remotes; -1 where a
    remote could not be asked.
    """

    kind: Kind
    what: str
    why: str
    run: str | None = None
    step: int | None = None
    save_id: str | None = None
    remote: str | None = None
    shards: int = 0
    size_bytes: int = 0
    objects: int = 0


@dataclass(frozen=True, slots=True)
class Collection:
    """What there was to collect, and whether it went (``dry_run``: it is all still there)."""

    dry_run: bool
    rubbish: tuple[Rubbish, ...]
    unanswered: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "found": len(self.rubbish),
            "size_bytes": sum(each.size_bytes for each in self.rubbish),
            "objects": sum(max(0, each.objects) for each in self.rubbish),
            "rubbish": [asdict(each) for each in self.rubbish[:LISTED]],
            "unanswered": list(self.unanswered),
        }


class Garbage:
    """Finds and collects rubbish. Thread-safe."""

    def __init__(
        self,
        store: Store,
        cache_dir: Path,
        remotes: Sequence[Remote],
        clock: Clock,
        *,
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        """Make one.

        Args:
            store: Whose.
            cache_dir: Where it is.
            remotes: The durable one first, then the replicas.
            clock: For ages.
            on_deleted: Told that the drain has objects to delete.
        """
        self._store = store
        self._lost = LostAndFound(cache_dir)
        self._remotes = remotes
        self._clock = clock
        self._on_deleted = on_deleted

    def collect(self, older_than_seconds: float = GRACE_SECONDS, *, dry_run: bool) -> Collection:
        """Collect everything that is older, or with ``dry_run`` only say what that would be."""
        if not older_than_seconds >= 0:
            raise InvalidRequestError("older_than_seconds must not be negative")
        before = self._clock.now() - older_than_seconds
        unanswered: dict[str, str] = {}
        replaced = list(self._replaced(before, unanswered, dry_run=dry_run))
        told_of = {(each.run, each.step, each.save_id) for each in replaced}
        found = [
            *self._incomplete(before, unanswered, dry_run=dry_run),
            *replaced,
            *self._superfluous(before, told_of, dry_run=dry_run),
            *self._set_aside(before, dry_run=dry_run),
            *self._uploads(before, unanswered, dry_run=dry_run),
        ]
        if not dry_run and any(each.objects for each in found):
            self._on_deleted()
        told = tuple(f"{name}: {message}" for name, message in unanswered.items())
        return Collection(dry_run, tuple(found), told)

    # --- saves -----------------------------------------------------------------------------------

    def _incomplete(
        self, before: float, unanswered: dict[str, str], *, dry_run: bool
    ) -> Iterator[Rubbish]:
        for save in self._store.read(lambda sql: garbage_queries.incomplete_saves(sql, before)):
            if not self._is_incomplete_there(save, unanswered):
                continue
            why = "never completed, and a newer step of the run is published"
            found = self._described(Kind.INCOMPLETE, save, why, unanswered)
            if not dry_run:
                shards = self._store.garbage_log.discard_incomplete(save.number)
                if shards is None:
                    continue
                self._store.drop(shards)
            yield found

    def _is_incomplete_there(self, save: Save, unanswered: dict[str, str]) -> bool:
        """Return whether the durable remote, too, says that a save is not whole.

        Other nodes may have completed it since this one looked.
        """
        durable, location = self._remotes[0], save.location
        if location is None:
            return True  # nothing of it was ever sent from here, and nothing there is touched
        parts = self._store.read(lambda sql: queries.parts_of(sql, save.number))
        try:
            seen = durable.bucket.manifest(save.run, save.step)
            manifest = seen.manifest if seen is not None else None
            if manifest is not None and _is_published(manifest, save):
                return False
            if not any(part.state is PartState.SEALED for part in parts):
                return True
            if save.started_at >= self._clock.now() - GRACE_SECONDS:
                return False  # other nodes may still be sending what they acknowledged
            there = durable.bucket.part_ranks(save.run, location)
        except RemoteError as error:
            unanswered[durable.name] = error.message
            return False
        except IntegrityError:
            return False  # what the manifest says is for `fsck` to find out
        return not there.issuperset(range(save.world_size))

    def _replaced(
        self, before: float, unanswered: dict[str, str], *, dry_run: bool
    ) -> Iterator[Rubbish]:
        for save in self._store.read(lambda sql: garbage_queries.replaced_saves(sql, before)):
            why = f"{save.state}: another save of the step is published"
            found = self._described(Kind.REPLACED, save, why, unanswered)
            if found.objects < 0:
                continue  # what is there cannot be said, let alone collected
            if not dry_run:
                shards = self._store.garbage_log.discard_replaced(save.number)
                if shards is None:
                    continue
                self._store.drop(shards)
            yield found

    def _superfluous(
        self,
        before: float,
        told_of: Container[Named],
        *,
        dry_run: bool,
    ) -> Iterator[Rubbish]:
        """Yield replaced saves that left nothing at a remote; housekeeping takes them as well."""
        for save in self._store.read(lambda sql: queries.superfluous_saves(sql, before)):
            if (save.run, save.step, save.save_id) in told_of:
                continue
            shards, size_bytes = self._local(save)
            if not dry_run:
                self._store.drop(self._store.catalog.collect(save.number))
            yield replace(
                _of_save(Kind.REPLACED, save, f"{save.state} by another save of the step"),
                shards=shards,
                size_bytes=size_bytes,
            )

    def _described(self, kind: Kind, save: Save, why: str, unanswered: dict[str, str]) -> Rubbish:
        shards, size_bytes = self._local(save)
        objects = self._objects(save, unanswered)
        found = _of_save(kind, save, why)
        return replace(found, shards=shards, size_bytes=size_bytes, objects=objects)

    def _local(self, save: Save) -> tuple[int, int]:
        return self._store.read(lambda sql: garbage_queries.local_bytes_of(sql, save.number))

    def _objects(self, save: Save, unanswered: dict[str, str]) -> int:
        """Count the objects of a save at the durable remote; -1 if it does not answer."""
        durable, location = self._remotes[0], save.location
        if location is None:
            return 0
        layout = durable.bucket.layout
        manifest = layout.manifest_key(save.run, save.step)
        prefixes = {
            layout.location_prefix(save.run, location),
            *layout.shard_prefixes(save.run, location),
        }
        try:
            listed = [durable.bucket.objects.list(prefix).keys for prefix in sorted(prefixes)]
        except RemoteError as error:
            unanswered[durable.name] = error.message
            return -1
        return sum(key != manifest for keys in listed for key in keys)

    # --- files -----------------------------------------------------------------------------------

    def _set_aside(self, before: float, *, dry_run: bool) -> Iterator[Rubbish]:
        for file in self._lost.all():
            identity = file.identity
            why = self._store.read(lambda sql, of=identity: superfluous_because(sql, of))  # type: ignore[misc]
            if file.since >= before or why is None or identity is None:
                continue
            if not dry_run:
                self._lost.remove(file.file_id)
            ids = identity.ids
            what = f"{ids.run}/{ids.step}/{identity.name} in lost+found/{file.file_id[:8]}…"
            yield Rubbish(
                Kind.SET_ASIDE, what, why, ids.run, ids.step, ids.save_id, None, 1, file.size_bytes
            )

    # --- uploads ---------------------------------------------------------------------------------

    def _uploads(
        self, before: float, unanswered: dict[str, str], *, dry_run: bool
    ) -> Iterator[Rubbish]:
        for remote in self._remotes:
            try:
                yield from self._uploads_at(remote, before, dry_run=dry_run)
            except RemoteError as error:
                unanswered[remote.name] = error.message

    def _uploads_at(self, remote: Remote, before: float, *, dry_run: bool) -> Iterator[Rubbish]:
        replica = None if remote.name == DURABLE else remote.name
        objects, layout = remote.bucket.objects, remote.bucket.layout
        for run in self._store.read(queries.runs):
            ended = self._store.read(
                lambda sql, of=run: garbage_queries.ended_locations(sql, of, replica)  # type: ignore[misc]
            )
            spread = any(location.endswith(SPREAD_MARK) for location in ended)
            for prefix in layout.upload_prefixes(run, spread=spread) if ended else ():
                for key, upload_id in objects.list_uploads(prefix):
                    save = self._store.read(
                        lambda sql, k=key, p=prefix, e=ended: garbage_queries.save_of_upload(  # type: ignore[misc]
                            sql, e, k, p
                        )
                    )
                    if save is None or max(save.started_at, save.published_at or 0.0) >= before:
                        continue
                    if not dry_run:
                        objects.abort_upload(key, upload_id)
                    found = _of_save(Kind.UPLOAD, save, f"its save is {save.state}")
                    yield replace(found, what=key, remote=remote.name)


def _is_published(manifest: Manifest, save: Save) -> bool:
    return manifest.save_id == save.save_id and manifest.state is ManifestState.PUBLISHED


def _of_save(kind: Kind, save: Save, why: str) -> Rubbish:
    what = f"{save.run}/{save.step}, save {save.save_id}"
    return Rubbish(kind, what, why, save.run, save.step, save.save_id)
