"""Repair the findings, one by one; no repair deletes the only copy of a shard.

What is damaged here is fetched again, or quarantined; what a remote lost is sent again; documents
are written again as they were. Somebody else's objects are left alone. Each repair is said before
it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from cachetier_client.clock import Clock

from cachetier.errors import CachetierError
from cachetier.fsck.adopt_files import FileReclaimer
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.document_repairs import DocumentRepairs
from cachetier.fsck.findings import Finding, FindingKind, LeftError, RepairOutcome
from cachetier.fsck.local_repairs import LocalRepairs
from cachetier.fsck.mount_repairs import MountRepairs
from cachetier.fsck.object_repairs import ObjectRepairs
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.fsck.row_repairs import OF_THE_CATALOG
from cachetier.local.store import Store
from cachetier.model.lifecycle import DURABLE_SAVES, ForbiddenTransitionError
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote
from cachetier.remote.mounted import MountBuckets
from cachetier.restore.restore import Restore

Act = Callable[[Finding], str]

ABOUT_TO: dict[FindingKind, str] = {
    FindingKind.FILE_UNMARKED: "remove it",
    FindingKind.FILE_ORPHAN: "set it aside, in lost+found",
    FindingKind.FILE_MISSING: "take its bytes here out of use, and fetch them again",
    FindingKind.FILE_SIZE: "take its bytes here out of use, and fetch them again",
    FindingKind.ROW_CONTRADICTS: "put its row right",
    FindingKind.BYTES_DAMAGED: "take its bytes here out of use, and fetch them again",
    FindingKind.QUARANTINED: "fetch its bytes from a remote that has them",
    FindingKind.OBJECT_MISSING: "bring it there again",
    FindingKind.OBJECT_DIFFERS: "bring it there again",
    FindingKind.OBJECT_ROW_DAMAGED: "remove it, and keep its files in lost+found",
    FindingKind.PIECES_MISSING: "remove its row, and keep its files in lost+found",
    FindingKind.PIECE_UNNAMED: "remove its row, and keep its file in lost+found",
    FindingKind.MANIFEST_MISSING: "let the drain publish the step again",
    FindingKind.MANIFEST_DAMAGED: "claim the step again in its place, and let the drain publish it",
    FindingKind.PART_DAMAGED: "write it again, as it was",
    FindingKind.UPLOAD_STALE: "abort the upload",
    FindingKind.STEP_ENDED: "end it here too, and remove its bytes",
}
# Opening the store does these: start-up is recovery.
AT_START = (
    FindingKind.FILE_UNMARKED,
    FindingKind.FILE_ORPHAN,
    FindingKind.FILE_MISSING,
    FindingKind.FILE_SIZE,
)
_DOCUMENTS = (FindingKind.MANIFEST_MISSING, FindingKind.MANIFEST_DAMAGED, FindingKind.PART_DAMAGED)
_LEFT = {
    FindingKind.OBJECT_FOREIGN: "left alone, as it is not ours: move it away and repair again",
}


class Repairs:
    """Repairs one store that nobody else uses. The durable remote is the first of ``remotes``."""

    def __init__(
        self,
        store: Store,
        cache_dir: Path,
        remotes: list[Remote],
        restore: Restore | None,
        clock: Clock,
        mounts: MountBuckets | None = None,
    ) -> None:
        self._restore = restore
        self._lookup = CatalogLookup(store, remotes)
        remote_index = RemoteIndex(store, self._lookup, clock)
        reclaimer = FileReclaimer(store, cache_dir)
        self._local = LocalRepairs(store, self._lookup, remote_index, reclaimer, restore, clock)
        objects = ObjectRepairs(store, self._lookup, remote_index, self._local)
        documents = DocumentRepairs(store, self._lookup)
        self._of_objects = MountRepairs(store, self._lookup, self._local, mounts).acts
        self._acts: Mapping[FindingKind, Act] = {
            **dict.fromkeys(AT_START, self._started),
            FindingKind.ROW_CONTRADICTS: lambda of: (
                objects.put_right(of) if of.version else documents.locate(of)
            ),
            FindingKind.BYTES_DAMAGED: lambda of: self._local.take_out_of_use(self._shard(of)),
            FindingKind.QUARANTINED: lambda of: self._local.fetch(self._shard(of)),
            FindingKind.OBJECT_MISSING: objects.bring_there,
            FindingKind.OBJECT_DIFFERS: objects.bring_there,
            FindingKind.MANIFEST_MISSING: documents.publish_again,
            FindingKind.MANIFEST_DAMAGED: documents.claim_and_publish,
            FindingKind.PART_DAMAGED: documents.write_part,
            FindingKind.UPLOAD_STALE: self._abort,
            FindingKind.STEP_ENDED: self._end,
        }

    def all(
        self, findings: Iterable[Finding], say: Callable[[str], None]
    ) -> Iterator[RepairOutcome]:
        """Repair what can be, and yield what became of each finding that is any work.

        Documents come last, as they name objects.
        """
        for finding in sorted(findings, key=lambda each: each.kind in _DOCUMENTS):
            if finding.kind in OF_THE_CATALOG or finding.kind is FindingKind.LOG_LOST:
                continue
            of_mount = finding.run is not None and is_mount(finding.run)
            known = self._of_objects.get(finding.kind) if of_mount else None
            act = known or self._acts.get(finding.kind)
            if act is None:
                if finding.is_problem:
                    yield RepairOutcome(finding, False, _LEFT.get(finding.kind, "look at it"))
                continue
            if finding.kind not in AT_START:
                say(f"repair {finding.where}: {ABOUT_TO[finding.kind]}")
            try:
                yield RepairOutcome(finding, True, act(finding))
            except CachetierError as error:
                yield RepairOutcome(finding, False, error.message)
            except (LeftError, ForbiddenTransitionError, OSError) as reason:
                yield RepairOutcome(finding, False, str(reason))

    def _started(self, finding: Finding) -> str:
        """Start-up has dealt with it already."""
        if not finding.version:
            return "removed" if finding.kind is FindingKind.FILE_UNMARKED else "moved to lost+found"
        return self._local.fetch(self._shard(finding))

    def _abort(self, finding: Finding) -> str:
        remote = self._lookup.remote(finding.remote)
        assert finding.key is not None
        assert finding.file_id is not None
        remote.bucket.objects.abort_upload(finding.key, finding.file_id)
        return "aborted"

    def _end(self, finding: Finding) -> str:
        """End a save that the bucket says has ended, by the rule of a running service."""
        assert self._restore is not None  # else no remote was asked
        run, step = self._lookup.save(finding).run, self._lookup.save(finding).step
        self._restore.knowledge.manifest(run, step)
        if self._lookup.save(finding).state in DURABLE_SAVES:
            raise LeftError("it is pinned here: `cachetier pin --remove` lets it go")
        return "it has ended here too"

    def _shard(self, finding: Finding) -> Shard:
        return self._lookup.shard(finding.version)
