"""Compare the data files of a node with the rows of its catalog, and repair bytes on it.

Beside a running service files and rows change while they are looked at. So whatever seems wrong is
looked at again before it is told, and what a put in progress leaves is passed over.

Repairing takes damaged bytes out of use, and fetches them again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from cachetier_client.clock import Clock
from cachetier_client.units import shown_size

from cachetier.errors import CachetierError, IntegrityError, NotFoundError, RemoteError
from cachetier.fsck.adopt_files import FileReclaimer
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, FsckReport, LeftError, Repair
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.local.catalog import shards
from cachetier.local.files.data_files import DiskFiles
from cachetier.local.identity import ObjectIdentity
from cachetier.local.local_copy import LocalCopy
from cachetier.local.lost_and_found import Identity, LostAndFound, superfluous_because
from cachetier.local.repair import check_queries
from cachetier.local.repair.check_queries import PAGE_ROWS, CheckedRow
from cachetier.local.repair.open_catalog import CatalogView
from cachetier.local.store import Store
from cachetier.model.lifecycle import DURABLE_SAVES, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.restore.restore import Restore, local_damage

SETTLE_SECONDS = 1.0  # so long a commit may have its file and not yet its row
FETCH_SECONDS = 600.0
NO_COPY = "no sound copy is left. Save the step again, or restore another one"
FETCH_AGAIN = "take its bytes here out of use, and fetch them again"
AT_START = {  # opening the store does these: start-up is recovery
    FindingKind.FILE_UNMARKED: "remove it",
    FindingKind.FILE_ORPHAN: "set it aside, in lost+found",
    FindingKind.FILE_MISSING: FETCH_AGAIN,
    FindingKind.FILE_SIZE: FETCH_AGAIN,
}
Sleep = Callable[[float], object]


class LocalChecks:
    """Yields what is wrong on this node. Memory grows by some 80 bytes for each data file."""

    def __init__(
        self,
        view: CatalogView,
        cache_dir: Path,
        report: FsckReport,
        *,
        data: bool,
        run: str | None = None,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Checks of a node; ``data`` reads every byte, ``run`` is the only run looked at."""
        self._view = view
        self._files = DiskFiles(cache_dir)
        self._lost = LostAndFound(cache_dir)
        self._report = report
        self._data = data
        self._run = run
        self._sleep = sleep

    def all(self) -> Iterator[Finding]:
        """Yield everything, the catalog first."""
        yield from self._catalog()
        named: set[bytes] = set()
        for row in self.rows():
            if row.file_id is not None:
                named.add(bytes.fromhex(row.file_id))
            yield from self._row(row)
        if self._run is None:
            yield from self._strays(named)
            yield from self._set_aside()

    def rows(self) -> Iterator[CheckedRow]:
        """Yield every row, page by page, so that no read holds up who writes."""
        after = 0
        while True:
            page = self._view.read(check_queries.checked_rows, after, PAGE_ROWS, self._run)
            yield from page
            if len(page) < PAGE_ROWS:
                return
            after = page[-1].version

    # --- the catalog itself ----------------------------------------------------------------------

    def _catalog(self) -> Iterator[Finding]:
        for complaint in self._view.read(check_queries.complaints):
            yield Finding(FindingKind.CATALOG_DAMAGED, f"SQLite says of the catalog: {complaint}")
        accounted, walked = self._view.read(check_queries.accounts)
        self._report.due_bytes = walked
        if accounted != walked and not self._report.online:
            yield Finding(
                FindingKind.ACCOUNTING,
                f"{shown_size(accounted)} are accounted, the rows add up to {shown_size(walked)}",
            )

    # --- rows ------------------------------------------------------------------------------------

    def _row(self, row: CheckedRow) -> Iterator[Finding]:
        self._report.shards += 1
        shard = row.shard
        if shard is None:
            yield _finding(FindingKind.ROW_DAMAGED, row, "its row fails its own digest")
            return
        if shard.here:
            self._report.size_bytes += shard.content.size_bytes
        for found in self._wrong(row, shard):
            if self._is_still(row):
                yield found

    def _wrong(self, row: CheckedRow, shard: Shard) -> Iterator[Finding]:
        """Yield what is wrong with what a row says of remotes, then with its bytes here."""
        for message in doubtful_copies(row, shard).values():
            yield _finding(FindingKind.ROW_CONTRADICTS, row, message)
        contradiction = _contradiction(row, shard)
        if contradiction is not None:
            yield _finding(FindingKind.ROW_CONTRADICTS, row, contradiction)
            return
        found = self._wrong_bytes(row, shard)
        if found is not None:
            yield found

    def _wrong_bytes(self, row: CheckedRow, shard: Shard) -> Finding | None:
        if shard.state is ShardState.QUARANTINED:
            copies_at = f", copies at {', '.join(row.remotes)}" if row.remotes else ""
            return _finding(FindingKind.QUARANTINED, row, f"its bytes here are damaged{copies_at}")
        found = self._wrong_file(row, shard) if shard.file_id is not None else None
        if found is not None or not self._data or shard.state is ShardState.EVICTED:
            return found
        self._report.checked_bytes += shard.content.size_bytes
        sound = self._reads_right(shard)
        return (
            None
            if sound
            else _finding(FindingKind.BYTES_DAMAGED, row, "its bytes fail their digest")
        )

    def _wrong_file(self, row: CheckedRow, shard: Shard) -> Finding | None:
        assert shard.file_id is not None
        try:
            descriptor = self._files.open(shard.file_id)
        except FileNotFoundError:
            return _finding(FindingKind.FILE_MISSING, row, "its data file is missing")
        try:
            size_bytes = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size_bytes == shard.content.size_bytes:
            return None
        message = f"its data file has {size_bytes} bytes, not {shard.content.size_bytes}"
        return _finding(FindingKind.FILE_SIZE, row, message)

    def _reads_right(self, shard: Shard) -> bool:
        body = descriptor = None
        if shard.inline:
            body = self._view.read(shards.body_of, shard.version)
            if body is None:
                return False
        else:
            assert shard.file_id is not None
            try:
                descriptor = self._files.open(shard.file_id)
            except FileNotFoundError:
                return False
        copy = LocalCopy(shard, descriptor, body)
        try:
            return copy.reads_right()
        finally:
            copy.close()

    def _is_still(self, row: CheckedRow) -> bool:
        """Return whether the row is as it was: the service may have evicted or replaced it."""
        if not self._report.online:
            return True
        now = self._view.read(check_queries.checked_row, row.version)
        return now is not None and (now.file_id, now.shard) == (row.file_id, row.shard)

    # --- files without a row ---------------------------------------------------------------------

    def _strays(self, named: set[bytes]) -> Iterator[Finding]:
        strays = [
            (file_id, size_bytes)
            for file_id, size_bytes in self._files.all()
            if bytes.fromhex(file_id) not in named
        ]
        if strays and self._report.online:
            self._sleep(SETTLE_SECONDS)
            strays = [stray for stray in strays if self._is_stray(stray[0])]
        for file_id, size_bytes in strays:
            yield self._stray(file_id, size_bytes)

    def _is_stray(self, file_id: str) -> bool:
        """Return whether a file is marked as committed, and still there, and still without row."""
        marked = self._files.identity(file_id) is not None
        return marked and not self._view.read(check_queries.has_file, file_id)

    def _stray(self, file_id: str, size_bytes: int) -> Finding:
        marked = self._files.identity(file_id)
        size = shown_size(size_bytes)
        if marked is None:
            message = f"a put that was never acknowledged left {size}"
            return Finding(FindingKind.FILE_UNMARKED, message, file_id=file_id)
        kind, piece = FindingKind.FILE_ORPHAN, ObjectIdentity.parsed(marked)
        if piece is not None:
            return _lost_piece(kind, file_id, size, piece)
        return self._orphan(kind, file_id, size, Identity.parsed(marked))

    def _set_aside(self) -> Iterator[Finding]:
        for file in self._lost.all():
            size, kind = shown_size(file.size_bytes), FindingKind.FILE_SET_ASIDE
            if file.piece is not None:
                yield _lost_piece(kind, file.file_id, size, file.piece)
            else:
                yield self._orphan(kind, file.file_id, size, file.identity)

    def _orphan(
        self, kind: FindingKind, file_id: str, size: str, identity: Identity | None
    ) -> Finding:
        message = f"{size} without a readable label"
        if identity is not None:
            why = self._view.read(superfluous_because, identity)
            message = f"{size} without a row: {why or 'perhaps a shard that the catalog lost'}"
        return Finding.of_file(kind, message, file_id, identity)


