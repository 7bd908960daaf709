"""Reads of the objects in a catalog that may be damaged: nothing in it is taken on trust."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import apsw

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import objects, rows, shards
from cachetier.local.catalog.rows import Row
from cachetier.local.repair.check_queries import PAGE_ROWS
from cachetier.model.lifecycle import MOUNT_SAVES
from cachetier.model.objects import ObjectVersion
from cachetier.model.shard import Shard

_ITS_PIECES = (
    "SELECT shards.version FROM shards JOIN objects ON objects.save = shards.save "
    "WHERE objects.version = ?1 AND shards.name > ?2 AND shards.name < ?3 ORDER BY shards.name"
)


@dataclass(frozen=True, slots=True)
class CheckedObject:
    """A row of an object: ``version`` is None where the row is not what was written.

    ``pieces`` are how many of its pieces have rows.
    """

    number: int
    run: str
    key: str
    version: ObjectVersion | None
    pieces: int


def checked_objects(
    sql: apsw.Connection, after: int, run: str | None = None, limit: int = PAGE_ROWS
) -> list[CheckedObject]:
    """Return up to ``limit`` rows of objects with versions above ``after``, ascending."""
    query = (
        "SELECT objects.version, saves.run, key FROM objects JOIN saves ON number = save "
        "WHERE objects.version > ?1 AND (?2 IS NULL OR run = ?2) ORDER BY objects.version LIMIT ?3"
    )
    found: list[Row] = sql.execute(query, (after, run, limit)).fetchall()
    return [_checked(sql, number, str(run), str(key)) for number, run, key in found]


def pieces_by_name(sql: apsw.Connection, number: int) -> list[Shard]:
    """Return the pieces of a version whose own row need not be sound; damaged ones are left out."""
    return _sound(sql, _pieces(sql, number))


def unnamed_pieces(sql: apsw.Connection, run: str | None = None) -> list[Shard]:
    """Return the pieces of versions that have no row; those of uploads belong to them."""
    query = (
        "SELECT shards.version FROM shards JOIN saves ON number = save "
        f"WHERE {MOUNT_SAVES.sql('saves.state')} AND (?1 IS NULL OR run = ?1) "
        "AND name NOT LIKE 'upload-%' "
        "AND NOT EXISTS (SELECT 1 FROM objects WHERE objects.save = shards.save "
        "AND substr(shards.name, 1, 16) = printf('%016x', objects.version)) ORDER BY shards.version"
    )
    return _sound(sql, rows.column(sql, query, run))


def _checked(sql: apsw.Connection, number: int, run: str, key: str) -> CheckedObject:
    try:
        version = objects.by_version(sql, number)
    except (CatalogDamagedError, ValueError, TypeError):
        version = None
    return CheckedObject(number, run, key, version, len(_pieces(sql, number)))


def _pieces(sql: apsw.Connection, number: int) -> list[int]:
    span = f"{number:016x}/", f"{number:016x}0"
    return rows.column(sql, _ITS_PIECES, number, *span)


def _sound(sql: apsw.Connection, versions: Iterable[int]) -> list[Shard]:
    """Return the shards of ``versions`` whose rows are what was written."""
    found = []
    for version in versions:
        with suppress(CatalogDamagedError):
            found.append(shards.shard_by_version(sql, version))
    return [shard for shard in found if shard is not None]
