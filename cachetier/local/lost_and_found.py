"""Data files that were set aside: marked as committed once, and named by no row.

Start-up moves them out of the way and keeps them, as the catalog might be what is wrong. What a
file says of itself, and what the catalog knows, tells which are still of use to anybody: those that
are not go after a day, the others after ``KEPT_SECONDS``, in which ``fsck --adopt`` takes them.
They count as used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
from cachetier_client.bucket_format.stored import ShardFacts
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CachetierError
from cachetier.local.catalog import parts, saves, shards
from cachetier.local.files.data_files import FILE_ID, identity_of
from cachetier.local.identity import ObjectIdentity
from cachetier.model.lifecycle import OPEN_SAVES, ShardState

KEPT_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The label of a found data file; ``world_size`` is 0 where it does not say."""

    store_id: str
    ids: SaveIds
    name: str
    size_bytes: int
    digest: int
    world_size: int
    facts: ShardFacts

    @classmethod
    def parsed(cls, text: bytes | None) -> Identity | None:
        """Read an identity; None where there is none, or it is not what this store writes."""
        try:
            found = json.loads(text or b"")
            world_size = int(found.get("world_size", 0))
            rank = int(found["rank"])
            ids = SaveIds(
                str(found["run"]),
                int(found["step"]),
                str(found["save"]),
                rank,
                max(world_size, rank + 1),
            )
            size_bytes, digest = int(found["size_bytes"]), int(found["digest"], 16)
            which = str(found["store"]), ids, found["name"], size_bytes, digest
            return cls(*which, world_size, ShardFacts.of_fields(found.get("facts", {})))
        except (ValueError, KeyError, TypeError, AttributeError, CachetierError):
            return None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A file in ``lost+found``: when its bytes were written, and since when it is there (UTC)."""

    file_id: str
    size_bytes: int
    written_at: float
    since: float
    identity: Identity | None
    piece: ObjectIdentity | None = None  # of an object of the S3 door


class LostAndFound:
    """The folder ``<cache_dir>/lost+found``."""

    def __init__(self, cache_dir: Path) -> None:
        self._folder = cache_dir / "lost+found"

    def all(self) -> Iterator[SetAside]:
        """Yield every file in it."""
        try:
            entries = sorted(os.scandir(self._folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for entry in entries:
            if FILE_ID.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                mark = identity_of(Path(entry.path))
                identity, piece = Identity.parsed(mark), ObjectIdentity.parsed(mark)
                times = status.st_mtime, status.st_ctime
                yield SetAside(entry.name, status.st_size, *times, identity, piece)

    def size_bytes(self) -> int:
        """Return what it takes of the node's disk."""
        return sum(file.size_bytes for file in self.all())

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def take_back(self, file_id: str) -> None:
        """Move a file among the data files again; its name is not synced yet."""
        os.replace(self.path(file_id), self._folder.parent / "data" / file_id[:2] / file_id)

    def remove(self, file_id: str) -> None:
        """Remove a file; a missing one is no error."""
        self.path(file_id).unlink(missing_ok=True)


def superfluous_because(
    sql: apsw.Connection, identity: Identity | None, written_at: float = 0.0
) -> str | None:
    """Return why nobody needs a file that says it holds ``identity``; None if somebody might.

    Bytes that were ``written_at`` after those of the row may be what replaced these.
    """
    if identity is None:
        return None
    ids = identity.ids
    save = saves.save_named(sql, ids.run, ids.step, ids.save_id)
    if save is None:
        return None
    row = shards.shard_named(sql, save.number, identity.name)
    if row is None and save.state not in OPEN_SAVES:
        return f"its save is {save.state}, without it"
    if row is not None:
        wanted = (row.content.size_bytes, row.content.digest)
        if wanted != (identity.size_bytes, identity.digest):
            newer = written_at > row.committed_at
            return None if newer else "other bytes were put under its name since"
        return None if row.state is ShardState.QUARANTINED else "the catalog has the shard"
    if parts.is_final(sql, save.number, ids.rank):
        return "its rank sealed without it"
    return None
