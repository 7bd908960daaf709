"""Check the objects of mounts: their rows, the pieces they need, and what their buckets show."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from cachetier_client.bucket_format.uploads import ObjectInfo

from cachetier.errors import RemoteError
from cachetier.fsck.findings import Finding, FindingKind, FsckReport
from cachetier.local.catalog import objects
from cachetier.local.repair import object_queries
from cachetier.local.repair.object_queries import CheckedObject
from cachetier.local.repair.open_catalog import CatalogView
from cachetier.model.objects import ObjectVersion
from cachetier.remote.mounted import MountBuckets

AT_ONCE = 16


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
