"""Reads of the objects of the S3 door: versions of keys, and their pieces.

Keys are compared byte by byte, as S3 lists them: the order of code points is that of UTF-8.
"""

from __future__ import annotations

import apsw
from cachetier_client.io import digests

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import queries, rows
from cachetier.local.catalog.rows import Row
from cachetier.model.objects import LAST_CODE_POINT, Head, ObjectState, ObjectVersion
from cachetier.model.shard import Shard

_COLUMNS = (
    "objects.version, objects.save, saves.run, objects.key, objects.deleted, objects.size_bytes, "
    "objects.digest, objects.etag, objects.head, objects.part_sizes, objects.committed_at, "
    "objects.follows, objects.state, objects.base, objects.remote_etag, objects.epoch, "
    "objects.waits, objects.acknowledged_at, objects.conditional, objects.stamped, "
    "objects.request, objects.row_digest"
)
# A conflict holds back what came after it under its key, and nothing else. (The first condition is
# for the index.)
TO_SHOW = (
    "objects.state <> 'clean' AND objects.state = 'dirty' AND objects.key NOT IN "
    "(SELECT key FROM objects AS held WHERE held.save = objects.save AND held.state = 'conflict')"
)
_NEWEST = (
    "objects.version = (SELECT max(version) FROM objects AS other "
    "WHERE other.save = objects.save AND other.key = objects.key)"
)
_BEFORE_SURROGATES, _BEHIND_SURROGATES = 0xD7FF, 0xE000


def mount_save(sql: apsw.Connection, run: str) -> int | None:
    """Return the number of a mount's save; None where nothing was ever put."""
    query = "SELECT number FROM saves WHERE run = ? AND state = 'objects'"
    row = sql.execute(query, (run,)).fetchone()
    return int(row[0]) if row else None


def mount_saves(sql: apsw.Connection) -> dict[str, int]:
    """Return the save of each mount that ever had an object, by what the catalog calls it."""
    query = "SELECT run, number FROM saves WHERE state = 'objects' ORDER BY run"
    return {str(run): int(number) for run, number in sql.execute(query)}


def current(sql: apsw.Connection, run: str, key: str) -> ObjectVersion | None:
    """Return the newest version of a key, which may be its deletion; None where none is here."""
    condition = (  # a key may have any number of versions that wait to be shown
        "objects.version = (SELECT max(version) FROM objects AS newest WHERE newest.key = ? "
        "AND newest.save = (SELECT number FROM saves WHERE run = ? AND state = 'objects'))"
    )
    return next(iter(objects_where(sql, condition, key, run)), None)


def by_version(sql: apsw.Connection, version: int) -> ObjectVersion | None:
    return next(iter(objects_where(sql, "objects.version = ?", version)), None)


def unshown_page(
    sql: apsw.Connection, run: str, prefix: str, after: str, limit: int
) -> list[ObjectVersion]:
    """Return the newest versions of up to ``limit`` keys that the bucket does not show yet.

    They are those behind ``after``, in order. Deletions are among them: who merges this with the
    bucket's listing has to know.
    """
    condition = (
        "objects.save = ?1 AND objects.state <> 'clean' AND objects.key > ?2 "
        f"AND objects.key >= ?3 AND {_NEWEST} AND (?4 IS NULL OR objects.key < ?4) "
        "ORDER BY objects.key LIMIT ?5"
    )
    save = mount_save(sql, run)
    return objects_where(sql, condition, save, after, prefix, _behind(prefix), limit)


def watermark(sql: apsw.Connection) -> int:
    """Return the highest version of any mount; 0 for none.

    A version that was removed meanwhile was shown before, so nothing has to follow it.
    """
    return int(sql.execute("SELECT coalesce(max(version), 0) FROM objects").get)


def objects_to_show(sql: apsw.Connection, save: int, limit: int = -1) -> list[ObjectVersion]:
    """Return the versions of a mount that its bucket is to show, oldest first.

    Those that a person has to decide about are not among them, nor what they hold back.
    """
    condition = f"objects.save = ? AND {TO_SHOW} ORDER BY objects.version LIMIT ?"
    return objects_where(sql, condition, save, limit)


