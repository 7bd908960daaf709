"""Reads of the catalog that say what losing this node now would cost.

They are asked at every scrape, so none of them walks what is safe already: they look at open saves,
at dirty shards and, through an index each, at the newest save and the newest durable one of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apsw
from cachetier_client.bucket_format.documents import UnflushedSave
from cachetier_client.identity.names import MOUNT_MARK

from cachetier.local.catalog import objects, pruning
from cachetier.local.catalog.rows import Row
from cachetier.model.checkpoint import PartCounts, SaveState, all_sealed
from cachetier.model.objects import is_mount

SUPERSEDED_SHOWN = 5  # of each mount
_UNWANTED = (SaveState.SUPERSEDED, SaveState.REFUSED, SaveState.DELETED)
_EACH_RUN = (
    "WITH RECURSIVE each_run (run) AS (SELECT min(run) FROM saves WHERE state <> 'deleted' "
    "UNION ALL SELECT (SELECT min(run) FROM saves WHERE run > each_run.run AND state <> 'deleted') "
    "FROM each_run WHERE each_run.run IS NOT NULL) "
)


@dataclass(frozen=True, slots=True)
class Dirty:
    """The dirty shards of one save; ``oldest`` is the lowest version."""

    shards: int = 0
    size_bytes: int = 0
    oldest: int | None = None


@dataclass(frozen=True, slots=True)
class OpenSave:
    """A save that is not published.

    ``sealed_at``: when the last rank here sealed, None while one has not. ``grew_at``: when the
    last shard or seal of it came here, or else it began. ``sent``: the remote has everything that
    this node owes it, so that it waits for other nodes.
    """

    number: int
    run: str
    step: int
    started_at: float
    local_only: bool
    sealed_at: float | None
    grew_at: float
    sent: bool
    dirty: Dirty


@dataclass(frozen=True, slots=True)
class OtherSave:
    """A save that ended and has dirty shards here.

    A published one waits for a required replica. One that is not ``wanted`` was superseded or
    refused: its shards are drained by nobody, and go once nobody can miss them.
    """

    run: str
    step: int
    wanted: bool
    dirty: Dirty


@dataclass(frozen=True, slots=True)
class Run:
    """When a run began its newest save here."""

    name: str
    newest_at: float


@dataclass(frozen=True, slots=True)
class DurableStep:
    """The durable step of a run whose save began last; ``number`` says when it arrived here."""

    number: int
    step: int
    started_at: float


@dataclass(frozen=True, slots=True)
class SupersededObject:
    """A version that its bucket never shows, as something newer was put there, or deleted."""

    key: str
    reason: str
    superseded_at: float


@dataclass(frozen=True, slots=True)
class MountTotals:
    """What a mount of the S3 door has here that its bucket does not show yet.

    ``objects`` are versions, deletions among them; in ``conflicts`` a person has to decide about
    some. ``dirty`` are their pieces, with those of uploads that are not complete. ``oldest_at``:
    when the first of ``objects`` was acknowledged. ``superseded`` are the last that its bucket
    never shows.
    """

    name: str
    objects: int
    conflicts: int
    dirty: Dirty
    oldest_at: float | None
    superseded: tuple[SupersededObject, ...] = ()


@dataclass(frozen=True, slots=True)
class Damage:
    """Shards that are quarantined now, and how many ever were."""

    shards: int = 0
    ever: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """Steps that a policy keeps here now, and how many it ever did."""

    steps: int = 0
    ever: int = 0


class Unflushed(NamedTuple):
    """A save that is not durable, by its number, and the ranks that sealed it here."""

    number: int
    run: str
    save: UnflushedSave


def dirty_by_save(sql: apsw.Connection) -> dict[int, Dirty]:
    """Return what is dirty, by the number of the save; its index holds all it asks for."""
    query = (
        "SELECT save, count(*), sum(size_bytes), min(version) FROM shards "
        "WHERE state = 'dirty' GROUP BY save"
    )
    return {save: Dirty(*counted) for save, *counted in sql.execute(query)}


def open_saves(sql: apsw.Connection, dirty: Mapping[int, Dirty]) -> list[OpenSave]:
    """Return the saves that are open or local-only, by arrival, with what is ``dirty`` of each."""
    query = (
        "SELECT number, run, step, started_at, world_size, saves.state, count(rank), "
        "coalesce(sum(parts.state = 'sealed'), 0), "
        "max(iif(parts.state = 'sealed', ranks_on_node, NULL)), "
        "coalesce(max(parts.state = 'sealed' AND NOT follows), 0), "
        "max(sealed_at), coalesce(min(uploaded), 0), "
        "(SELECT committed_at FROM shards WHERE version = "
        "(SELECT max(+version) FROM shards WHERE save = saves.number)) "
        "FROM saves LEFT JOIN parts ON parts.save = saves.number "
        "WHERE saves.state IN ('open', 'local_only') GROUP BY number"
    )
    return [_open_save(row, dirty) for row in sql.execute(query)]


def unflushed_saves(sql: apsw.Connection) -> list[Unflushed]:
    """Return what is sealed here and will be durable, the newest step first."""
    query = (
        "SELECT number, run, step, save_id, world_size, group_concat(rank) "
        "FROM saves JOIN parts ON parts.save = number AND parts.state = 'sealed' "
        "WHERE saves.state IN ('open', 'local_only') AND saves.state = 'open' "
        "GROUP BY number ORDER BY step DESC, number DESC"
    )
    found = []
    for number, run, step, save_id, world_size, listed in sql.execute(query):
        ranks = tuple(sorted(map(int, listed.split(","))))
        save = UnflushedSave(step=step, save_id=save_id, world_size=world_size, ranks=ranks)
        found.append(Unflushed(number, run, save))
    return found


def _open_save(row: Row, dirty: Mapping[int, Dirty]) -> OpenSave:
    number, run, step, started_at, world_size, state, seen, sealed, expected, *rest = row
    final, sealed_at, uploaded, committed_at = rest
    whole = all_sealed(PartCounts(seen, sealed, expected, bool(final)))
    return OpenSave(
        number,
        run,
        step,
        started_at,
        local_only=state == SaveState.LOCAL_ONLY,
        sealed_at=sealed_at if whole else None,
        grew_at=max(started_at, sealed_at or 0.0, committed_at or 0.0),
        sent=bool(uploaded) and number not in dirty and sealed < world_size,
        dirty=dirty.get(number, Dirty()),
    )


def other_saves(
    sql: apsw.Connection, dirty: Mapping[int, Dirty], numbers: Iterable[int]
) -> list[OtherSave]:
    """Return the saves with these ``numbers``, which ended, with what is ``dirty`` of each."""
    query = "SELECT run, step, state FROM saves WHERE number = ?"
    found = ((dirty[number], sql.execute(query, (number,)).fetchone()) for number in numbers)
    return [
        OtherSave(row[0], row[1], wanted=row[2] not in _UNWANTED, dirty=each)
        for each, row in found
        if row is not None
    ]


def mounts(sql: apsw.Connection, dirty: Mapping[int, Dirty]) -> list[MountTotals]:
    """Return the mounts that ever had an object, by name, with what is ``dirty`` of each."""
    counts = "SELECT save, count(*), min(version) FROM objects WHERE state <> 'clean' GROUP BY save"
    unshown = {save: counted for save, *counted in sql.execute(counts)}
    disputed = "SELECT save, count(*) FROM objects WHERE state = 'conflict' GROUP BY save"
    conflicts = {int(row[0]): int(row[1]) for row in sql.execute(disputed)}
    since = "SELECT committed_at FROM objects WHERE version = ?"
    lost = "SELECT save, key, reason, superseded_at FROM superseded_objects ORDER BY 4 DESC"
    superseded: dict[int, list[SupersededObject]] = {}
    for save, *of_object in sql.execute(lost):
        superseded.setdefault(save, []).append(SupersededObject(*of_object))
    found = []
    for run, save in objects.mount_saves(sql).items():
        count, oldest = unshown.get(save, (0, None))
        row = sql.execute(since, (oldest,)).fetchone()
        found.append(
            MountTotals(
                run.removeprefix(MOUNT_MARK),
                count,
                conflicts.get(save, 0),
                dirty.get(save, Dirty()),
                row[0] if row else None,
                tuple(superseded.get(save, ())[:SUPERSEDED_SHOWN]),
            )
        )
    return found


def committed_at(sql: apsw.Connection, version: int | None) -> float | None:
    row = sql.execute("SELECT committed_at FROM shards WHERE version = ?", (version,)).fetchone()
    return row[0] if row else None


def every_run(sql: apsw.Connection) -> list[Run]:
    """Return the runs with a save that is not deleted, without a walk over their saves.

    Mounts of the S3 door are none.
    """
    query = (
        f"{_EACH_RUN} SELECT run, (SELECT max(started_at) FROM saves WHERE run = each_run.run "
        "AND state <> 'deleted') FROM each_run WHERE run IS NOT NULL"
    )
    return [Run(*row) for row in sql.execute(query) if not is_mount(row[0])]


def durable_step(sql: apsw.Connection, run: str) -> DurableStep | None:
    """Return the published step of ``run`` whose save began last."""
    query = (
        "SELECT number, step, started_at FROM saves WHERE run = ? AND state = 'published' "
        "ORDER BY started_at DESC LIMIT 1"
    )
    row = sql.execute(query, (run,)).fetchone()
    return DurableStep(*row) if row else None


def replaced_elsewhere(sql: apsw.Connection, codes: Sequence[str], since: float) -> list[str]:
    """Return which steps that were sealed here another node's save replaced, and how.

    Those of saves that began ``since``, or of which an incident with one of ``codes`` says so.
    """
    known = (
        f"{_EACH_RUN} SELECT ended.run, ended.step, 'save ' || ended.save_id || ', by ' || "
        "newer.save_id FROM each_run JOIN saves AS ended ON ended.run = each_run.run "
        "AND ended.started_at >= ? AND ended.state <> 'deleted' JOIN saves AS newer "
        "ON newer.run = ended.run AND newer.step = ended.step AND +newer.state = 'published' "
        "WHERE ended.state IN ('superseded', 'refused') AND EXISTS (SELECT 1 FROM parts "
        "WHERE save = ended.number AND state = 'sealed') "
        "AND NOT EXISTS (SELECT 1 FROM parts WHERE save = newer.number)"
    )
    recorded = (
        f"SELECT run, step, message FROM incidents WHERE at >= ? AND name IS NULL "
        f"AND code IN ({', '.join('?' * len(codes))}) AND NOT EXISTS (SELECT 1 FROM saves "
        "JOIN parts ON parts.save = saves.number WHERE saves.run = incidents.run "
        "AND saves.step = incidents.step AND +saves.state = 'published')"
    )
    found = [*sql.execute(recorded, (since, *codes)), *sql.execute(known, (since,))]
    return [
        f"{run}/{step}: {how}" for (run, step), how in {row[:2]: row[2] for row in found}.items()
    ]


def damage(sql: apsw.Connection) -> Damage:
    shards = sql.execute("SELECT count(*) FROM shards WHERE state = 'quarantined'").get
    ever = sql.execute(
        "SELECT count(*) FROM incidents WHERE code = 'integrity' AND name IS NOT NULL"
    ).get
    return Damage(shards, ever + pruning.forgotten(sql, pruning.DAMAGED_SHARDS))


def kept_by_policy(sql: apsw.Connection) -> Kept:
    query = (
        "SELECT coalesce(sum(state = 'local_only'), 0), count(*) FROM saves "
        "WHERE local_only_at IS NOT NULL"
    )
    steps, ever = sql.execute(query).get
    return Kept(steps, ever + pruning.forgotten(sql, pruning.LOCAL_ONLY_STEPS))
