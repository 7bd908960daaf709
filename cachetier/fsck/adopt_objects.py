"""Put objects of a lost catalog together from files of ``lost+found``, by what these say.

A file of an object that was put whole says all of it. Of an upload the first piece says how many
pieces the object has, and its ETag, in which the digest of all bytes is; the other files name the
upload and their number. What comes back is dirty, under the key, the headers and the ETag that it
had; oldest first, each behind all before, so that the bucket shows nothing too early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import ETAG_KEY
from cachetier_client.clock import Clock
from cachetier_client.io.digests import joined, to_hex

from cachetier.drain.upload.deletions import MountDeletions
from cachetier.errors import CachetierError, IntegrityError, RemoteError, RemoteRefusedError
from cachetier.fsck.adopt_files import content_in
from cachetier.fsck.findings import Finding, FindingKind, RepairOutcome
from cachetier.local.catalog import objects
from cachetier.local.catalog.objects import NewObject, NewPiece
from cachetier.local.identity import ObjectIdentity
from cachetier.local.lost_and_found import LostAndFound, SetAside
from cachetier.local.store import Store
from cachetier.model.objects import NO_HEAD, Mount
from cachetier.model.superseding import Stamp, Verdict, judge
from cachetier.remote.mounted import MountBuckets

_KIND = FindingKind.FILE_SET_ASIDE


@dataclass(frozen=True, slots=True)
class LostObject:
    """An object, its ``first`` piece, and the files of all of them that are there, in order."""

    first: ObjectIdentity
    files: tuple[SetAside, ...]

    @property
    def finding(self) -> Finding:
        return Finding(_KIND, "set aside", self.first.run, key=self.first.key)


class ObjectAdopter:
    """Adopts into one store that nobody else uses; ``unanswered`` as of ``FileAdopter``."""

    def __init__(
        self, store: Store, lost: LostAndFound, buckets: MountBuckets | None, clock: Clock
    ) -> None:
        self._store = store
        self._lost = lost
        self._buckets = buckets
        self._clock = clock
        self._deletions: dict[Mount, MountDeletions] = {}
        self.unanswered = False

    def all(self, say: Callable[[str], None]) -> Iterator[RepairOutcome]:
        """Adopt every object that the catalog does not have, oldest first."""
        files = [file for file in self._lost.all() if file.piece is not None]
        for lost in sorted(_objects_in(files), key=lambda each: each.first.at):
            say(f"adopt {lost.finding.where}: check its bytes, and take them back")
            try:
                yield RepairOutcome(lost.finding, True, self._taken(lost))
            except (CachetierError, OSError) as error:
                self.unanswered |= isinstance(error, RemoteError)
                reason = error.message if isinstance(error, CachetierError) else str(error)
                yield RepairOutcome(lost.finding, False, f"it stays in lost+found: {reason}")

    def _taken(self, lost: LostObject) -> str:
        first = lost.first
        newest = self._store.read(objects.current, first.run, first.key)
        if newest is not None and (newest.etag == first.etag or newest.committed_at >= first.at):
            return "the catalog has it, or a newer version"
        made_up, doubt = self._made_up_for(first)
        if made_up is not None:
            return made_up
        contents = self._contents(lost)
        sizes = tuple(content.size_bytes for content in contents)
        digest = joined((content.digest, content.size_bytes) for content in contents)
        whole = NewObject(
            first.key,
            first.head or NO_HEAD,
            self._store.read(objects.watermark),
            first.etag or "",
            sum(sizes),
            digest,
            sizes if first.upload_id is not None else (),
            acknowledged_at=first.acknowledged_at,
            stamped=first.follows + 1,
        )
        if first.upload_id is not None and not whole.etag.startswith(to_hex(whole.digest)):
            raise IntegrityError("the files of its upload are not those that it was made of")
        self._adopt(lost, whole, contents)
        lacks = "" if first.head is not None else "; its headers and metadata are lost"
        return f"it is dirty again: the drain brings it to its bucket{lacks}{doubt}"

    def _made_up_for(self, first: ObjectIdentity) -> tuple[str | None, str]:
        """Return why an object is not needed, None if it is; and what nobody could say of that.

        A file knows what came before it. Whatever else of this directory lies under its key came
        later, or beside it.
        """
        if self._buckets is None:
            raise IntegrityError("its bucket was not asked; leave out --local")
        mount, store = self._buckets.mount(first.run), self._buckets.of(first.run).objects
        ours = Stamp(self._store.store_id, first.follows + 1, first.acknowledged_at)
        try:
            info = store.head(first.key)
            if info is not None and info.metadata.get(ETAG_KEY) == first.etag:
                return "its bucket shows it", ""
            if (
                info is not None
                and judge(ours, Stamp.of(info), replaces=False) is Verdict.SUPERSEDED
            ):
                return "its bucket has something newer", ""
            if mount not in self._deletions:
                found = MountDeletions(store, mount.prefix, self._buckets.store_clock)
                self._deletions[mount] = found
            age_seconds = self._clock.now() - first.at
            deletions = self._deletions[mount]
            if deletions.covers(ours, first.key, age_seconds):
                return "its key was deleted since", ""
        except RemoteRefusedError:
            raise
        except RemoteError:
            return None, "; the bucket did not answer, so the drain looks whether it is needed"
        return None, ""

    def _contents(self, lost: LostObject) -> list[Content]:
        """Describe the pieces.

        Raises:
            IntegrityError: One is missing, or is not what its file says.
        """
        count = max(1, lost.first.pieces)
        if len(lost.files) != count:
            raise IntegrityError(f"{len(lost.files)} of its {count} pieces are there")
        contents = []
        for file in lost.files:
            assert file.piece is not None
            content = content_in(self._lost, file.file_id, file.piece.size_bytes)
            if content.digest != file.piece.digest:
                raise IntegrityError("its bytes fail their digest")
            contents.append(content)
        return contents

    def _adopt(self, lost: LostObject, whole: NewObject, contents: Sequence[Content]) -> None:
        pieces = [
            NewPiece(content, file_id=file.file_id)
            for file, content in zip(lost.files, contents, strict=True)
        ]
        put_at = min(lost.first.at, self._clock.now())
        for file in lost.files:
            self._lost.take_back(file.file_id)
            self._store.files.sync_name(file.file_id)
        try:
            committed = self._store.write(objects.take_back, lost.first.run, whole, pieces, put_at)
        except BaseException:
            for file in lost.files:
                self._store.files.set_aside(file.file_id)
            raise
        self._store.drop(committed.replaced)


def _objects_in(files: Sequence[SetAside]) -> Iterator[LostObject]:
    """Yield what the files are of; an upload that was never completed is nothing."""
    uploads: dict[str, list[SetAside]] = {}
    for file in files:
        assert file.piece is not None
        if file.piece.upload_id is None:
            yield LostObject(file.piece, (file,))
        else:
            uploads.setdefault(file.piece.upload_id, []).append(file)
    for parts in uploads.values():
        parts.sort(key=lambda file: file.piece.part if file.piece is not None else 0)
        for file in parts:
            if file.piece is not None and file.piece.pieces:
                yield LostObject(file.piece, tuple(parts[parts.index(file) :]))
                break
