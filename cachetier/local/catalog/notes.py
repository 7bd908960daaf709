"""Notes about saves and remotes: incidents, pins, claims on the store id, files taken back.

The functions that write run inside a transaction (``Store.write``).

Source of claims: docs/design/0019-store-claims.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from cachetier.errors import PinnedError
from cachetier.local.catalog import rows
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ENDED_SAVES

# A condition on rows of ``saves``.
NOT_PINNED = "NOT EXISTS (SELECT 1 FROM pins WHERE pins.run = saves.run AND pins.step = saves.step)"
LOCAL_ONLY_STEPS, DAMAGED_SHARDS = "local_only_steps", "damaged_shards"


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned step: ``local_bytes`` of its ``size_bytes`` lie on this node."""

    run: str
    step: int
    pinned_at: float
    shards: int
    local_shards: int
    size_bytes: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class PinTotals:
    """The room that pins hold on this node."""

    steps: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """The claim on a store id at one remote, as this catalog knows it.

    Attributes:
        epoch: Which life of the disk it is; empty for the first.
        nonces: What the document may bear that this catalog knows of: the last that was written
            down, and the one before, as the last may never have got there.
        counter: The highest version of a shard, ever: a catalog that goes back falls behind.
    """

    epoch: str = ""
    nonces: tuple[str, ...] = ()
    counter: int = 0


def incidents_after(sql: apsw.Connection, number: int, limit: int = 100) -> list[IncidentRecord]:
    query = (
        "SELECT code, message, hint, run, step, name, rank, number, at FROM incidents "
        "WHERE number > ? ORDER BY number LIMIT ?"
    )
    return [IncidentRecord(*row) for row in sql.execute(query, (number, limit))]


def newest_incident_at(sql: apsw.Connection, code: str) -> float | None:
    """Return when the last incident with a code happened; None if none did."""
    at = sql.execute("SELECT max(at) FROM incidents WHERE code = ?", (code,)).get
    return float(at) if at is not None else None


def newest_incident(sql: apsw.Connection) -> int:
    return int(sql.execute("SELECT coalesce(max(number), 0) FROM incidents").get)


def insert_incident(sql: apsw.Connection, incident: IncidentRecord, now: float) -> None:
    sql.execute(
        "INSERT INTO incidents (at, code, message, hint, run, step, name, rank) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(now, incident.code, incident.message, incident.hint),
            *(incident.run, incident.step, incident.name, incident.rank),
        ),
    )


def was_taken_back(sql: apsw.Connection, save: Save) -> bool:
    """Return whether fsck took files of a save back: its ranks may have sealed before."""
    query = "SELECT 1 FROM taken_back WHERE run = ? AND step = ? AND save_id = ?"
    return rows.exists(sql, query, save.run, save.step, save.save_id)


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
    count_forgotten(sql, DAMAGED_SHARDS, sum(bool(damaged) for _, damaged in found))
    return len(found)


def count_forgotten(sql: apsw.Connection, kind: str, number: int) -> None:
    """Count rows that are forgotten, so that figures of everything there ever was include them."""
    if number:
        sql.execute(
            "INSERT INTO pruned VALUES (?, ?) "
            "ON CONFLICT (kind) DO UPDATE SET number = number + excluded.number",
            (kind, number),
        )


def forgotten(sql: apsw.Connection, kind: str) -> int:
    return int(sql.execute("SELECT sum(number) FROM pruned WHERE kind = ?", (kind,)).get or 0)


def record_taken_back(sql: apsw.Connection, run: str, step: int, save_id: str) -> None:
    """Record that fsck took files of a save back, whose seals may be lost."""
    sql.execute("INSERT OR IGNORE INTO taken_back VALUES (?, ?, ?)", (run, step, save_id))


def is_pinned(sql: apsw.Connection, run: str, step: int) -> bool:
    return rows.exists(sql, "SELECT 1 FROM pins WHERE run = ? AND step = ?", run, step)


def refuse_pinned(sql: apsw.Connection, run: str, step: int) -> None:
    """Raise PinnedError if a step is pinned."""
    if is_pinned(sql, run, step):
        raise PinnedError(f"step {step} of {run} is pinned", run=run, step=step)


def pins(sql: apsw.Connection) -> list[Pin]:
    """Return the pinned steps, with the shards of those of their saves that are not deleted."""
    query = (
        "SELECT pins.run, pins.step, pinned_at, count(version), "
        "coalesce(sum(here), 0), coalesce(sum(size_bytes), 0), "
        "coalesce(sum(iif(here, size_bytes, 0)), 0) FROM pins "
        "LEFT JOIN saves ON saves.run = pins.run AND saves.step = pins.step "
        f"AND {ENDED_SAVES.sql_not('saves.state')} "
        "LEFT JOIN shards ON shards.save = saves.number "
        "GROUP BY pins.run, pins.step ORDER BY pins.run, pins.step"
    )
    return [Pin(*row) for row in sql.execute(query)]


def pin_totals(sql: apsw.Connection) -> PinTotals:
    """Return how many steps are pinned, and their bytes on this node."""
    found = pins(sql)
    return PinTotals(len(found), sum(pin.local_bytes for pin in found))


def unpin(sql: apsw.Connection, run: str, step: int) -> bool:
    """Let a step go again; return whether it was pinned."""
    pinned = is_pinned(sql, run, step)
    sql.execute("DELETE FROM pins WHERE run = ? AND step = ?", (run, step))
    return pinned


def own_claim(sql: apsw.Connection, remote: str) -> OwnClaim:
    """Return the claim as it was written down last."""
    counter = sql.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'shards'").get or 0
    query = "SELECT epoch, nonce, before FROM store_claims WHERE remote = ?"
    epoch, *nonces = sql.execute(query, (remote,)).fetchone() or ("",)
    return OwnClaim(epoch, tuple(filter(None, nonces)), counter)


def intend_claim(
    sql: apsw.Connection, remote: str, epoch: str, nonce: str, before: str, now: float
) -> None:
    """Record a claim over ``before`` before it is made: a lost reply is then known as our own.

    Another epoch than before means that this directory went back in time, or was copied.
    """
    sql.execute(
        "INSERT INTO store_claims (remote, epoch, nonce, before, noticed_at) "
        "VALUES (?1, ?2, ?3, ?4, iif(?2 = '', NULL, ?5)) "
        "ON CONFLICT (remote) DO UPDATE SET nonce = excluded.nonce, before = excluded.before, "
        "noticed_at = iif(epoch = excluded.epoch, noticed_at, ?5), epoch = excluded.epoch",
        (remote, epoch, nonce, before, now),
    )


def noticed_since(sql: apsw.Connection, since: float) -> list[tuple[str, float]]:
    """Return (remote, when) of each store id found to be used by others since then."""
    query = "SELECT remote, noticed_at FROM store_claims WHERE noticed_at >= ? ORDER BY remote"
    return [(remote, at) for remote, at in sql.execute(query, (since,))]
