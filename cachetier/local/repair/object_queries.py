"""Reads of the objects in a catalog that may be damaged: nothing in it is taken on trust."""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import objects, shards
from cachetier.local.repair.check_queries import PAGE_ROWS
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
    found = sql.execute(query, (after, run, limit)).fetchall()
    return [_checked(sql, _number(row), str(row[1]), str(row[2])) for row in found]


def pieces_by_name(sql: apsw.Connection, number: int) -> list[Shard]:
    """Return the pieces of a version whose own row need not be sound; damaged ones are left out."""
    found = (_sound(sql, version) for version in _pieces(sql, number))
    return [piece for piece in found if piece is not None]


def unnamed_pieces(sql: apsw.Connection, run: str | None = None) -> list[Shard]:
    """Return the pieces of versions that have no row; those of uploads belong to them."""
    query = (
        "SELECT shards.version FROM shards JOIN saves ON number = save "
        "WHERE saves.state = 'objects' AND (?1 IS NULL OR run = ?1) AND name NOT LIKE 'upload-%' "
        "AND NOT EXISTS (SELECT 1 FROM objects WHERE objects.save = shards.save "
        "AND substr(shards.name, 1, 16) = printf('%016x', objects.version)) ORDER BY shards.version"
    )
    found = [_sound(sql, _number(row)) for row in sql.execute(query, (run,)).fetchall()]
    return [piece for piece in found if piece is not None]


def _checked(sql: apsw.Connection, number: int, run: str, key: str) -> CheckedObject:
    try:
        version = objects.by_version(sql, number)
    except (CatalogDamagedError, ValueError, TypeError):
        version = None
    return CheckedObject(number, run, key, version, len(_pieces(sql, number)))


def _pieces(sql: apsw.Connection, number: int) -> list[int]:
    span = f"{number:016x}/", f"{number:016x}0"
    return [_number(row) for row in sql.execute(_ITS_PIECES, (number, *span)).fetchall()]


def _sound(sql: apsw.Connection, version: int) -> Shard | None:
    try:
        return shards.shard_by_version(sql, version)
    except CatalogDamagedError:
        return None


def _number(row: tuple[object, ...]) -> int:
    assert isinstance(row[0], int)
    return row[0]
