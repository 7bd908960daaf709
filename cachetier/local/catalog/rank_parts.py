"""Statements on the parts of ranks; each runs inside its caller's transaction.

A part that *follows* is sealed as soon as rank 0 of its save is: here that is settled in the very
transaction that seals rank 0, elsewhere when the drain finds rank 0's part in the bucket. Until
then its rank may still add to it, and take it back.

Source: docs/design/0010-parts-that-follow.md.
"""

from __future__ import annotations

import apsw

from cachetier.errors import InvalidRequestError
from cachetier.local.catalog import queries
from cachetier.model.checkpoint import PartState
from cachetier.model.shard import SaveIds

LEADER = 0


def seal(
    sql: apsw.Connection,
    number: int,
    ids: SaveIds,
    ranks_on_node: int | None,
    now: float,
    *,
    follows: bool,
) -> list[int]:
    """Seal one rank's part and return the ranks sealed here; what is final stays as it is.

    Raises:
        InvalidRequestError: Rank 0 would follow itself.
    """
    if follows and ids.rank == LEADER:
        raise InvalidRequestError(
            "rank 0 cannot follow rank 0",
            hint="Seal rank 0 without follows, once everything of the save is put.",
            run=ids.run,
            step=ids.step,
            rank=ids.rank,
        )
    waits = follows and not is_final(sql, number, LEADER)
    sql.execute(
        "INSERT INTO parts (save, rank, state, ranks_on_node, sealed_at, follows) "
        "VALUES (?, ?, 'sealed', ?, ?, ?) ON CONFLICT (save, rank) DO UPDATE SET "
        "state = 'sealed', ranks_on_node = excluded.ranks_on_node, "
        "sealed_at = excluded.sealed_at, follows = excluded.follows "
        "WHERE state <> 'sealed' OR follows",
        (number, ids.rank, ranks_on_node, now, int(waits)),
    )
    if ids.rank == LEADER:
        release(sql, number)
    parts = queries.parts_of(sql, number)
    return [part.rank for part in parts if part.state is PartState.SEALED]


def release(sql: apsw.Connection, number: int) -> int:
    """Make the sealed parts of a save final, as rank 0 has sealed; return how many were not."""
    sql.execute(
        "UPDATE parts SET follows = 0 WHERE save = ? AND state = 'sealed' AND follows", (number,)
    )
    return sql.changes()


def is_final(sql: apsw.Connection, number: int, rank: int) -> bool:
    """Return whether nothing is added to a rank's part any more."""
    query = "SELECT 1 FROM parts WHERE save = ? AND rank = ? AND state = 'sealed' AND NOT follows"
    return sql.execute(query, (number, rank)).fetchone() is not None


def reopen(sql: apsw.Connection, number: int, rank: int, state: PartState) -> None:
    """Have a rank's part, which is not final, as ``state``: it grows, or was taken back."""
    sql.execute(
        "INSERT INTO parts (save, rank, state) VALUES (?, ?, ?) "
        "ON CONFLICT (save, rank) DO UPDATE SET state = excluded.state, follows = 0 "
        "WHERE state <> excluded.state",
        (number, rank, state),
    )