def _lost_piece(kind: FindingKind, file_id: str, size: str, piece: ObjectIdentity) -> Finding:
    message = f"{size} without a row: perhaps of an object that the catalog lost"
    return Finding(kind, message, piece.run, key=piece.key, file_id=file_id)


def _contradiction(row: CheckedRow, shard: Shard) -> str | None:
    """Return what a row says that cannot be, or None."""
    if shard.state is ShardState.EVICTED and shard.here:
        return "it is evicted, and its row names bytes here"
    if shard.state in (ShardState.DIRTY, ShardState.CLEAN) and not shard.here:
        return f"it is {shard.state}, and its row names no bytes here"
    if shard.inline and row.body_bytes != shard.content.size_bytes:
        return "its bytes are not in the catalog"
    return None


def doubtful_copies(row: CheckedRow, shard: Shard) -> dict[str, str]:
    """Return the remotes of which a row says what cannot be, each with what that is."""
    published = row.save_state in DURABLE_SAVES
    found = {
        remote: f"the record of how {remote} stores it cannot be read any more"
        for remote in row.unreadable
    }
    if shard.state in (ShardState.CLEAN, ShardState.EVICTED) and not row.remotes:
        found[DURABLE] = f"it is {shard.state}, and no remote was ever verified"
    if row.settled:
        found[DURABLE] = "it is dirty, although every remote that it waits for has it"
    elif shard.state is ShardState.DIRTY and DURABLE not in row.remotes and published:
        found[DURABLE] = "it is dirty, and its step is published: nothing would ever send it"
    return found


