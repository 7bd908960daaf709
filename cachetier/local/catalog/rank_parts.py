"""The parts of ranks: sealed, taken back, or growing again.

A part that *follows* is sealed as soon as rank 0 of its save is: here that is settled in the very
transaction that seals rank 0, elsewhere when the drain finds rank 0's part in the bucket. Until
then its rank may still add to it, and take it back.

Source: docs/design/0010-parts-that-follow.md.
"""

from __future__ import annotations

import apsw

from cachetier.model.checkpoint import PartState

LEADER = 0


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
