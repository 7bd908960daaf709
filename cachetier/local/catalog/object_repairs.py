"""Writes of ``fsck`` about objects; each runs inside a transaction (``Store.write``)."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from cachetier.local.catalog import drain_writes, object_writes, objects, statements
from cachetier.local.catalog.object_writes import (
    CommittedObject,
    Condition,
    InBucket,
    NewObject,
    NewPiece,
)
from cachetier.model.names import DURABLE
from cachetier.model.objects import ObjectState, piece_name

_NOTHING = Condition(looked=InBucket())


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

    It may only come where its bucket has nothing: who put something else there is no victim.
    """
    save = object_writes.begun_mount(sql, run, now)
    committed = object_writes.insert_version(sql, save, new, _NOTHING, now)
    for number, piece in enumerate(pieces, 1):
        statements.insert_shard(sql, save, piece.named(piece_name(committed.version, number)), now)
    return committed
