"""Collect garbage: saves, files, objects and uploads that nobody needs any more.

=================  ==============================================================================
incomplete_save    a rank here never sealed, and a newer step of the run is published since
replaced_save      another save of its step is published: its shards here, its objects there
set_aside_file     in ``lost+found``, and the catalog can say why nobody needs it, or a month old
unfinished_upload  multipart uploads of shards here whose saves have ended
=================  ==============================================================================

Nothing that is younger than a grace period goes, nothing that is pinned, nothing that a step can be
restored from, and nothing that other nodes may still complete: that is *left*, and said to be.
Objects are taken off the remotes by the drain.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from cachetier_client.bucket_format.layout import SPREAD_MARK
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds

from cachetier.errors import IntegrityError, InvalidRequestError, RemoteError
from cachetier.local.catalog import copies, saves, shards, uploads
from cachetier.local.lost_and_found import KEPT_SECONDS, LostAndFound, superfluous_because
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.reclaim.abandoned import AbandonedSaves, SaveInBucket
from cachetier.remote.bucket import InBatches, Remote
from cachetier.remote.ownership import owned_keys

GRACE_SECONDS = 86_400.0
UNCLAIMED = "nothing here accounts for it, and nobody took it back for 30 days"
LISTED = 1000
CALLS_AT_ONCE = 8

Named = tuple[str | None, int | None, str | None]


class GarbageKind(StrEnum):
    INCOMPLETE = "incomplete_save"
    REPLACED = "replaced_save"
    SET_ASIDE = "set_aside_file"
    UPLOAD = "unfinished_upload"


@dataclass(frozen=True, slots=True)
class Rubbish:
    """One thing that nobody needs.

    ``size_bytes`` is what it takes on this node, ``objects`` how many at the durable remote.
    """

    kind: GarbageKind
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
class Left:
    """One save that only a person can say nobody needs; ``command``, if any, then deletes it."""

    what: str
    why: str
    run: str
    step: int
    save_id: str
    command: str | None


@dataclass(frozen=True, slots=True)
class Collection:
    """The rubbish that was found, and whether it was removed (``dry_run``: it was not)."""

    dry_run: bool
    rubbish: tuple[Rubbish, ...]
    left: tuple[Left, ...] = ()
    unanswered: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "found": len(self.rubbish),
            "size_bytes": sum(each.size_bytes for each in self.rubbish),
            "objects": sum(each.objects for each in self.rubbish),
            "rubbish": [asdict(each) for each in self.rubbish[:LISTED]],
            "left": [asdict(each) for each in self.left[:LISTED]],
            "unanswered": list(self.unanswered),
        }


@dataclass(frozen=True, slots=True)
class _Turn:
    """One collection: what it may take, what it left, and who did not answer, with what."""

    before: float
    dry_run: bool
    left: list[Left] = field(default_factory=list)
    unanswered: dict[str, str] = field(default_factory=dict)


class Garbage:
    """Finds and collects rubbish. Thread-safe.

    Args:
        store: Of this node.
        cache_dir: The directory of the store.
        remotes: The durable one first, then the replicas.
        clock: For ages.
        on_deleted: Called when the drain has objects to delete.
    """

    def __init__(
        self,
        store: Store,
        cache_dir: Path,
        remotes: Sequence[Remote],
        clock: Clock,
        *,
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._lost = LostAndFound(cache_dir)
        self._remotes = remotes
        self._bucket_side = AbandonedSaves(store, remotes[0].bucket)
        self._clock = clock
        self._on_deleted = on_deleted

    def collect(self, older_than_seconds: float = GRACE_SECONDS, *, dry_run: bool) -> Collection:
        """Collect everything that is older, or with ``dry_run`` only say what that would be."""
        if not older_than_seconds >= 0:
            raise InvalidRequestError("older_than_seconds must not be negative")
        turn = _Turn(self._clock.now() - older_than_seconds, dry_run)
        incomplete = self._store.read(saves.incomplete_saves, turn.before)
        found = [*self._asked(turn, incomplete, self._collect_incomplete), *self._replaced(turn)]
        already_found = {(each.run, each.step, each.save_id) for each in found}
        found += [
            *self._superfluous(turn, already_found),
            *self._set_aside(turn),
            *self._uploads(turn),
        ]
        if not dry_run and any(each.objects for each in found):
            self._on_deleted()
        unanswered = tuple(f"{name}: {message}" for name, message in turn.unanswered.items())
        return Collection(dry_run, tuple(found), tuple(turn.left), unanswered)

    def purge_lost_and_found(self) -> None:
        """Remove the files of ``lost+found`` whose time there is over; asks no remote."""
        for _ in self._set_aside(_Turn(self._clock.now() - GRACE_SECONDS, dry_run=False)):
            pass

    # --- saves -----------------------------------------------------------------------------------

    def _collect_incomplete(self, turn: _Turn, save: Save) -> Rubbish | None:
        """Collect an incomplete save, or leave it and say so."""
        try:
            look = self._bucket_side.look(save)
        except IntegrityError as error:
            turn.left.append(_left(save, f"{error.message}; look with `cachetier fsck`", None))
            return None
        if look.left:
            # A delete would take any other save of the step along.
            turn.left.append(_left(save, look.left, _delete(save) if look.is_alone else None))
        if not look.hopeless:
            return None
        why = "never completed, and a newer step of the run is published"
        found = self._described(GarbageKind.INCOMPLETE, save, look.location, why)
        if turn.dry_run or self._end(save, look):
            return found
        return None

    def _end(self, save: Save, look: SaveInBucket) -> bool:
        """End a save in the bucket, and then here; return False if it may not go any more."""
        number = save.number
        if not self._store.read(saves.is_unwanted, number):
            return False  # the bucket took its time to answer
        if not self._bucket_side.end(look):
            return False
        if look.location is not None:
            self._store.write(copies.record_location, number, look.location)
        shards = self._store.write(saves.delete_incomplete, number)
        self._store.drop(shards or [])
        return shards is not None

    def _replaced(self, turn: _Turn) -> Iterator[Rubbish]:
        found = self._store.read(saves.replaced_saves, turn.before)
        return self._asked(turn, found, self._taken)

    def _taken(self, turn: _Turn, save: Save) -> Rubbish | None:
        why = f"{save.state}: another save of the step is published"
        found = self._described(GarbageKind.REPLACED, save, save.location, why)
        if not turn.dry_run:
            shards = self._store.write(saves.delete_replaced, save.number)
            if shards is None:
                return None
            self._store.drop(shards)
        return found

    def _asked(
        self, turn: _Turn, saves: Iterable[Save], judge: Callable[[_Turn, Save], Rubbish | None]
    ) -> Iterator[Rubbish]:
        """Yield what ``judge`` finds, until the durable remote cannot say: all there stays."""
        name = self._remotes[0].name
        for save in saves:
            if name in turn.unanswered:
                return
            try:
                found = judge(turn, save)
            except RemoteError as error:
                turn.unanswered[name] = error.message
                return
            if found is not None:
                yield found

    def _superfluous(self, turn: _Turn, already_found: Container[Named]) -> Iterator[Rubbish]:
        """Yield replaced saves that left nothing at a remote; housekeeping takes them as well."""
        for save in self._store.read(saves.superfluous_saves, turn.before):
            if (save.run, save.step, save.save_id) in already_found:
                continue
            shards, size_bytes = self._local(save)
            if not turn.dry_run:
                self._store.drop(self._store.write(saves.delete_superfluous_shards, save.number))
            yield replace(
                _of_save(GarbageKind.REPLACED, save, f"{save.state} by another save of the step"),
                shards=shards,
                size_bytes=size_bytes,
            )

    def _described(self, kind: GarbageKind, save: Save, location: str | None, why: str) -> Rubbish:
        shards, size_bytes = self._local(save)
        objects = self._objects(save, location) if location is not None else 0
        found = _of_save(kind, save, why)
        return replace(found, shards=shards, size_bytes=size_bytes, objects=objects)

    def _local(self, save: Save) -> tuple[int, int]:
        return self._store.read(shards.local_bytes_of, save.number)

    def _objects(self, save: Save, location: str) -> int:
        """Count the objects that the drain is to delete at the durable remote."""
        durable, number = self._remotes[0], save.number
        verified = self._store.read(copies.verified_names, number, durable.name)
        with ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="gc") as pool:
            each = InBatches(pool)
            return len(owned_keys(durable.bucket, save, location, each=each, verified=verified))

    # --- files -----------------------------------------------------------------------------------

    def _set_aside(self, turn: _Turn) -> Iterator[Rubbish]:
        for file in self._lost.all():
            identity = file.identity
            why, before = self._store.read(superfluous_because, identity), turn.before
            if why is None:
                why, before = UNCLAIMED, min(before, self._clock.now() - KEPT_SECONDS)
            if file.since >= before:
                continue
            if not turn.dry_run:
                self._lost.remove(file.file_id)
                self._store.space.release(file.size_bytes)
            what = f"lost+found/{file.file_id[:8]}…"
            found = Rubbish(GarbageKind.SET_ASIDE, what, why)
            if identity is not None:
                found = _of_save(GarbageKind.SET_ASIDE, identity.ids, why)
                what = f"{found.run}/{found.step}/{identity.name} in {what}"
            yield replace(found, what=what, shards=1, size_bytes=file.size_bytes)

    # --- uploads ---------------------------------------------------------------------------------

    def _uploads(self, turn: _Turn) -> Iterator[Rubbish]:
        for remote in self._remotes:
            try:
                yield from self._uploads_at(turn, remote)
            except RemoteError as error:
                turn.unanswered[remote.name] = error.message

    def _uploads_at(self, turn: _Turn, remote: Remote) -> Iterator[Rubbish]:
        objects, layout = remote.bucket.objects, remote.bucket.layout
        for run in self._store.read(saves.runs):
            ended = self._store.read(uploads.ended_locations, run, remote.name)
            spread = any(location.endswith(SPREAD_MARK) for location in ended)
            for prefix in layout.upload_prefixes(run, spread=spread) if ended else ():
                for key, upload_id in objects.list_uploads(prefix):
                    save = self._store.read(uploads.save_of_upload, ended, key, prefix)
                    if (
                        save is None
                        or max(save.started_at, save.published_at or 0.0) >= turn.before
                    ):
                        continue
                    if not turn.dry_run:
                        objects.abort_upload(key, upload_id)
                    found = _of_save(GarbageKind.UPLOAD, save, f"its save is {save.state}")
                    yield replace(found, what=key, remote=remote.name)


def _left(save: Save, why: str, command: str | None) -> Left:
    what = f"{save.run}/{save.step}, save {save.save_id}"
    return Left(what, why, save.run, save.step, save.save_id, command)


def _delete(save: Save) -> str:
    return f"cachetier delete {shlex.quote(save.run)} {save.step}"


def _of_save(kind: GarbageKind, save: Save | SaveIds, why: str) -> Rubbish:
    what = f"{save.run}/{save.step}, save {save.save_id}"
    return Rubbish(kind, what, why, save.run, save.step, save.save_id)