def unshown_versions(sql: apsw.Connection, save: int) -> list[int]:
    """Return their versions alone: what ``may_show`` asks for."""
    query = "SELECT version FROM objects WHERE save = ? AND state <> 'clean' ORDER BY version"
    return [int(row[0]) for row in sql.execute(query, (save,))]


def is_shown(sql: apsw.Connection, version: int) -> bool:
    """Return whether a version is, or was, shown: what is not here any more was."""
    query = "SELECT 1 FROM objects WHERE version = ? AND state <> 'clean'"
    return sql.execute(query, (version,)).fetchone() is None


def pieces_of(sql: apsw.Connection, version: int) -> list[Shard]:
    """Return the pieces of a version, in order."""
    condition = (
        "shards.save = (SELECT save FROM objects WHERE version = ?1) AND name > ?2 AND name < ?3 "
        "ORDER BY name"
    )
    first, behind_last = f"{version:016x}/", f"{version:016x}0"  # a zero follows the slash
    return queries.shards_where(sql, condition, version, first, behind_last)


def older_shown(sql: apsw.Connection, save: int, key: str, version: int) -> list[int]:
    """Return the versions of a key before ``version`` that the bucket has shown."""
    query = (
        "SELECT version FROM objects WHERE save = ? AND key = ? AND version < ? AND state = 'clean'"
    )
    return [int(row[0]) for row in sql.execute(query, (save, key, version))]


def deleted_with(sql: apsw.Connection, request: int) -> dict[str, int]:
    """Return the deletions of a request that its bucket has no record of, by their keys."""
    query = "SELECT key, version FROM objects WHERE request = ? AND deleted"
    return {str(key): int(version) for key, version in sql.execute(query, (request,))}


def next_of_key(sql: apsw.Connection, found: ObjectVersion) -> ObjectVersion | None:
    """Return the version of its key that came next; None for the newest."""
    condition = (
        "objects.save = ? AND objects.key = ? AND objects.version > ? "
        "ORDER BY objects.version LIMIT 1"
    )
    return next(iter(objects_where(sql, condition, found.save, found.key, found.version)), None)


def objects_where(sql: apsw.Connection, condition: str, *values: object) -> list[ObjectVersion]:
    query = (
        f"SELECT {_COLUMNS} FROM objects JOIN saves ON saves.number = objects.save "
        f"WHERE {condition}"
    )
    return [object_of(row) for row in sql.execute(query, values)]


def object_of(row: Row) -> ObjectVersion:
    """Read a row of an object.

    Raises:
        CatalogDamagedError: The row is not what was written.
    """
    version, save, run, key, deleted, size, digest, etag, head, sizes, committed_at, *rest = row
    follows, state, base, remote_etag, epoch, waits, *stamp, request, checked = rest
    acknowledged_at, conditional, stamped = stamp
    identity = str(run), str(key), bool(deleted), int(size), rows.unpacked(digest), str(etag)
    if object_row_digest(*identity, str(head), str(sizes), int(follows)) != checked:
        raise CatalogDamagedError(
            f"the catalog's row of object {key} does not match its own digest", run=run, name=key
        )
    of_bytes = identity[2:]
    return ObjectVersion(
        version,
        save,
        run,
        key,
        *of_bytes,
        Head.of_text(head),
        tuple(map(int, sizes.split(","))) if sizes else (),
        committed_at,
        follows,
        ObjectState(state),
        base,
        remote_etag,
        epoch,
        waits,
        acknowledged_at,
        bool(conditional),
        stamped,
        request,
    )


def object_row_digest(*identity: str | int) -> bytes:
    """Return the digest of what an object's row promises; how far it got may change.

    ``identity`` are run, key, deleted, size, digest, ETag, head, part sizes and follows, in order.
    """
    return rows.packed(digests.digest_of("\0".join(map(str, identity)).encode()))


def _behind(prefix: str) -> str | None:
    """Return the first key behind all that begin with ``prefix``; None where there is none."""
    shortened = prefix.rstrip(LAST_CODE_POINT)
    if not shortened:
        return None
    last = ord(shortened[-1])
    following = _BEHIND_SURROGATES if last == _BEFORE_SURROGATES else last + 1
    return shortened[:-1] + chr(following)
