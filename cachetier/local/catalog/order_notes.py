"""The notes that this node owes, or has, in the buckets of mounts with ``order = cluster``.

A row is there before its note, and goes after it, so no note is ever forgotten. Which epoch is open
is known in memory alone: after a start every epoch of before is closed.

Source: docs/design/0030-objects.md, "Order across nodes".
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from cachetier.local.catalog import object_writes, objects, statements
from cachetier.local.catalog.records import IncidentRecord
from cachetier.model.cluster_order import UNLISTED
from cachetier.model.objects import ObjectVersion


@dataclass(frozen=True, slots=True)
class OrderNote:
    """A note of this node; ``written``: it surely is in the bucket."""

    epoch: str
    opened_at: float
    written: bool


def is_held(sql: apsw.Connection, save: int) -> bool:
    """Return whether nothing of a mount may become visible: it owes a note, or a look for some."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM order_notes WHERE save = ?1 AND NOT written) "
        "OR EXISTS (SELECT 1 FROM objects WHERE save = ?1 AND state <> 'clean' AND waits = ?2)"
    )
    return bool(sql.execute(query, (save, UNLISTED)).get)


def notes_of(sql: apsw.Connection, run: str) -> list[OrderNote]:
    """Return the notes of a mount, the oldest first."""
    query = (
        "SELECT epoch, opened_at, written FROM order_notes JOIN saves ON number = save "
        "WHERE run = ? ORDER BY opened_at, epoch"
    )
    return [
        OrderNote(epoch, at, bool(written)) for epoch, at, written in sql.execute(query, (run,))
    ]


def open_epoch(sql: apsw.Connection, run: str, epoch: str, now: float) -> None:
    """Remember that a note is owed."""
    save = object_writes.begun_mount(sql, run, now)
    sql.execute(
        "INSERT INTO order_notes (save, epoch, opened_at) VALUES (?, ?, ?)",
        (save.number, epoch, now),
    )


def record_written(sql: apsw.Connection, run: str, epoch: str) -> None:
    query = "UPDATE order_notes SET written = 1 WHERE epoch = ? AND save = ?"
    sql.execute(query, (epoch, objects.mount_save(sql, run)))


def forget_epoch(sql: apsw.Connection, run: str, epoch: str) -> None:
    """Forget an epoch whose note is gone."""
    query = "DELETE FROM order_notes WHERE epoch = ? AND save = ?"
    sql.execute(query, (epoch, objects.mount_save(sql, run)))


def is_drained(sql: apsw.Connection, run: str, epoch: str) -> bool:
    """Return whether the bucket shows all objects of an epoch, but those that a person holds up."""
    query = (
        "SELECT NOT EXISTS (SELECT 1 FROM objects WHERE save = ? AND epoch = ? "
        f"AND {objects.TO_SHOW})"
    )
    return bool(sql.execute(query, (objects.mount_save(sql, run), epoch)).get)


def waiting_markers(sql: apsw.Connection, run: str) -> list[ObjectVersion]:
    """Return the markers of a mount that wait for other nodes, or have yet to look for them."""
    condition = (
        "saves.run = ? AND objects.state <> 'clean' AND waits IS NOT NULL ORDER BY objects.version"
    )
    return objects.objects_where(sql, condition, run)


def record_waits(sql: apsw.Connection, version: int, waits: str | None) -> None:
    """Record what a marker waits for by now."""
    sql.execute("UPDATE objects SET waits = ? WHERE version = ?", (waits, version))


def release(
    sql: apsw.Connection, version: int, incident: IncidentRecord | None, now: float
) -> None:
    """Let a marker wait no more, whatever other nodes have; ``incident`` tells of it."""
    record_waits(sql, version, None)
    if incident is not None:
        statements.insert_incident(sql, incident, now)
