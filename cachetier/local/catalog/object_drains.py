"""What the drain asks of the catalog about objects of the S3 door, and what a person settles."""

from __future__ import annotations

from collections.abc import Iterable

import apsw

from cachetier.errors import NotFoundError
from cachetier.local.catalog import object_writes, objects
from cachetier.model.objects import ObjectState, ObjectVersion, piece_name
from cachetier.model.shard import Shard


def sent_ahead(
    sql: apsw.Connection, versions: Iterable[ObjectVersion], remote: str
) -> frozenset[int]:
    """Return those of ``versions`` whose upload at ``remote`` lacks no byte."""
    query = (
        "SELECT coalesce(sum(uploaded_parts.raw_bytes), 0) FROM uploaded_parts JOIN shards "
        "ON shards.version = uploaded_parts.version WHERE shards.save = ? AND shards.name = ? "
        "AND uploaded_parts.remote = ?"
    )
    return frozenset(
        each.version
        for each in versions
        if sql.execute(query, (each.save, piece_name(each.version, 1), remote)).get
        == each.size_bytes
    )


def unshown_by_mount(sql: apsw.Connection) -> list[tuple[str, int, int]]:
    """Return of each mount how many versions its bucket does not show yet, and their bytes."""
    query = (
        "SELECT saves.run, count(*), sum(objects.size_bytes) FROM objects JOIN saves "
        "ON saves.number = objects.save WHERE objects.state <> 'clean' GROUP BY saves.number"
    )
    return [(str(run), int(count), int(size)) for run, count, size in sql.execute(query)]


def conflict_of(sql: apsw.Connection, run: str, key: str) -> ObjectVersion | None:
    """Return the version of a key that a person must decide about; None where none is."""
    condition = "saves.run = ? AND objects.key = ? AND objects.state = ?"
    return next(iter(objects.objects_where(sql, condition, run, key, ObjectState.CONFLICT)), None)


def keep_ours(sql: apsw.Connection, version: int, there: str) -> None:
    """Let a version in conflict replace ``there``, the ETag of what the bucket has by now.

    Raises:
        NotFoundError: It is gone, or not in conflict any more.
    """
    _in_conflict(sql, version)
    sql.execute(
        "UPDATE objects SET state = ?, base = ? WHERE version = ?",
        (ObjectState.DIRTY, there, version),
    )


def keep_theirs(sql: apsw.Connection, version: int, there: str) -> list[Shard]:
    """Drop a version in conflict; the next of its key may replace ``there``. Returns its pieces.

    Raises:
        NotFoundError: It is gone, or not in conflict any more.
    """
    newer = objects.next_of_key(sql, _in_conflict(sql, version))
    if newer is not None:
        sql.execute("UPDATE objects SET base = ? WHERE version = ?", (there, newer.version))
    return object_writes.forget_version(sql, version)


def _in_conflict(sql: apsw.Connection, version: int) -> ObjectVersion:
    found = objects.by_version(sql, version)
    if found is None or found.state is not ObjectState.CONFLICT:
        raise NotFoundError(f"version {version} is not in conflict any more")
    return found
