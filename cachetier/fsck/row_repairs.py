"""Repair the catalog's rows, before anything else reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cachetier_client.bucket_format.documents import ShardEntry
from cachetier_client.bucket_format.stored import Content
from cachetier_client.io.digests import BLOCK_BYTES, to_hex

from cachetier.errors import CachetierError, IntegrityError
from cachetier.fsck.adopt_files import content_of
from cachetier.fsck.findings import Finding, FindingKind, LeftError, RepairOutcome
from cachetier.local.catalog import rows, saves, shards
from cachetier.local.catalog.committer import Committer
from cachetier.local.catalog.rows import NewShard
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.lost_and_found import Identity
from cachetier.local.repair import check_queries
from cachetier.local.repair.check_queries import DamagedRow
from cachetier.local.repair.open_catalog import CatalogView, mending
from cachetier.model.checkpoint import Save
from cachetier.remote.bucket import Bucket

OF_THE_CATALOG = {
    FindingKind.CATALOG_DAMAGED: "make the indexes again",
    FindingKind.ACCOUNTING: "make the indexes again",
    FindingKind.ROW_DAMAGED: "write its row again, from what its bytes or its step say",
}


def repaired_rows(
    cache_dir: Path,
    durable: Bucket | None,
    findings: Iterable[Finding],
    now: float,
    say: Callable[[str], None],
    *,
    log_may_be_lost: bool,
) -> Iterator[RepairOutcome]:
    """Repair what is wrong with the catalog, and yield what became of it.

    ``durable`` may have documents that say what was lost here; without it nobody is asked.

    Raises:
        CatalogDamagedError: It cannot be opened.
    """
    wrong = [finding for finding in findings if finding.kind in OF_THE_CATALOG]
    if not wrong:
        return
    with mending(cache_dir, now, log_may_be_lost=log_may_be_lost) as (view, log):
        repairs = _RowRepairs(view, log, DiskFiles(cache_dir), durable)
        for finding in wrong:
            say(f"repair {finding.where}: {OF_THE_CATALOG[finding.kind]}")
            act = repairs.rewrite if finding.kind is FindingKind.ROW_DAMAGED else repairs.reindex
            try:
                yield RepairOutcome(finding, True, act(finding))
            except CachetierError as error:
                yield RepairOutcome(finding, False, error.message)
            except (LeftError, OSError) as error:
                yield RepairOutcome(finding, False, str(error))


class _RowRepairs:
    def __init__(
        self, view: CatalogView, catalog: Committer, files: DiskFiles, durable: Bucket | None
    ) -> None:
        self._view = view
        self._catalog = catalog
        self._files = files
        self._durable = durable

    def reindex(self, _finding: Finding) -> str:
        self._catalog.run(shards.reindex)
        accounted, walked = self._view.read(check_queries.accounts)
        if self._view.read(check_queries.complaints) or accounted != walked:
            raise LeftError("the tables themselves are damaged: read docs/recovery.md")
        return "the indexes are made again, and agree with the tables"

    def rewrite(self, finding: Finding) -> str:
        """Write a row again, as its bytes or the documents of its step say what it was."""
        save = self._view.read(saves.save_by_number, finding.number)
        row = self._view.read(check_queries.damaged_row, finding.version)
        if save is None or row is None:
            raise LeftError("it has been removed in the meantime: look again")
        content = self._content(finding, row)
        right = (
            self._by_its_mark(finding, save, content)
            or _by_its_digest(save, row, content)
            or self._by_its_part(save, row, content)
        )
        if right is None:
            asked = "" if self._durable is not None else " without --local, or else"
            raise LeftError(f"the record of what it was is lost: repair{asked} save the step again")
        taken = self._view.read(check_queries.names_of, save.number)
        if right.name != row.name and right.name in taken:
            raise LeftError(f"it was {right.name}, as another row says it is: save the step again")
        self._catalog.run(shards.rewrite, finding.version, save.save_id, right)
        return "its row is unchanged"

    def _content(self, finding: Finding, row: DamagedRow) -> Content | None:
        """Describe the bytes here, if there are any, whatever they are."""
        if finding.file_id is None:
            body = row.body
            if body is None:
                return None
            return content_of(len(body), lambda at: body[at : at + BLOCK_BYTES])
        try:
            descriptor = self._files.open(finding.file_id)
        except FileNotFoundError:
            return None
        try:
            size_bytes = os.fstat(descriptor).st_size
            return content_of(size_bytes, lambda at: os.pread(descriptor, BLOCK_BYTES, at))
        finally:
            os.close(descriptor)

    def _by_its_mark(
        self, finding: Finding, save: Save, content: Content | None
    ) -> NewShard | None:
        """Return what the data file says of itself, if its bytes are that."""
        if finding.file_id is None or content is None:
            return None
        identity = Identity.parsed(self._files.identity(finding.file_id))
        if identity is None:
            return None
        ids = identity.ids
        same = (identity.size_bytes, identity.digest) == (content.size_bytes, content.digest)
        if not same or (ids.run, ids.step, ids.save_id) != (save.run, save.step, save.save_id):
            return None
        return NewShard(identity.name, ids.rank, content, facts=identity.facts)

    def _by_its_part(self, save: Save, row: DamagedRow, content: Content | None) -> NewShard | None:
        """Return what the documents in the bucket say: by its name, else by its bytes."""
        if self._durable is None or save.location is None:
            return None
        entries = list(self._entries(self._durable, save, save.location, row.rank))
        for entry in entries:
            if entry.name == row.name:
                return _described(entry, entry.content())
        if content is None:
            return None
        taken = self._view.read(check_queries.names_of, save.number)
        which = content.size_bytes, to_hex(content.digest)
        untaken = [entry for entry in entries if entry.name not in taken]
        like = [entry for entry in untaken if (entry.size_bytes, entry.digest) == which]
        return _described(like[0], content) if len(like) == 1 else None

    def _entries(
        self, durable: Bucket, save: Save, location: str, rank: int
    ) -> Iterator[ShardEntry]:
        parts = self._view.read(saves.parts_of, save.number)
        for each in sorted({rank, *(part.rank for part in parts)}):
            try:
                part = durable.part(save.run, location, each)
            except IntegrityError:
                continue  # told by itself, if it is a problem
            if (part.step, part.save_id) == (save.step, save.save_id):
                yield from part.shards


def _by_its_digest(save: Save, row: DamagedRow, content: Content | None) -> NewShard | None:
    """Return what the row's own digest proves of the bytes: their description was damaged."""
    if content is None:
        return None
    proven = rows.row_digest(save.save_id, row.name, row.rank, content, row.facts)
    if proven != row.row_digest:
        return None
    return NewShard(row.name, row.rank, content, facts=row.facts)


def _described(entry: ShardEntry, content: Content) -> NewShard:
    return NewShard(entry.name, entry.rank, content, facts=entry.known_facts())
