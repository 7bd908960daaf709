"""Writes of ``fsck`` about objects; each runs inside a transaction (``Store.write``)."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from cachetier.local.catalog import drain_writes, object_writes, objects, statements
from cachetier.local.catalog.object_writes import (
    UNCONDITIONAL,
    CommittedObject,
    NewObject,
    NewPiece,
)
from cachetier.model.names import DURABLE
from cachetier.model.objects import ObjectState, piece_name


def send_again(sql: apsw.Connection, version: int, base: str) -> None:
    """Have a version that its bucket lost brought there again, over ``base``."""
    for piece in objects.pieces_of(sql, version):
        drain_writes.record_lost(sql, piece.version, DURABLE)
    sql.execute(
        "UPDATE objects SET state = ?, remote_etag = NULL, base = ? WHERE version = ?",
        (ObjectState.DIRTY, base, version),
    )


def forget_row(sql: apsw.Connection, version: int) -> None:
    """Remove the row of an object whose pieces are gone; it need not be sound."""
    sql.execute("DELETE FROM objects WHERE version = ?", (version,))


def take_back(
    sql: apsw.Connection, run: str, new: NewObject, pieces: Sequence[NewPiece], now: float
) -> CommittedObject:
    """Commit an object of files that a lost catalog named; it follows all that was taken back.

    The catalog may have given more versions than it knows: the next one is higher than all of them.
    """
    save = object_writes.begun_mount(sql, run, now)
    committed = object_writes.insert_version(sql, save, new, UNCONDITIONAL, now)
    object_writes.raise_versions(sql, new.stamped or 0)
    for number, piece in enumerate(pieces, 1):
        statements.insert_shard(sql, save, piece.named(piece_name(committed.version, number)), now)
    return committed
