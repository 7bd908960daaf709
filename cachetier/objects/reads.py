"""Read objects of mounts: from this node what it has, from the bucket what only that knows.

What waits here to be shown is what counts. What the bucket showed already it may show no longer, as
other nodes and other programs put and delete there too: so a clean version is looked at before it
is read, once in some seconds; while the bucket is away, what is here is read.

Source: docs/design/0030-objects.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from cachetier_client.bucket_format.uploads import ETAG_KEY, ObjectInfo
from cachetier_client.clock import Clock
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier import callers
from cachetier.errors import IntegrityError, NoSuchKeyError, NotFoundError, RemoteError
from cachetier.local.catalog import objects
from cachetier.local.store import Store
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import Mount, ObjectVersion
from cachetier.model.shard import Shard
from cachetier.model.superseding import Stamp, Verdict, judge
from cachetier.objects import listing
from cachetier.objects.base import FoundObject, ObjectPart, OpenedObject, Page
from cachetier.objects.foreign import BucketBytes, found_there
from cachetier.objects.listing import Asked, Entry, name_of
from cachetier.remote.base import ListedObject, ListedPage, ObjectStore
from cachetier.restore.block_reader import BlockReader
from cachetier.restore.link import Link
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.replica_choice import Absences
from cachetier.restore.restore import Restore

_LOOKS_AT_MOVING_KEY = 5

_Known = tuple[ObjectVersion, Sequence[Shard]]


class ObjectReads:
    """The reading side of ``Objects``. Thread-safe."""

    def __init__(
        self, store: Store, restore: Restore, mounted: MountedObjects, link: Link, clock: Clock
    ) -> None:
        self._store = store
        self._absences = Absences(clock)
        self._restore = restore
        self._mounted = mounted
        self._link = link

    def head(self, mount: Mount, key: str) -> FoundObject:
        known = self._found(mount, key)
        return found_there(known) if isinstance(known, ObjectInfo) else _found_here(*known)

    def open(self, mount: Mount, key: str) -> OpenedObject:
        known = self._found(mount, key)
        if isinstance(known, ObjectInfo):
            there = BucketBytes(self._bucket(mount), known, self._link)
            return OpenedObject(found_there(known), foreign=there)
        version, shards = known
        starts = (sum(version.part_sizes[:number]) for number in range(len(shards)))
        return OpenedObject(_found_here(version, shards), tuple(map(ObjectPart, starts, shards)))

    @contextmanager
    def open_piece(self, piece: ObjectPart, timeout_seconds: float) -> Iterator[OpenedPiece]:
        shard = piece.shard
        with self._reporting_damage(shard):
            opened = self._restore.follow(shard.run, shard.step, shard.name, timeout_seconds)
        reader = BlockReader(opened, self._restore, timeout_seconds, keep_cached=True)
        try:
            yield OpenedPiece(reader, lambda: self._reporting_damage(shard))
        finally:
            reader.close()

    def list(self, mount: Mount, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        narrowed = mount.prefix if mount.prefix.startswith(prefix) else prefix
        if limit == 0 or not narrowed.startswith(mount.prefix):
            return Page((), (), None)
        folded = Asked(prefix, delimiter).folded(mount.prefix)
        if folded is not None:  # all of the mount is one entry
            whole = Asked(mount.prefix, "")
            one = self._entries(mount, whole, "", 1) if folded > after else ([], None)
            return Page((), (folded,) if any(one) else (), None)
        found, last = self._entries(mount, Asked(narrowed, delimiter), after, limit + 1)
        page = self._described(mount, found[:limit])
        if len(found) > limit:
            last = name_of(found[limit - 1])
        return Page(
            tuple(each for each in page if isinstance(each, FoundObject)),
            tuple(each for each in page if isinstance(each, str)),
            last,
        )

    # --- one object ------------------------------------------------------------------------------

    def _found(self, mount: Mount, key: str) -> _Known | ObjectInfo:
        """Return the version of a key that readers see, as this node or only the bucket has it.

        Raises:
            NoSuchKeyError: There is none.
            RemoteError: Only the bucket could say.
        """
        if mount.is_reserved(key):
            raise _no_such_key(mount, key)
        for _ in range(_LOOKS_AT_MOVING_KEY):
            known = self._store.read(objects.newest_with_pieces, mount.run, key)
            if known is not None and known[0].deleted:
                raise _no_such_key(mount, key)
            if known is not None and len(known[1]) < known[0].pieces:
                continue  # it was replaced between two looks
            if known is not None and known[0].shown and self._still_shown(known[0]):
                return known
            if known is not None and not known[0].shown:
                made_up = self._made_up_for(known[0]) if _is_damaged(known[1]) else None
                return made_up or known
            info = self._mounted.look(mount.run, key)
            if known is not None and not self._lets_go(known[0], info):
                continue
            if info is None:
                raise _no_such_key(mount, key)
            return info
        raise IntegrityError(f"{key} keeps changing", run=mount.run, name=key)

    def _still_shown(self, version: ObjectVersion) -> bool:
        """Return whether the bucket shows a clean version, as far as it can be asked."""
        if self._absences.away(version.run):
            return True
        try:
            return self._mounted.shows(version)
        except RemoteError:
            self._absences.note(version.run)
            return True

    def _made_up_for(self, version: ObjectVersion) -> ObjectInfo | None:
        """Return what the bucket has in the place of a version whose bytes are damaged here.

        That is the version itself, or something newer; the drain lets ours go then.
        """
        info = self._mounted.look(version.run, version.key)
        stamp = Stamp(self._store.store_id, version.stamp_version, version.acknowledged_at)
        if info is None or info.metadata.get(ETAG_KEY) == version.etag:
            return info
        replaces = info.etag == version.base
        return (
            info if judge(stamp, Stamp.of(info), replaces=replaces) is Verdict.SUPERSEDED else None
        )

    def _lets_go(self, version: ObjectVersion, info: ObjectInfo | None) -> bool:
        """Return whether the bucket has something else than a version that is the newest here."""
        newest = self._store.read(objects.current, version.run, version.key)
        if newest is None or newest.version != version.version:
            return False
        if info is not None and info.etag == version.remote_etag:
            return False
        if info is not None:
            self._mounted.let_go(version)
        return True

    @contextmanager
    def _reporting_damage(self, piece: Shard) -> Iterator[None]:
        """Say of a piece that has no sound bytes where the bucket has another object by now.

        Raises:
            NotFoundError: It has.
        """
        try:
            yield
        except IntegrityError as error:
            place = self._store.read(objects.place_of, piece)
            if place is not None and self._is_made_up_for(place.version):
                message = f"{place.version.key} was replaced in the bucket: read it again"
                raise NotFoundError(message, **place.version.context) from error
            raise

    def _is_made_up_for(self, version: ObjectVersion) -> bool:
        if not version.shown:
            return self._made_up_for(version) is not None
        self._mounted.forget_look(version)
        return not self._mounted.shows(version)

    # --- listings --------------------------------------------------------------------------------

    def _bucket(self, mount: Mount) -> ObjectStore:
        return self._mounted.buckets.of(mount.run).objects

    def _entries(
        self, mount: Mount, asked: Asked, after: str, limit: int
    ) -> tuple[Sequence[Entry], str | None]:
        def unshown(behind: str, most: int) -> Sequence[ObjectVersion]:
            page = objects.unshown_page
            return self._store.look(page, mount.run, asked.prefix, behind, most)

        def page(prefix: str, delimiter: str, behind: str, most: int) -> ListedPage:
            callers.refuse_if_gone()
            listed = self._bucket(mount).list_page(prefix, delimiter, behind, most)
            last = listed.next_after
            return replace(
                listed,
                next_after=mount.behind_reserved if mount.is_reserved(last or "") else last,
                objects=tuple(each for each in listed.objects if not mount.is_reserved(each.key)),
                prefixes=tuple(each for each in listed.prefixes if not mount.is_reserved(each)),
            )

        return listing.entries(asked, after, limit, unshown, page)

    def _described(self, mount: Mount, entries: Sequence[Entry]) -> Sequence[FoundObject | str]:
        """Describe entries; what the bucket has of this node under the ETag that its door gave."""
        keys = [each.key for each in entries if isinstance(each, ListedObject)]
        here = self._store.look(objects.newest_of, mount.run, keys)
        return [_listed(each, here.get(name_of(each))) for each in entries]


@dataclass(frozen=True, slots=True)
class OpenedPiece:
    """The bytes of a piece; see ``PieceBytes``. ``guarded`` is around what may fail."""

    reader: BlockReader
    guarded: Callable[[], AbstractContextManager[None]]

    @property
    def descriptor(self) -> int | None:
        opened = self.reader.opened
        return None if opened.arriving else opened.descriptor

    def read_block(self, number: int) -> bytes | memoryview:
        size_bytes = self.reader.opened.shard.content.size_bytes
        length = min(BLOCK_BYTES, size_bytes - number * BLOCK_BYTES)
        if length <= 0:
            raise IndexError(f"a piece of {size_bytes} bytes has no block {number}")
        block = memoryview(bytearray(length))
        with self.guarded():
            self.reader.fill(number, block)
        return block


def _is_damaged(pieces: Sequence[Shard]) -> bool:
    return any(each.state is ShardState.QUARANTINED for each in pieces)


def _found_here(version: ObjectVersion, pieces: Sequence[Shard] = ()) -> FoundObject:
    here = all(each.here for each in pieces)
    return FoundObject(
        version.key,
        version.size_bytes,
        version.etag,
        version.committed_at,
        Level.DURABLE if version.shown else Level.LOCAL,
        version.head,
        version.digest,
        version.part_sizes,
        "local" if here else "remote",
    )


def _listed(entry: Entry, here: ObjectVersion | None) -> FoundObject | str:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, ObjectVersion):
        return _found_here(entry)
    if here is not None and here.shown and here.remote_etag == entry.etag:
        return _found_here(here)
    etag = entry.etag.strip('"')
    return FoundObject(
        entry.key, entry.size_bytes, etag, entry.modified_at, Level.DURABLE, source="remote"
    )


def _no_such_key(mount: Mount, key: str) -> NoSuchKeyError:
    return NoSuchKeyError(f"there is no object under {key}", run=mount.run, name=key)
