"""Repair the objects of mounts; nothing that may be the only copy of bytes goes.

What its bucket lost is dirty again, and the drain brings it there in its turn. A row that cannot be
trusted makes way, as the drain of its mount would wait for it for ever: its files go to
``lost+found``, where their own marks say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cachetier.errors import NotFoundError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, LeftError
from cachetier.fsck.local_repairs import LocalRepairs
from cachetier.local.catalog import objects, shards
from cachetier.local.repair import object_queries
from cachetier.local.store import Store
from cachetier.model.lifecycle import ShardState
from cachetier.model.objects import ObjectVersion
from cachetier.model.shard import Shard
from cachetier.remote.mounted import MountBuckets

ADOPT = "its files are in lost+found: --adopt takes them back by what they say of themselves"


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
        self.acts: Mapping[FindingKind, Callable[[Finding], str]] = {
            FindingKind.OBJECT_MISSING: self._send_again,
            FindingKind.OBJECT_DIFFERS: self._send_again,
            FindingKind.OBJECT_ROW_DAMAGED: self._make_way,
            FindingKind.PIECES_MISSING: self._make_way,
            FindingKind.PIECE_UNNAMED: self._set_piece_aside,
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
