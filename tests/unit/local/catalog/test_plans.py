"""Each query that repeats a predicate of the schema reads through the index made for it.

A plan is written down as the indexes that it uses beside primary keys, the tables that it walks,
and what it keeps aside: sorted rows, or those of a view.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import apsw
import pytest

from cachetier.errors import CachetierError
from cachetier.local.catalog import copies, figures, notes, saves, shards, uploads
from cachetier.local.repair import check_queries
from cachetier.local.store import Store
from tests.unit.local.catalog.test_parts import IDS, put

REMOTE = "durable"
MANY = "INSERT INTO replicas"  # it is run with several rows of values
PLANS: dict[str, tuple[Callable[[apsw.Connection], object], str]] = {
    "clean shards": (shards.clean_local_shards, "evictable_shards"),
    "clean shards of a save": (
        lambda sql: shards.clean_local_shards_of(sql, 1),
        "evictable_shards",
    ),
    "bytes of a save": (lambda sql: shards.local_bytes_of(sql, 1), "shards of save"),
    "dirty shards of a save": (
        lambda sql: shards.dirty_shards_of(sql, 1, 5, REMOTE),
        "dirty_shards",
    ),
    "dirty small shards": (
        lambda sql: shards.dirty_shards_of(sql, 1, 5, REMOTE, shards.small_of(0)),
        "dirty_shards, lost_drains",
    ),
    "how a remote stores a shard": (lambda sql: shards.stored_of(sql, 1, REMOTE), ""),
    "where a shard is verified": (lambda sql: shards.verified_remotes(sql, 1), ""),
    "wanted at a remote": (
        lambda sql: copies.shards_wanted_at(sql, 1, "near", 5),
        "dirty_shards, evictable_shards",
    ),
    "out of reach": (
        lambda sql: copies.is_out_of_reach(sql, 1, "near"),
        "shards of save",
    ),
    "owed to a replica": (
        lambda sql: copies.lag_of(sql, "near"),
        "due_copies, ended_copies, shards of save, sorter (count(distinct))",
    ),
    "owed to a replica since": (
        lambda sql: copies.waiting_since(sql, "near"),
        "co-routine (subquery-n), due_copies, shards of save",
    ),
    "owed to the durable remote": (
        lambda sql: copies.durable_lag(sql, REMOTE),
        "dirty_shards, sorter (count(distinct))",
    ),
    "donor": (
        lambda sql: copies.donor_of(sql, shards.shards_of(sql, 1)[0], REMOTE),
        "saves of step, shards of save, sorter (order by)",
    ),
    "content there": (
        lambda sql: copies.has_content(sql, 1, (5, 6), REMOTE),
        "shards of save",
    ),
    "verified names": (
        lambda sql: copies.verified_names(sql, 1, REMOTE),
        "shards of save",
    ),
    "saves due at a remote": (
        lambda sql: copies.due_saves(sql, "near"),
        "due_copies",
    ),
    "a save at a remote": (lambda sql: copies.save_at(sql, 1, "near"), ""),
    "uploads that ended": (
        lambda sql: uploads.ended_locations(sql, "run", "near"),
        "saves of step",
    ),
    "saves of a step": (
        lambda sql: saves.saves_of(sql, "run", 1),
        "saves of step, sorter (order by)",
    ),
    "incomplete saves": (
        lambda sql: saves.incomplete_saves(sql, 1.0),
        "open_saves, saves of step",
    ),
    "saves to send again": (
        lambda sql: copies.saves_to_send_again(sql, REMOTE),
        "lost_drains",
    ),
    "saves to verify": (
        lambda sql: copies.saves_to_verify(sql, REMOTE),
        "dirty_shards",
    ),
    "lost": (lambda sql: copies.lost_as(sql, 1, REMOTE), ""),
    "lost packs": (lambda sql: copies.lost_packs(sql, 1, REMOTE), "lost_drains"),
    "new replicas": (
        lambda sql: copies.configure_replicas(sql, {"near": True}),
        "dirty_shards, evictable_shards, scan replicas, scan saves, shards of save",
    ),
    "saves with bytes": (saves.saves_with_bytes, "dirty_shards, evictable_shards"),
    "saves to forget": (
        lambda sql: saves.forgettable_saves(sql, "run", 1.0, 5, 5),
        "published_saves, saves of step, shards of save, sorter (order by)",
    ),
    "pins": (notes.pins, "saves of step, scan pins, shards of save"),
    "is anything drained": (figures.is_draining, "dirty_shards"),
    "local bytes": (
        figures.local_bytes,
        "dirty_shards, evictable_shards, quarantined_shards",
    ),
    "held by run": (
        figures.held_by_run,
        (
            "dirty_shards, evictable_shards, object_upload_keys, open_saves, quarantined_shards, "
            "saves of step, shards of save, sorter (group by), unshown_keys"
        ),
    ),
    "ranks": (
        lambda sql: figures.rank_progress(sql, 1, REMOTE),
        "shards of save, sorter (group by)",
    ),
    "places": (
        lambda sql: figures.shard_places(sql, 1, REMOTE, 0, 5),
        "shards of save, sorter (order by)",
    ),
    "counts": (
        lambda sql: figures.shard_counts(sql, 1, REMOTE),
        "shards of save, sorter (group by)",
    ),
    "accounts": (
        check_queries.accounts,
        "dirty_shards, evictable_shards, quarantined_shards, scan shards",
    ),
}


_AUTOMATIC = {
    "sqlite_autoindex_shards_1": "shards of save",
    "sqlite_autoindex_saves_1": "saves of step",
}


def statements_of(
    sql: apsw.Connection, query: Callable[[apsw.Connection], object]
) -> list[tuple[str, Any]]:
    """Return every statement that ``query`` runs, with its values."""
    seen: list[tuple[str, Any]] = []

    def trace(_cursor: apsw.Cursor, statement: str, values: Any) -> bool:
        seen.append((statement, values))
        return True

    sql.exec_trace = trace
    try:
        with suppress(CachetierError):
            query(sql)
    finally:
        sql.exec_trace = None
    return seen


def read_through(line: str) -> str | None:
    """Return what one line of a plan reads through; None if it reads nothing."""
    if found := re.search(r"USING (?:AUTOMATIC )?(?:PARTIAL )?(?:COVERING )?INDEX (\S+)", line):
        return _AUTOMATIC.get(found[1], found[1])
    if line.startswith("USE TEMP B-TREE FOR "):
        return f"sorter ({line.removeprefix('USE TEMP B-TREE FOR ').lower()})"
    if (
        line.startswith(("SCAN ", "MATERIALIZE", "CO-ROUTINE"))
        and "KEY" not in line
        and "CONSTANT" not in line
    ):
        return re.sub(r"\d+", "n", line.lower())
    return None


@pytest.mark.parametrize("name", PLANS)
def test_a_query_reads_through_the_index_made_for_it(store: Store, name: str) -> None:
    query, expected = PLANS[name]
    put(store, IDS, "a")

    def plan(sql: apsw.Connection) -> set[str]:
        asked = [each for each in statements_of(sql, query) if not each[0].startswith(MANY)]
        lines = [row[3] for q, v in asked for row in sql.execute(f"EXPLAIN QUERY PLAN {q}", v)]
        return {found for line in lines if (found := read_through(line)) is not None}

    assert ", ".join(sorted(store.write(plan))) == expected
