"""What the catalog may forget: saves that ended and left nothing here, and old incidents.

A save is forgotten when nothing can ask for its row any more: it ended, no bytes of it are here, no
remote is owed anything of it or holds what only this row names, its step is not pinned, and no
other save of the step is open. What is published is found in the bucket again. Each function that
writes runs inside a transaction (``Store.write``) and looks once more.
"""

from __future__ import annotations

import apsw

from cachetier.local.catalog import queries

LOCAL_ONLY_STEPS, DAMAGED_SHARDS = "local_only_steps", "damaged_shards"

_FORGETTABLE = (
    "state IN ('published', 'replicated', 'superseded', 'refused', 'deleted') "
    "AND max(started_at, coalesce(published_at, 0)) < ?1 "
    "AND (location IS NULL OR (state = 'published' AND swept)) "
    f"AND {queries.NOT_PINNED} "
    "AND NOT EXISTS (SELECT 1 FROM replications WHERE save = number AND due) "
    "AND NOT EXISTS (SELECT 1 FROM saves AS other WHERE other.run = saves.run "
    "AND other.step = saves.step AND (other.state IN ('open', 'local_only') "
    "OR (other.state IN ('superseded', 'refused') AND other.location IS NOT NULL))) "
    "AND NOT EXISTS (SELECT 1 FROM shards WHERE save = number "
    "AND (shards.state <> 'evicted' OR file_id IS NOT NULL OR inline))"
)


def newest_at(sql: apsw.Connection, run: str) -> float:
    """Return when a run began its newest save here, deleted ones among them."""
    return float(
        sql.execute("SELECT coalesce(max(started_at), 0) FROM saves WHERE run = ?", (run,)).get
    )


def forgettable_saves(
    sql: apsw.Connection, run: str, before: float, keep: int, limit: int
) -> list[int]:
    """Return the numbers of up to ``limit`` saves of a run to forget, oldest first.

    Those that ended, and began, ``before``. The ``keep`` newest stay, and the newest published one.
    """
    query = (
        f"SELECT number FROM saves WHERE run = ?2 AND {_FORGETTABLE} AND number <= (SELECT number "
        "FROM saves WHERE run = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3) AND number <> coalesce("
        "(SELECT number FROM saves WHERE run = ?2 AND state = 'published' "
        "ORDER BY started_at DESC LIMIT 1), 0) ORDER BY number LIMIT ?4"
    )
    return [row[0] for row in sql.execute(query, (before, run, keep, limit))]


def forget_some(sql: apsw.Connection, number: int, before: float, shards: int) -> bool:
    """Forget a save, or ``shards`` of its shards first; return whether nothing of it is left."""
    found = f"SELECT local_only_at IS NOT NULL FROM saves WHERE {_FORGETTABLE} AND number = ?2"
    row = sql.execute(found, (before, number)).fetchone()
    if row is None:
        return True  # somebody reads it, or pinned it, meanwhile: it stays
    sql.execute(
        "DELETE FROM shards WHERE version IN (SELECT version FROM shards WHERE save = ? LIMIT ?)",
        (number, shards),
    )
    if sql.execute("SELECT 1 FROM shards WHERE save = ?", (number,)).fetchone():
        return False
    _count(sql, LOCAL_ONLY_STEPS, row[0])
    sql.execute(
        "DELETE FROM taken_back WHERE (run, step, save_id) = "
        "(SELECT run, step, save_id FROM saves WHERE number = ?)",
        (number,),
    )
    sql.execute("DELETE FROM saves WHERE number = ?", (number,))
    return True


def forget_incidents(sql: apsw.Connection, before: float, keep: int, limit: int) -> int:
    """Forget up to ``limit`` incidents from ``before``, or beyond the ``keep`` newest.

    The newest stays, as its number says which come next. Return how many went.
    """
    query = (
        "SELECT number, code = 'integrity' AND name IS NOT NULL FROM incidents "
        "WHERE number < (SELECT max(number) FROM incidents) AND (at < ? OR number <= "
        "(SELECT number FROM incidents ORDER BY number DESC LIMIT 1 OFFSET ?)) LIMIT ?"
    )
    found = sql.execute(query, (before, keep, limit)).fetchall()
    sql.executemany("DELETE FROM incidents WHERE number = ?", [(number,) for number, _ in found])
    _count(sql, DAMAGED_SHARDS, sum(bool(damaged) for _, damaged in found))
    return len(found)


def _count(sql: apsw.Connection, kind: str, number: int) -> None:
    """Add to what was forgotten: figures that count everything there ever was go on from there."""
    if number:
        sql.execute(
            "INSERT INTO pruned VALUES (?, ?) "
            "ON CONFLICT (kind) DO UPDATE SET number = number + excluded.number",
            (kind, number),
        )


def forgotten(sql: apsw.Connection, kind: str) -> int:
    row = sql.execute("SELECT number FROM pruned WHERE kind = ?", (kind,)).fetchone()
    return int(row[0]) if row else 0
