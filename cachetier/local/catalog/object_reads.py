"""What readers ask of the catalog about objects of the S3 door, beside ``objects``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import apsw

from cachetier.local.catalog import object_writes, objects, queries
from cachetier.model.objects import ObjectVersion, placed_piece
from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """A piece of ``version``, ``start`` bytes from its begin."""

    version: ObjectVersion
    start: int


def newest_with_pieces(
    sql: apsw.Connection, run: str, key: str
) -> tuple[ObjectVersion, list[Shard]] | None:
    """Return the newest version of a key with its pieces; None where none is here.

    The two are read one after the other: of a version that went between them pieces are missing.
    """
    version = objects.current(sql, run, key)
    return None if version is None else (version, objects.pieces_of(sql, version.version))


def newest_of(sql: apsw.Connection, run: str, keys: Iterable[str]) -> dict[str, ObjectVersion]:
    """Return the newest versions of those ``keys`` that have one here."""
    found = ((key, objects.current(sql, run, key)) for key in keys)
    return {key: version for key, version in found if version is not None}


def piece_named(sql: apsw.Connection, run: str, name: str) -> Shard | None:
    save = objects.mount_save(sql, run)
    return None if save is None else queries.shard_named(sql, save, name)


def place_of(sql: apsw.Connection, piece: Shard) -> PlacedPiece | None:
    """Return which version a piece is of, and where in it; None of an upload that is not complete.

    None, too, where the version is gone.
    """
    placed = placed_piece(piece.name)
    version = objects.by_version(sql, placed[0]) if placed is not None else None
    if placed is None or version is None:
        return None
    return PlacedPiece(version, sum(version.part_sizes[: placed[1] - 1]))


def forget_shown(sql: apsw.Connection, version: int) -> list[Shard] | None:
    """Forget a version that the bucket showed, and does not show any more; return its pieces.

    None where it is gone already.
    """
    found = objects.by_version(sql, version)
    return object_writes.forget_version(sql, version) if found and found.shown else None