def _finding(kind: FindingKind, row: CheckedRow, message: str) -> Finding:
    rank = row.shard.rank if row.shard is not None else None
    return Finding(
        kind,
        message,
        row.run,
        row.step,
        row.name,
        file_id=row.file_id,
        version=row.version,
        number=row.number,
        rank=rank,
    )


# --- repairs -----------------------------------------------------------------------------------


class LocalRepairs:
    """Mends local bytes of one store; damaged ones go only when a remote says that it has others.

    Every method takes a shard as it is now, and raises LeftError where it cannot do what it says.
    """

    def __init__(
        self,
        store: Store,
        lookup: CatalogLookup,
        remote_index: RemoteIndex,
        reclaimer: FileReclaimer,
        restore: Restore | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._reclaimer = reclaimer
        self._lookup = lookup
        self._remote_index = remote_index
        self._restore = restore
        self._clock = clock
        self.repairs: Mapping[FindingKind, Repair] = {
            **dict.fromkeys(AT_START, Repair("", self._started)),
            FindingKind.BYTES_DAMAGED: Repair(
                FETCH_AGAIN, lambda of: self.take_out_of_use(self._lookup.shard(of.version))
            ),
            FindingKind.QUARANTINED: Repair(
                "fetch its bytes from a remote that has them",
                lambda of: self.fetch(self._lookup.shard(of.version)),
            ),
        }

    def take_out_of_use(self, shard: Shard) -> str:
        """Replace damaged bytes by those of a remote; without any, keep them in quarantine."""
        self._quarantine_or_drop(shard)
        return self.fetch(self._lookup.shard(shard.version))

    def fetch(self, shard: Shard) -> str:
        """Bring back what has no sound bytes here; what is clean need not be here."""
        if shard.state in (ShardState.DIRTY, ShardState.CLEAN):
            return f"its bytes are here again, {shard.state}"
        if shard.state is ShardState.QUARANTINED and self._reads_right(shard):
            self._store.write(shards.reinstate, shard.version)
            state = self._lookup.shard(shard.version).state
            return f"its bytes here are sound after all: it is {state}"
        if shard.state is ShardState.QUARANTINED and self._reclaimer.reclaim(shard):
            return f"its file was in lost+found: it is {self._lookup.shard(shard.version).state}"
        why = self._not_fetched(shard)
        if why is None:
            return f"fetched: it is {self._lookup.shard(shard.version).state}"
        if shard.state is ShardState.QUARANTINED:
            raise LeftError(f"its bytes are kept in quarantine: {why}")
        if why == NO_COPY:
            raise LeftError(why)
        return "it is evicted: readers get it from the remote"

    def made_sound(self, shard: Shard) -> Shard:
        """Return the shard with sound bytes here, from another remote if need be."""
        if self.is_sound(shard):
            return shard
        if shard.state is not ShardState.EVICTED:
            self.take_out_of_use(shard)
        elif (why := self._not_fetched(shard)) is not None:
            raise LeftError(why)
        shard = self._lookup.shard(shard.version)
        if not self.is_sound(shard):
            raise LeftError("its bytes could not be fetched: repair again once remotes answer")
        return shard

    def are_there(self, shard: Shard) -> bool:
        """Return whether the bytes that the row names inside the catalog, if it does, are there."""
        if not shard.inline:
            return True
        return self._store.read(shards.body_of, shard.version) is not None

    def is_elsewhere(self, shard: Shard) -> bool:
        """Return whether a remote says that it has a clean shard now."""
        if self._restore is None:
            return False
        try:
            return self._restore.sources.still_there(shard)
        except RemoteError:
            return False

    def _started(self, finding: Finding) -> str:
        """Start-up has dealt with it already."""
        if not finding.version:
            return "removed" if finding.kind is FindingKind.FILE_UNMARKED else "moved to lost+found"
        return self.fetch(self._lookup.shard(finding.version))

    def _quarantine_or_drop(self, shard: Shard) -> None:
        incident, now = local_damage(shard), self._clock.now()
        if shard.state is ShardState.CLEAN and not self.is_elsewhere(shard):
            self._store.write(shards.quarantine, shard.version, incident, now)
            return
        before = self._store.write(shards.record_damage, shard.version, incident, now)
        if before.state in (ShardState.CLEAN, ShardState.EVICTED):
            self._store.drop([before])

    def _not_fetched(self, shard: Shard) -> str | None:
        """Fetch a shard from a remote; return why that is not possible, None if it was."""
        if self._restore is None:
            return "no remote was asked; leave out --local"
        try:
            self._learn_if_forgotten(shard)
            self._restore.bring_back(shard, FETCH_SECONDS)
        except (IntegrityError, NotFoundError):
            return NO_COPY
        except CachetierError as error:
            return f"not now: {error.message}"
        return None

    def _learn_if_forgotten(self, shard: Shard) -> None:
        """Ask the remotes how they store a shard, where the catalog lost that."""
        row = self._lookup.row(shard.version)
        for remote in row.unreadable or (() if row.remotes else (DURABLE,)):
            save = self._lookup.save_of(shard)
            self._remote_index.learn(shard, save, self._lookup.remote(remote))

    def is_sound(self, shard: Shard) -> bool:
        """Return whether the bytes of a shard are here, and have their digest."""
        return shard.state is not ShardState.QUARANTINED and self._reads_right(shard)

    def _reads_right(self, shard: Shard) -> bool:
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            return False
        if copy is None:
            return False
        try:
            return copy.reads_right()
        finally:
            copy.close()
