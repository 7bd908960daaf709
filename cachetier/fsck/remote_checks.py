"""Compare the catalog with a remote: objects, part documents, manifests, leftovers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    manifest_of,
)
from cachetier_client.bucket_format.layout import SPREAD_MARK, is_pending
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import SAVE_KEY, ObjectInfo, is_object_of
from cachetier_client.identity.names import RESERVED_SEGMENT

from cachetier.errors import IntegrityError, RemoteError, RemoteRefusedError
from cachetier.fsck.catalog_lookup import SavesAt
from cachetier.fsck.findings import Finding, FindingKind, FsckReport
from cachetier.fsck.remote_index import gone, is_same
from cachetier.local.catalog import saves, uploads
from cachetier.local.repair import check_queries
from cachetier.local.repair.check_queries import PAGE_ROWS
from cachetier.local.repair.open_catalog import CatalogView
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import OPEN_SAVES, SaveState
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Remote

AT_ONCE = 16


class RemoteChecks:
    """Yields what is wrong at one remote. Asks for each object once, a page of rows at a time."""

    def __init__(
        self, view: CatalogView, remote: Remote, report: FsckReport, *, run: str | None = None
    ) -> None:
        self._view = view
        self._remote = remote
        self._bucket = remote.bucket
        self._saves = SavesAt(view, remote.name)
        self._report = report
        self._run = run
        self._seen_packs: set[str] = set()
        self._rows_in_doubt: set[int] = set()  # rows that are wrong about their objects

    def all(self) -> Iterator[Finding]:
        """Yield everything.

        Raises:
            RemoteError: The remote cannot be asked.
        """
        self._bucket.objects.check()  # a bucket that is gone looks like one without objects
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fsck") as threads:
            self._threads = threads
            for run in [self._run] if self._run else self._view.read(saves.runs):
                for save in self._view.read(saves.saves_of_run, run):
                    yield from self._save(save)
                yield from self._uploads(run)

    # --- saves -----------------------------------------------------------------------------------

    def _save(self, save: Save) -> Iterator[Finding]:
        location = self._saves.location(save)
        if location is None:
            if self._is_published(save):
                message = "it is published, and its row does not say where"
                yield self._of(FindingKind.ROW_CONTRADICTS, save, message)
            return
        if self._is_published(save):
            yield from self._published(save, location)
        elif self._saves.is_open(save):
            wrong, _ = self._manifest(save)
            if wrong is not None and wrong.kind is FindingKind.MANIFEST_DAMAGED:
                yield wrong  # the drain waits for a sound one
            yield from self._own_parts(save, location)
            yield from self._rows(save, location, set())
        else:  # nobody reads it any more, and nobody misses its objects
            yield from self._claim(save)

    def _is_published(self, save: Save) -> bool:
        return save.state is not SaveState.DELETED and self._saves.is_published(save)

    # --- documents -------------------------------------------------------------------------------

    def _published(self, save: Save, location: str) -> Iterator[Finding]:
        """Look at the documents and the objects of a published save."""
        known: set[str] = set()
        wrong, manifest = self._manifest(save)
        if wrong is not None:
            yield wrong
        if manifest is not None:
            yield from self._parts(save, location, manifest, known)
        if wrong is None or wrong.kind in (
            FindingKind.MANIFEST_MISSING,
            FindingKind.MANIFEST_DAMAGED,
        ):
            yield from self._rows(save, location, known)
        if manifest is not None:
            yield from self._unnamed(save, location, known)

    def _manifest(self, save: Save) -> tuple[Finding | None, Manifest | None]:
        """Return what is wrong with the manifest of a published save, or the manifest."""
        try:
            seen = self._bucket.manifest(save.run, save.step)
        except IntegrityError as error:
            return self._of(FindingKind.MANIFEST_DAMAGED, save, error.message), None
        manifest = manifest_of(seen)
        wrong = _wrong_manifest(save, manifest)
        if wrong is None:
            return None, manifest
        kind, message = wrong
        if kind is FindingKind.GONE_ELSEWHERE and self._remote.name == DURABLE:
            kind = FindingKind.STEP_ENDED
        return self._of(kind, save, message), None

    def _parts(
        self, save: Save, location: str, manifest: Manifest, known: set[str]
    ) -> Iterator[Finding]:
        """Look at the parts of a published save, and the objects of other nodes in it."""
        layout = self._bucket.layout
        for part in manifest.parts:
            known.add(layout.part_key(save.run, location, part.rank))
            try:
                found = self._bucket.part(save.run, location, part.rank, part.digest)
            except IntegrityError as error:
                yield self._of(FindingKind.PART_DAMAGED, save, error.message, rank=part.rank)
            else:
                yield from self._otherwise(save, found)
        yield from self._elsewhere(save, location, manifest, known)

    def _otherwise(self, save: Save, part: PartDocument) -> Iterator[Finding]:
        """Look for rows that differ from the part in how a remote stores a shard."""
        remote = self._remote.name
        for entry in part.shards:
            row = self._view.read(check_queries.row_named, save.number, entry.name, remote)
            if row is None:
                continue  # another node's, or told already
            shard, stored = row
            if stored != entry.stored() or not is_same(shard, entry):
                self._rows_in_doubt.add(shard.version)
                message = "the catalog and the step disagree on what its object is"
                wrong = self._of(
                    FindingKind.ROW_CONTRADICTS, save, message, name=entry.name, rank=entry.rank
                )
                yield replace(wrong, version=shard.version)

    def _own_parts(self, save: Save, location: str) -> Iterator[Finding]:
        """Look at the parts that this node wrote of a save that is not published yet."""
        for part in self._saves.parts(save):
            if not part.uploaded:
                continue
            try:
                found = self._bucket.part(save.run, location, part.rank)
            except IntegrityError as error:
                message = error.message
            else:
                if (found.step, found.save_id) == (save.step, save.save_id):
                    continue
                message = f"the part of rank {part.rank} is one of save {found.save_id}"
            now = self._view.read(saves.save_by_number, save.number)
            if now is not None and now.state in OPEN_SAVES:
                yield self._of(FindingKind.PART_DAMAGED, save, message, rank=part.rank)

    def _elsewhere(
        self, save: Save, location: str, manifest: Manifest, known: set[str]
    ) -> Iterator[Finding]:
        """Look for the objects of shards that other nodes put."""
        here = self._view.read(check_queries.names_of, save.number)
        wanted: dict[str, tuple[Finding, Stored, int]] = {}
        for entry in manifest.shards:
            key = self._bucket.layout.object_key(save.run, location, entry.name, entry.pack_name)
            known.add(key)
            if entry.name not in here:
                stored = entry.stored()
                blank = self._of(
                    FindingKind.OBJECT_MISSING, save, "", name=entry.name, rank=entry.rank, key=key
                )
                wanted[key] = blank, stored, int(entry.digest, 16)
        yield from self._objects(save, wanted)

    def _claim(self, save: Save) -> Iterator[Finding]:
        """Look whether a save that has ended still claims its step."""
        try:
            seen = self._bucket.manifest(save.run, save.step)
        except IntegrityError:
            return  # told for the save that is published
        if seen is None or seen.manifest.save_id != save.save_id:
            return
        if seen.manifest.state is ManifestState.CLAIMED:
            message = f"save {save.save_id}, which is {save.state}, still claims the step"
            yield self._of(FindingKind.CLAIM_STALE, save, message)

    # --- objects ---------------------------------------------------------------------------------

    def _rows(self, save: Save, location: str, known: set[str]) -> Iterator[Finding]:
        after = 0
        while True:
            page = self._view.read(
                check_queries.rows_of_save, save.number, after, self._remote.name
            )
            wanted: dict[str, tuple[Finding, Stored, int]] = {}
            for row, stored in page:
                shard = row.shard
                if shard is None or stored is None or row.version in self._rows_in_doubt:
                    continue
                key = self._bucket.layout.object_key(save.run, location, row.name, stored.pack_name)
                known.add(key)
                blank = self._of(
                    FindingKind.OBJECT_MISSING, save, "", name=row.name, key=key, rank=shard.rank
                )
                blank = replace(blank, version=row.version, file_id=row.file_id)
                wanted.setdefault(key, (blank, stored, shard.content.digest))
            yield from self._objects(save, wanted)
            if len(page) < PAGE_ROWS:
                return
            after = page[-1][0].version

    def _objects(
        self, save: Save, wanted: dict[str, tuple[Finding, Stored, int]]
    ) -> Iterator[Finding]:
        keys = [key for key in wanted if key not in self._seen_packs]
        looks = self._threads.map(lambda key: self._bucket.look(save.run, save.step, key), keys)
        for key, seen in zip(keys, looks, strict=True):
            self._report.objects += 1
            blank, stored, digest = wanted[key]
            if stored.pack is not None:
                self._seen_packs.add(key)
            kind, message = _object_problem(save, seen, stored, digest)
            if kind is not None and self._is_still(blank):
                ours = any(part.rank == blank.rank for part in self._saves.parts(save))
                whose = "" if ours else "; another node put it"
                yield replace(blank, kind=kind, message=f"{blank.message}{message}{whose}")

    def _is_still(self, finding: Finding) -> bool:
        """Return whether a row still says that the remote has the shard."""
        if not self._report.online or not finding.version:
            return True
        now = self._view.read(check_queries.checked_row, finding.version)
        return now is not None and self._remote.name in now.remotes

    def _unnamed(self, save: Save, location: str, known: set[str]) -> Iterator[Finding]:
        """Look for objects beside those of a published save."""
        layout = self._bucket.layout
        known.add(layout.manifest_key(save.run, save.step))
        for prefix in layout.prefixes(save.run, location):
            for key in self._bucket.objects.list(prefix).keys:
                if key in known or is_pending(key):
                    continue
                seen = self._bucket.look(save.run, save.step, key)
                if seen is not None:
                    yield self._stray(save, key, seen)

    def _stray(self, save: Save, key: str, seen: ObjectInfo | RemoteRefusedError) -> Finding:
        if isinstance(seen, RemoteRefusedError):
            message = f"{key} is left alone: the bucket does not show it: {seen.message}"
            return self._of(FindingKind.OBJECT_NOT_OURS, save, message, key=key)
        if seen.metadata.get(SAVE_KEY) == save.save_id or f"/{RESERVED_SEGMENT}/" in key:
            message = f"the save does not name the object {key}"
            return self._of(FindingKind.OBJECT_UNNAMED, save, message, key=key)
        message = f"{key} is not cachetier's; it is left alone"
        return self._of(FindingKind.OBJECT_NOT_OURS, save, message, key=key)

    def _uploads(self, run: str) -> Iterator[Finding]:
        """Look for multipart uploads of shards here whose saves take no more."""
        ended = self._view.read(uploads.ended_locations, run, self._remote.name)
        spread = any(location.endswith(SPREAD_MARK) for location in ended)
        layout = self._bucket.layout
        for prefix in layout.upload_prefixes(run, spread=spread) if ended else ():
            try:
                found = list(self._bucket.objects.list_uploads(prefix))
            except RemoteError as error:
                self._report.unanswered.append(f"uploads at {self._remote.name}: {error.message}")
                return
            for key, upload_id in found:
                save = self._view.read(uploads.save_of_upload, ended, key, prefix)
                if save is not None:
                    message = f"an upload of {key} was never finished"
                    yield self._of(
                        FindingKind.UPLOAD_STALE, save, message, key=key, file_id=upload_id
                    )

    def _of(
        self,
        kind: FindingKind,
        save: Save,
        message: str,
        *,
        name: str | None = None,
        key: str | None = None,
        file_id: str | None = None,
        rank: int | None = None,
    ) -> Finding:
        remote, text = self._remote.name, f"at {self._remote.name}: {message}"
        return Finding(
            kind, text, save.run, save.step, name, remote, key, file_id, 0, save.number, rank
        )


# --- what it means -------------------------------------------------------------------------------


def _wrong_manifest(save: Save, manifest: Manifest | None) -> tuple[FindingKind, str] | None:
    """Say what is wrong with the manifest of a save that was published, if anything is."""
    if manifest is None:
        return FindingKind.MANIFEST_MISSING, "the manifest of the published step is missing"
    if manifest.state is ManifestState.DELETED:
        return FindingKind.GONE_ELSEWHERE, f"another node has deleted the step: {gone(save)}"
    if manifest.save_id == save.save_id and manifest.state is ManifestState.PUBLISHED:
        return None
    if manifest.state is ManifestState.PUBLISHED:
        replaced = f"save {manifest.save_id} has replaced it since"
        return FindingKind.GONE_ELSEWHERE, f"{replaced}: {gone(save)}"
    message = f"the step was published, and is only claimed now, by save {manifest.save_id}"
    return FindingKind.MANIFEST_MISSING, message


def _object_problem(
    save: Save, seen: ObjectInfo | RemoteRefusedError | None, stored: Stored, digest: int
) -> tuple[FindingKind | None, str]:
    """Say what is wrong with an object that a remote was verified to hold."""
    if isinstance(seen, RemoteRefusedError):
        return (
            FindingKind.OBJECT_FOREIGN,
            f"the bucket does not show its object: {seen.message}",
        )
    if seen is None:
        what = "its object" if stored.pack is None else "the pack that holds it"
        return FindingKind.OBJECT_MISSING, f"{what} is missing"
    if is_object_of(seen, save.save_id, digest, stored):
        return None, ""
    if seen.metadata.get(SAVE_KEY) != save.save_id:
        return FindingKind.OBJECT_FOREIGN, f"somebody else's object is in its place: {seen.key}"
    expected = stored.pack or stored
    return FindingKind.OBJECT_DIFFERS, (
        f"its object has {seen.size_bytes} bytes and digest {_shown(seen.digest)}, "
        f"not {expected.size_bytes} and {_shown(expected.digest)}"
    )


def _shown(digest: int | None) -> str:
    return "unknown" if digest is None else f"{digest:016x}"
