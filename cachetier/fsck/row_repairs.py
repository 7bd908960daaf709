"""Repairs of the catalog itself, which come before anything else reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cachetier.errors import CachetierError
from cachetier.fsck.findings import Finding, Kind, LeftError, Outcome
from cachetier.fsck.resending import content_of
from cachetier.local import check_queries, queries
from cachetier.local.catalog_view import CatalogView
from cachetier.local.files import DiskFiles
from cachetier.local.lost_and_found import Identity
from cachetier.local.mend_log import MendLog
from cachetier.local.mending import mending

OF_THE_CATALOG = {
    Kind.CATALOG_DAMAGED: "make the indexes anew",
    Kind.ACCOUNTING: "make the indexes anew",
    Kind.ROW_DAMAGED: "write its row again, from what its bytes say",
}


def repaired_rows(
    cache_dir: Path, findings: Iterable[Finding], now: float, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Repair what is wrong with the catalog, and yield what became of it.

    Raises:
        CatalogDamagedError: It cannot be opened.
    """
    wrong = [finding for finding in findings if finding.kind in OF_THE_CATALOG]
    if not wrong:
        return
    with mending(cache_dir, now) as (view, log):
        repairs = _RowRepairs(view, log, DiskFiles(cache_dir))
        for finding in wrong:
            say(f"repair {finding.where}: {OF_THE_CATALOG[finding.kind]}")
            act = repairs.rewrite if finding.kind is Kind.ROW_DAMAGED else repairs.reindex
            try:
                yield Outcome(finding, True, act(finding))
            except (LeftError, CachetierError, OSError) as reason:
                yield Outcome(finding, False, str(reason))


class _RowRepairs:
    def __init__(self, view: CatalogView, log: MendLog, files: DiskFiles) -> None:
        self._view = view
        self._log = log
        self._files = files

    def reindex(self, _finding: Finding) -> str:
        self._log.reindex()
        accounted, walked = self._view.read(check_queries.accounts)
        if self._view.read(check_queries.complaints) or accounted != walked:
            raise LeftError("the tables themselves are damaged: read docs/recovery.md")
        return "the indexes are made anew, and agree with the tables"

    def rewrite(self, finding: Finding) -> str:
        """Write a row again, if the bytes and the file's own mark agree on what they are."""
        if finding.file_id is None:
            raise LeftError("no data file says what it was: delete the step")
        identity = Identity.parsed(self._files.identity(finding.file_id))
        save = self._view.read(lambda sql: queries.save_by_number(sql, finding.number))
        if identity is None or save is None:
            raise LeftError("its data file does not say what it is: delete the step")
        ids = identity.ids
        if (ids.run, ids.step, ids.save_id) != (save.run, save.step, save.save_id):
            raise LeftError("its data file is of another save: delete the step")
        descriptor = self._files.open(finding.file_id)
        try:
            content = content_of(descriptor, identity.size_bytes)
        finally:
            os.close(descriptor)
        if content.digest != identity.digest:
            raise LeftError("its data file is damaged too: delete the step")
        self._log.rewrite(finding.version, save.save_id, identity.name, ids.rank, content)
        return "its row is what it was"
