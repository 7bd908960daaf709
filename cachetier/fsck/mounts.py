"""Check and repair the objects of mounts: rows, the pieces they need, and what buckets show.

No repair drops what may be the only copy of bytes. What its bucket lost is dirty again, and the
drain brings it there in its turn. A row that cannot be trusted makes way, as the drain of its mount
would wait for it for ever: its files go to ``lost+found``, where their own marks say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from cachetier_client.bucket_format.uploads import ObjectInfo

from cachetier.errors import NotFoundError, RemoteError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, FsckReport, LeftError, Repair
from cachetier.fsck.local import LocalRepairs
from cachetier.local.catalog import objects, shards
from cachetier.local.repair import object_queries
from cachetier.local.repair.object_queries import CheckedObject
from cachetier.local.repair.open_catalog import CatalogView
from cachetier.local.store import Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import ObjectVersion
from cachetier.model.shard import Shard
from cachetier.remote.mounted import MountBuckets

AT_ONCE = 16
ADOPT = "its files are in lost+found: --adopt takes them back by their labels"


class MountChecks:
    """Yields what is wrong with objects. ``number`` of a finding is the object's version."""

    def __init__(self, view: CatalogView, report: FsckReport, *, run: str | None = None) -> None:
        self._view = view
        self._report = report
        self._run = run

    def local(self) -> Iterator[Finding]:
        """Yield rows that cannot be trusted, lack pieces, or have none that names them."""
        for found in chain.from_iterable(self._pages(self._run)):
            version = found.version
            if version is None:
                yield _of(FindingKind.OBJECT_ROW_DAMAGED, found, "its row fails its own digest")
            elif found.pieces != version.pieces and self._is_still(found):
                message = f"{found.pieces} of its {version.pieces} pieces are known here"
                yield _of(FindingKind.PIECES_MISSING, found, message)
        for piece in self._view.read(object_queries.unnamed_pieces, self._run):
            if not self._report.online:
                yield Finding(
                    FindingKind.PIECE_UNNAMED,
                    "it is a piece of an object that has no row",
                    piece.run,
                    name=piece.name,
                    file_id=piece.file_id,
                    version=piece.version,
                )

    def remote(self, buckets: MountBuckets) -> Iterator[Finding]:
        """Yield what the buckets do not show as it was verified to be there."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fsck") as threads:
            for run in self._view.read(objects.mount_saves):
                if self._run not in (None, run):
                    continue
                try:
                    buckets.of(run).objects.check()
                    yield from self._shown(buckets, run, threads)
                except RemoteError as error:
                    self._report.unanswered.append(f"{run}: {error.message}")

    def _shown(
        self, buckets: MountBuckets, run: str, threads: ThreadPoolExecutor
    ) -> Iterator[Finding]:
        store = buckets.of(run).objects
        for page in self._pages(run):
            shown = [each for each in page if each.version is not None and each.version.shown]
            looks = threads.map(lambda each: store.head(each.key), shown)
            for found, info in zip(shown, looks, strict=True):
                assert found.version is not None
                self._report.objects += 1
                wrong = _wrong(found.version, info)
                if wrong is not None and self._is_still(found):
                    yield _of(wrong[0], found, wrong[1])

    def _pages(self, run: str | None) -> Iterator[list[CheckedObject]]:
        """Yield the rows, page by page, so that no read holds up who writes."""
        after = 0
        while page := self._view.read(object_queries.checked_objects, after, run):
            yield page
            after = page[-1].number

    def _is_still(self, found: CheckedObject) -> bool:
        """Return whether the row is as it was: the service may have replaced it."""
        if not self._report.online:
            return True
        now = self._view.read(object_queries.checked_objects, found.number - 1, found.run, 1)
        return now == [found]


def _wrong(version: ObjectVersion, info: ObjectInfo | None) -> tuple[FindingKind, str] | None:
    if info is None:
        return FindingKind.OBJECT_MISSING, "its bucket does not have it any more"
    if info.etag != version.remote_etag:
        return FindingKind.GONE_ELSEWHERE, "somebody else has replaced it in its bucket"
    if info.size_bytes != version.size_bytes or info.digest not in (None, version.digest):
        return FindingKind.OBJECT_DIFFERS, "its bucket has other bytes under the ETag of ours"
    return None


def _of(kind: FindingKind, found: CheckedObject, message: str) -> Finding:
    return Finding(kind, message, found.run, key=found.key, number=found.number)


# --- repairs -----------------------------------------------------------------------------------


class MountRepairs:
    """Repairs objects of one store that nobody else uses."""

    def __init__(
        self,
        store: Store,
        lookup: CatalogLookup,
        local: LocalRepairs,
        buckets: MountBuckets | None,
    ) -> None:
        self._store = store
        self._lookup = lookup
        self._local = local
        self._buckets = buckets
        send_again = Repair("bring it there again", self._send_again)
        self.repairs: Mapping[FindingKind, Repair] = {
            FindingKind.OBJECT_MISSING: send_again,
            FindingKind.OBJECT_DIFFERS: send_again,
            FindingKind.OBJECT_ROW_DAMAGED: Repair(
                "remove it, and keep its files in lost+found", self._make_way
            ),
            FindingKind.PIECES_MISSING: Repair(
                "remove its row, and keep its files in lost+found", self._make_way
            ),
            FindingKind.PIECE_UNNAMED: Repair(
                "remove its row, and keep its file in lost+found", self._set_piece_aside
            ),
        }

    def _send_again(self, finding: Finding) -> str:
        """Make an object dirty again, over what its bucket has now."""
        assert finding.run is not None
        if self._buckets is None:
            raise LeftError("its bucket was not asked; leave out --local")
        version = self._version(finding)
        pieces = self._store.read(objects.pieces_of, version.version)
        clean = all(piece.state is ShardState.CLEAN for piece in pieces)
        if not (clean and all(map(self._local.is_sound, pieces))):
            raise LeftError("its bytes are not all here, and nothing else has them: put it again")
        info = self._buckets.of(finding.run).objects.head(version.key)
        if info is not None and info.etag != version.remote_etag:
            raise LeftError("somebody else has put another object there meanwhile: it stays")
        base = "" if info is None else info.etag
        self._store.write(objects.send_again, version.version, base)
        return "it is dirty again: the drain brings it to its bucket"

    def _make_way(self, finding: Finding) -> str:
        """Remove a row that stands in the way of its mount; its files are kept."""
        pieces = self._store.read(object_queries.pieces_by_name, finding.number)
        inside = [piece for piece in pieces if piece.inline and piece.state is ShardState.DIRTY]
        if inside:
            raise LeftError("bytes of it lie in the catalog alone: restore the catalog, or put it")
        self._set_aside(pieces)
        self._store.write(objects.forget_row, finding.number)
        return f"its row is gone; {ADOPT}"

    def _set_piece_aside(self, finding: Finding) -> str:
        piece = self._lookup.shard(finding.version)
        if piece.inline and piece.state is ShardState.DIRTY:
            raise LeftError("its bytes lie in the catalog alone, and nothing says what they are of")
        self._set_aside([piece])
        return f"its row is gone; {ADOPT}"

    def _set_aside(self, pieces: Sequence[Shard]) -> None:
        for piece in pieces:
            self._store.write(shards.delete_shard, piece.version)
            if piece.file_id is not None:
                self._store.files.set_aside(piece.file_id)

    def _version(self, finding: Finding) -> ObjectVersion:
        version = self._store.read(objects.by_version, finding.number)
        if version is None or not version.shown:
            raise NotFoundError("it was replaced meanwhile")
        return version
