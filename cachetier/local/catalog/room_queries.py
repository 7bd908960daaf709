"""Reads of the catalog that say which bytes go from this node when room is needed.

The same go that ``evict`` and ``retention`` let go. What a reader holds open, or a remote has lost,
is found only when it comes to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import apsw

from cachetier.local.catalog import pin_queries, rows
from cachetier.local.catalog.exposure_queries import OpenSave
from cachetier.model.policy import LocalStep, surplus

_CLEAN = "shards.state = 'clean' AND (shards.file_id IS NOT NULL OR shards.inline)"


def clean_bytes(sql: apsw.Connection) -> int:
    """Return what lies here and is at every remote that is required, pinned or not."""
    return int(sql.execute(f"SELECT coalesce(sum(size_bytes), 0) FROM shards WHERE {_CLEAN}").get)


def evictable_bytes(sql: apsw.Connection, saves: Sequence[OpenSave]) -> int:
    """Return what goes: what is clean and not pinned, and local-only steps; ``saves`` are open."""
    return clean_bytes(sql) - _pinned_clean_bytes(sql) + _removable_bytes(sql, saves)


def _pinned_clean_bytes(sql: apsw.Connection) -> int:
    query = (
        "SELECT coalesce(sum(size_bytes), 0) FROM pins "
        "JOIN saves ON saves.run = pins.run AND saves.step = pins.step "
        f"JOIN shards ON shards.save = saves.number WHERE {_CLEAN}"
    )
    return int(sql.execute(query).get)


def _removable_bytes(sql: apsw.Connection, saves: Sequence[OpenSave]) -> int:
    """Return the bytes of local-only steps that go for a put that waits.

    All clean ones go first, so the newest whole step of a run that is left is one of ``saves``.
    """
    kept = {save.number: save for save in saves if save.local_only}
    if not kept:
        return 0
    damaged = {row[0] for row in sql.execute("SELECT save FROM shards WHERE state = 'quarantined'")}
    whole = {save.number for save in saves if save.sealed_at is not None} - damaged
    return sum(
        kept[save.number].dirty.size_bytes
        for steps in _unfinished(sql, whole).values()
        for save in surplus(steps, 1)
        if save.number in kept and not pin_queries.is_pinned(sql, save.run, save.step)
    )


def _unfinished(sql: apsw.Connection, whole: Collection[int]) -> dict[str, list[LocalStep]]:
    """Return the saves that are not published, run by run."""
    query = f"SELECT {rows.SAVE_COLUMNS} FROM saves WHERE state IN ('open', 'local_only')"
    by_run: dict[str, list[LocalStep]] = {}
    for save in map(rows.save_of, sql.execute(query)):
        by_run.setdefault(save.run, []).append(LocalStep(save, save.number in whole))
    return by_run
