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
from cachetier.fsck.findings import Finding, FindingKind, LeftError, Repair, RepairOutcome
from cachetier.fsck.local import LocalRepairs
from cachetier.fsck.mounts import MountRepairs
from cachetier.fsck.object_repairs import ObjectRepairs
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.fsck.row_repairs import OF_THE_CATALOG
from cachetier.local.store import Store
from cachetier.model.lifecycle import DURABLE_SAVES, ForbiddenTransitionError
from cachetier.model.objects import is_mount
from cachetier.remote.bucket import Remote
from cachetier.remote.mounted import MountBuckets
from cachetier.restore.restore import Restore

_DOCUMENTS = (FindingKind.MANIFEST_MISSING, FindingKind.MANIFEST_DAMAGED, FindingKind.PART_DAMAGED)
_LEFT = {
    FindingKind.OBJECT_FOREIGN: (
        "not touched because cachetier did not write it: move it away and repair again"
    ),
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
        local = LocalRepairs(store, self._lookup, remote_index, reclaimer, restore, clock)
        objects = ObjectRepairs(store, self._lookup, remote_index, local)
        documents = DocumentRepairs(store, self._lookup)
        self._of_mounts = MountRepairs(store, self._lookup, local, mounts).repairs
        self._repairs: Mapping[FindingKind, Repair] = {
            **local.repairs,
            **objects.repairs,
            **documents.repairs,
            FindingKind.ROW_CONTRADICTS: Repair(
                "correct its row",
                lambda of: objects.put_right(of) if of.version else documents.locate(of),
            ),
            FindingKind.STEP_ENDED: Repair("close it here too, and remove its bytes", self._end),
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
            known = self._of_mounts.get(finding.kind) if of_mount else None
            repair = known or self._repairs.get(finding.kind)
            if repair is None:
                if finding.is_problem:
                    yield RepairOutcome(finding, False, _LEFT.get(finding.kind, "look at it"))
                continue
            if repair.about_to:
                say(f"repair {finding.where}: {repair.about_to}")
            try:
                yield RepairOutcome(finding, True, repair.act(finding))
            except CachetierError as error:
                yield RepairOutcome(finding, False, error.message)
            except (LeftError, ForbiddenTransitionError, OSError) as reason:
                yield RepairOutcome(finding, False, str(reason))

    def _end(self, finding: Finding) -> str:
        """End a save that the bucket says has ended, by the rule of a running service."""
        assert self._restore is not None  # else no remote was asked
        run, step = self._lookup.save(finding).run, self._lookup.save(finding).step
        self._restore.knowledge.manifest(run, step)
        if self._lookup.save(finding).state in DURABLE_SAVES:
            raise LeftError("it is pinned here: `cachetier pin --remove` lets it go")
        return "it has ended here too"
