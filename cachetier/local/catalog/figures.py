"""Figures for people: totals of the node, what losing it now would cost, how far one save is.

The totals are read at every scrape, so none of their queries walks what is safe already: they look
at open saves, at dirty shards and, through an index each, at the newest save and the newest durable
one of a run. One save is shown a window at a time: a window costs what the save has on this node,
not what the catalog has, as saves of ten thousand shards are looked at once a second.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import apsw
from cachetier_client.bucket_format.documents import UnflushedSave
from cachetier_client.bucket_format.publication import is_whole
from cachetier_client.identity.names import MOUNT_MARK

from cachetier.local.catalog import copies, notes, objects, rows, shards
from cachetier.local.catalog.copies import Lag
from cachetier.local.catalog.notes import PinTotals
from cachetier.local.catalog.rows import (
    IS_CLEAN,
    IS_DIRTY,
    IS_DISPUTED,
    IS_QUARANTINED,
    IS_SEALED,
    IS_UNSHOWN,
    NOT_DELETED,
    Row,
)
from cachetier.model.checkpoint import PartCounts, all_sealed
from cachetier.model.lifecycle import (
    DRAINED_SAVES,
    DURABLE_SAVES,
    ENDED_SAVES,
    KEPT_SAVES,
    OPEN_SAVES,
    REPLACED_SAVES,
    SaveState,
    ShardState,
    StateSet,
)
from cachetier.model.names import DURABLE
from cachetier.model.objects import RECORD_BYTES, is_mount
from cachetier.model.policy import LocalStep, surplus

SUPERSEDED_SHOWN = 5  # of each mount
_EACH_RUN = (
    f"WITH RECURSIVE each_run (run) AS (SELECT min(run) FROM saves WHERE {NOT_DELETED} "
    f"UNION ALL SELECT (SELECT min(run) FROM saves WHERE run > each_run.run AND {NOT_DELETED}) "
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
    """The objects of a mount of the S3 door that its bucket does not show yet.

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
class Count:
    """How many there are now, and how many there ever were."""

    now: int = 0
    ever: int = 0


class Unflushed(NamedTuple):
    """A save that is not durable, by its number, and the ranks that sealed it here."""

    number: int
    run: str
    save: UnflushedSave


_CLEAN = f"{IS_CLEAN} AND here"
_DAMAGED_OR_PINNED = (
    "SELECT run, sum(size_bytes), count(*) FROM shards JOIN saves ON number = save "
    f"WHERE {IS_QUARANTINED} GROUP BY run UNION ALL "
    "SELECT saves.run, sum(size_bytes), count(*) FROM pins "
    "JOIN saves ON saves.run = pins.run AND saves.step = pins.step "
    f"JOIN shards ON shards.save = saves.number WHERE {_CLEAN} GROUP BY saves.run"
)
# Rows of objects that no shard stands for: deletions that wait, and uploads that are open.
_RECORDS = (
    f"SELECT run, count(*) * {RECORD_BYTES}, count(*) FROM objects JOIN saves ON number = save "
    f"WHERE {IS_UNSHOWN} AND deleted GROUP BY run UNION ALL "
    f"SELECT run, count(*) * {RECORD_BYTES} + sum(length(head)), count(*) "
    "FROM object_uploads JOIN saves ON number = save WHERE version IS NULL GROUP BY run"
)


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """The bytes on this node, and how far they are.

    ``dirty`` is to be drained, ``kept`` stays here by a policy, ``unwanted`` belongs to saves that
    were superseded or refused, and goes with them. ``evictable_bytes`` go when room is needed.
    ``damage`` counts quarantined shards, ``policy`` the steps that one keeps here.
    """

    dirty: Dirty = field(default_factory=Dirty)
    kept: Dirty = field(default_factory=Dirty)
    unwanted: Dirty = field(default_factory=Dirty)
    unwanted_saves: tuple[tuple[str, int], ...] = ()  # (run, step)
    oldest_dirty_at: float | None = None
    clean_bytes: int = 0
    evictable_bytes: int = 0
    damage: Count = field(default_factory=Count)
    policy: Count = field(default_factory=Count)
    pins: PinTotals = field(default_factory=PinTotals)
    saves: tuple[OpenSave, ...] = ()
    runs: tuple[Run, ...] = ()
    durable: Mapping[str, DurableStep] = field(default_factory=dict)
    dirty_bytes_by_run: Mapping[str, int] = field(default_factory=dict)
    owed: Mapping[str, Lag] = field(default_factory=dict)
    mounts: tuple[MountTotals, ...] = ()


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The shards a rank put into a save here, and their progress at one remote.

    Times in UTC seconds.

    ``uploaded_at``: when the last of the ``uploaded`` shards was verified there.
    """

    rank: int
    shards: int
    size_bytes: int
    uploaded: int
    uploaded_bytes: int
    damaged: int
    first_at: float
    last_at: float
    uploaded_at: float | None


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where a shard is: ``here``, and since when at the one remote; ``copies`` are at others."""

    version: int
    rank: int
    name: str
    size_bytes: int
    digest: int
    state: ShardState
    committed_at: float
    verified_at: float | None
    here: bool
    copies: int


@dataclass(frozen=True, slots=True)
class ShardCount:
    """How many ``shards`` of a save are in one state at one place: see ``ShardPlace``."""

    state: ShardState
    here: bool
    verified: bool
    copied: bool
    shards: int


_AT_REMOTE = "FROM shards LEFT JOIN drains ON drains.version = shards.version AND remote = ?2 "
_PLACE = (
    "SELECT shards.version, rank, name, size_bytes, digest, state, committed_at, verified_at, "
    "here, (SELECT count(*) FROM verified_copies AS others WHERE "
    "others.version = shards.version AND remote <> ?2) "
    f"{_AT_REMOTE} WHERE save = ?1 "
)


def local_bytes(sql: apsw.Connection) -> int:
    """Return the bytes that lie here, by the indexes: a walk over every shard takes too long."""
    in_states = " + ".join(
        f"(SELECT coalesce(sum(size_bytes), 0) FROM shards WHERE {condition})"
        for condition in (ShardState.DIRTY.sql(), f"{IS_QUARANTINED} AND here", _CLEAN)
    )
    return int(sql.execute(f"SELECT {in_states}").get)


def is_draining(sql: apsw.Connection) -> bool:
    """Return whether a shard is dirty that is to be drained: no policy keeps its save here."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM shards JOIN saves ON number = save "
        f"WHERE {IS_DIRTY} "
        f"AND {StateSet((*KEPT_SAVES, *ENDED_SAVES)).sql_not('saves.state')})"
    )
    return bool(sql.execute(query).get)


def dirty_by_save(sql: apsw.Connection) -> dict[int, Dirty]:
    """Return the dirty shards by the number of their save; the index alone is read."""
    query = (
        "SELECT save, count(*), sum(size_bytes), min(version) FROM shards "
        f"WHERE {IS_DIRTY} GROUP BY save"
    )
    return {save: Dirty(*counted) for save, *counted in sql.execute(query)}


def open_saves(sql: apsw.Connection, dirty: Mapping[int, Dirty]) -> list[OpenSave]:
    """Return the saves that are open or local-only, by arrival, with what is ``dirty`` of each."""
    query = (
        "SELECT number, run, step, started_at, world_size, saves.state, count(rank), "
        f"group_concat(iif({IS_SEALED}, rank, NULL)), "
        f"max(iif({IS_SEALED}, ranks_on_node, NULL)), "
        f"coalesce(max({IS_SEALED} AND NOT follows), 0), "
        "max(sealed_at), coalesce(min(EXISTS (SELECT 1 FROM copied_parts AS copy WHERE "
        f"copy.save = number AND copy.rank = parts.rank AND copy.remote = '{DURABLE}')), 0), "
        "(SELECT committed_at FROM shards WHERE version = "
        "(SELECT max(+version) FROM shards WHERE save = saves.number)) "
        "FROM saves LEFT JOIN parts ON parts.save = saves.number "
        f"WHERE {OPEN_SAVES.sql('saves.state')} GROUP BY number"
    )
    return [_open_save(row, dirty) for row in sql.execute(query)]


def unflushed_saves(sql: apsw.Connection) -> list[Unflushed]:
    """Return the saves that are sealed here and will be durable, the newest step first."""
    query = (
        "SELECT number, run, step, save_id, world_size, group_concat(rank) "
        f"FROM saves JOIN parts ON parts.save = number AND {IS_SEALED} "
        f"WHERE {OPEN_SAVES.sql('saves.state')} AND {DRAINED_SAVES.sql('saves.state')} "
        "GROUP BY number ORDER BY step DESC, number DESC"
    )
    found = []
    for number, run, step, save_id, world_size, listed in sql.execute(query):
        ranks = tuple(sorted(_ranks(listed)))
        save = UnflushedSave(step=step, save_id=save_id, world_size=world_size, ranks=ranks)
        found.append(Unflushed(number, run, save))
    return found


def _ranks(listed: str | None) -> list[int]:
    return [int(rank) for rank in listed.split(",")] if listed else []


def _open_save(row: Row, dirty: Mapping[int, Dirty]) -> OpenSave:
    number, run, step, started_at, world_size, state, seen, listed, expected, *rest = row
    final, sealed_at, uploaded, committed_at = rest
    sealed = _ranks(listed)
    whole = all_sealed(PartCounts(seen, len(sealed), expected, bool(final)))
    return OpenSave(
        number,
        run,
        step,
        started_at,
        local_only=state in KEPT_SAVES,
        sealed_at=sealed_at if whole else None,
        grew_at=max(started_at, sealed_at or 0.0, committed_at or 0.0),
        sent=bool(uploaded) and number not in dirty and not is_whole(world_size, sealed),
        dirty=dirty.get(number, Dirty()),
    )


def other_saves(
    sql: apsw.Connection, dirty: Mapping[int, Dirty], numbers: Iterable[int]
) -> list[OtherSave]:
    """Return the saves with these ``numbers``, which ended, with what is ``dirty`` of each."""
    query = "SELECT run, step, state FROM saves WHERE number = ?"
    found = ((dirty[number], sql.execute(query, (number,)).fetchone()) for number in numbers)
    return [
        OtherSave(row[0], row[1], wanted=row[2] not in ENDED_SAVES, dirty=each)
        for each, row in found
        if row is not None
    ]


def mounts(sql: apsw.Connection, dirty: Mapping[int, Dirty]) -> list[MountTotals]:
    """Return the mounts that ever had an object, by name, with what is ``dirty`` of each."""
    counts = f"SELECT save, count(*), min(version) FROM objects WHERE {IS_UNSHOWN} GROUP BY save"
    unshown = {save: counted for save, *counted in sql.execute(counts)}
    disputed = f"SELECT save, count(*) FROM objects WHERE {IS_DISPUTED} GROUP BY save"
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
        f"AND {NOT_DELETED}) FROM each_run WHERE run IS NOT NULL"
    )
    return [Run(*row) for row in sql.execute(query) if not is_mount(row[0])]


def durable_step(sql: apsw.Connection, run: str) -> DurableStep | None:
    """Return the published step of ``run`` whose save began last."""
    query = (
        f"SELECT number, step, started_at FROM saves WHERE run = ? AND {DURABLE_SAVES.sql()} "
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
        f"AND ended.started_at >= ? AND {SaveState.DELETED.sql_not('ended.state')} "
        "JOIN saves AS newer ON newer.run = ended.run AND newer.step = ended.step "
        f"AND {DURABLE_SAVES.sql('+newer.state')} "
        f"WHERE {REPLACED_SAVES.sql('ended.state')} AND EXISTS (SELECT 1 FROM parts "
        f"WHERE save = ended.number AND {IS_SEALED}) "
        "AND NOT EXISTS (SELECT 1 FROM parts WHERE save = newer.number)"
    )
    recorded = (
        f"SELECT run, step, message FROM incidents WHERE at >= ? AND name IS NULL "
        f"AND code IN ({', '.join('?' * len(codes))}) AND NOT EXISTS (SELECT 1 FROM saves "
        "JOIN parts ON parts.save = saves.number WHERE saves.run = incidents.run "
        f"AND saves.step = incidents.step AND {DURABLE_SAVES.sql('+saves.state')})"
    )
    found = [*sql.execute(recorded, (since, *codes)), *sql.execute(known, (since,))]
    return [
        f"{run}/{step}: {how}" for (run, step), how in {row[:2]: row[2] for row in found}.items()
    ]


def damage(sql: apsw.Connection) -> Count:
    """Return how many shards are quarantined."""
    shards = sql.execute(f"SELECT count(*) FROM shards WHERE {IS_QUARANTINED}").get
    ever = sql.execute(
        "SELECT count(*) FROM incidents WHERE code = 'integrity' AND name IS NOT NULL"
    ).get
    return Count(shards, ever + notes.forgotten(sql, notes.DAMAGED_SHARDS))


def kept_by_policy(sql: apsw.Connection) -> Count:
    """Return how many steps a policy keeps here."""
    query = (
        f"SELECT coalesce(sum({KEPT_SAVES.sql()}), 0), count(*) FROM saves "
        "WHERE local_only_at IS NOT NULL"
    )
    steps, ever = sql.execute(query).get
    return Count(steps, ever + notes.forgotten(sql, notes.LOCAL_ONLY_STEPS))


def node_totals(
    sql: apsw.Connection,
    remotes: Sequence[str],
    active_since: float,
    lent: Collection[int] = (),
) -> NodeTotals:
    """Return the totals of the node, read in one transaction.

    Args:
        sql: A connection that reads.
        remotes: The remotes of the settings.
        active_since: Runs whose newest save began before are left out, unless they have something
            here that is not durable.
        lent: The versions of shards that somebody reads: what they have is not evictable.
    """
    sql.execute("BEGIN")  # one transaction, so that the figures belong together
    try:
        return _read(sql, remotes, active_since, lent)
    finally:
        if sql.in_transaction:
            sql.execute("ROLLBACK")  # nothing was written; a COMMIT reads, and may fail as well


def _read(
    sql: apsw.Connection, remotes: Sequence[str], active_since: float, lent: Collection[int]
) -> NodeTotals:
    by_save = dirty_by_save(sql)
    saves = open_saves(sql, by_save)
    ended = by_save.keys() - {save.number for save in saves}
    others = other_saves(sql, by_save, sorted(ended))
    awaited: list[OpenSave | OtherSave] = [each for each in saves if not each.local_only]
    awaited += [each for each in others if each.wanted]
    dirty = _sum(each.dirty for each in awaited)
    by_run = _dirty_by_run(awaited)
    runs = _runs(sql, {save.run for save in saves} | by_run.keys(), active_since)
    known_mounts = mounts(sql, by_save)
    return NodeTotals(
        dirty=dirty,
        kept=_sum(each.dirty for each in saves if each.local_only),
        unwanted=_sum(each.dirty for each in others if not each.wanted),
        unwanted_saves=tuple((each.run, each.step) for each in others if not each.wanted),
        oldest_dirty_at=committed_at(sql, dirty.oldest),
        clean_bytes=_clean_bytes(sql),
        evictable_bytes=_evictable_bytes(sql, saves, lent),
        damage=damage(sql),
        policy=kept_by_policy(sql),
        pins=notes.pin_totals(sql),
        saves=tuple(saves),
        runs=tuple(runs),
        durable=_durable(sql, runs),
        dirty_bytes_by_run=by_run,
        owed={name: _owed(sql, name, saves, known_mounts) for name in remotes},
        mounts=tuple(known_mounts),
    )


def _dirty_by_run(saves: Iterable[OpenSave | OtherSave]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for save in saves:
        if save.dirty.shards:
            counted[save.run] = counted.get(save.run, 0) + save.dirty.size_bytes
    return counted


def _runs(sql: apsw.Connection, at_stake: Collection[str], active_since: float) -> list[Run]:
    runs = every_run(sql)
    return [run for run in runs if run.newest_at >= active_since or run.name in at_stake]


def _durable(sql: apsw.Connection, runs: Iterable[Run]) -> dict[str, DurableStep]:
    found = ((run.name, durable_step(sql, run.name)) for run in runs)
    return {name: step for name, step in found if step is not None}


def _owed(
    sql: apsw.Connection,
    remote: str,
    saves: Iterable[OpenSave],
    mounts: Sequence[MountTotals],
) -> Lag:
    if remote != DURABLE:
        lag = copies.lag_of(sql, remote)
        return replace(lag, since=copies.waiting_since(sql, remote)) if lag.shards else lag
    waiting = [save for save in saves if save.dirty.shards and not save.local_only]
    begun = [save.sealed_at for save in waiting] + [mount.oldest_at for mount in mounts]
    since = min((at for at in begun if at is not None), default=None)
    of_mounts = _sum(mount.dirty for mount in mounts)
    if any(shards.configured_replicas(sql).values()):  # dirty may mean: there, but not at a replica
        lag = copies.durable_lag(sql, remote)
    else:
        dirty = _sum(save.dirty for save in waiting)
        lag = Lag(len(waiting), dirty.shards, dirty.size_bytes)
    return replace(
        lag,
        shards=lag.shards + of_mounts.shards,
        size_bytes=lag.size_bytes + of_mounts.size_bytes,
        since=since,
    )


def held_by_run(sql: apsw.Connection) -> dict[str, tuple[int, int]]:
    """Return how many bytes and shards each run has here that make no room by themselves.

    They are not durable, damaged, or pinned, or records of objects. Local-only steps that go for a
    put that waits are not counted. What becomes clean in between is counted twice, not left out.
    """
    by_save = dirty_by_save(sql)
    going = {save.number for save in _removable(sql, open_saves(sql, by_save))}
    held: dict[str, tuple[int, int]] = {}
    staying = sorted(by_save.keys() - going)
    others = (
        (each.run, each.dirty.size_bytes, each.dirty.shards)
        for each in other_saves(sql, by_save, staying)
    )
    rest = *sql.execute(_DAMAGED_OR_PINNED), *sql.execute(_RECORDS)
    for run, size_bytes, count in (*others, *rest):
        before = held.get(run, (0, 0))
        held[run] = before[0] + size_bytes, before[1] + count
    return held


def _sum(parts: Iterable[Dirty]) -> Dirty:
    found = list(parts)
    return Dirty(
        sum(each.shards for each in found),
        sum(each.size_bytes for each in found),
        min((each.oldest for each in found if each.oldest is not None), default=None),
    )


def _clean_bytes(sql: apsw.Connection) -> int:
    """Return the bytes here that every required remote has, pinned or not."""
    return int(sql.execute(f"SELECT coalesce(sum(size_bytes), 0) FROM shards WHERE {_CLEAN}").get)


def _evictable_bytes(sql: apsw.Connection, saves: Sequence[OpenSave], lent: Collection[int]) -> int:
    """Return the bytes that can go: clean unpinned shards, and local-only steps of ``saves``.

    What is lent stays until its readers are done.
    """
    removable = _removable(sql, saves)
    lent_bytes = _lent_bytes(sql, lent, [save.number for save in removable])
    of_steps = sum(save.dirty.size_bytes for save in removable)
    return _clean_bytes(sql) - _pinned_clean_bytes(sql) + of_steps - lent_bytes


def _lent_bytes(sql: apsw.Connection, lent: Collection[int], removable: Collection[int]) -> int:
    """Return how many of the evictable bytes are lent; ``removable`` saves are local-only."""
    query = (
        "SELECT coalesce(sum(shards.size_bytes), 0) FROM json_each(?) AS lent "
        "CROSS JOIN shards ON shards.version = lent.value "
        "JOIN saves ON saves.number = shards.save WHERE shards.file_id IS NOT NULL AND ("
        f"{IS_DIRTY} AND shards.save IN (SELECT value FROM json_each(?)) "
        f"OR {IS_CLEAN} AND {notes.NOT_PINNED})"
    )
    return int(sql.execute(query, (json.dumps(list(lent)), json.dumps(list(removable)))).get)


def _pinned_clean_bytes(sql: apsw.Connection) -> int:
    query = (
        "SELECT coalesce(sum(size_bytes), 0) FROM pins "
        "JOIN saves ON saves.run = pins.run AND saves.step = pins.step "
        f"JOIN shards ON shards.save = saves.number WHERE {_CLEAN}"
    )
    return int(sql.execute(query).get)


def _removable(sql: apsw.Connection, saves: Sequence[OpenSave]) -> list[OpenSave]:
    """Return the local-only steps that go for a put that waits.

    All clean ones go first, so the newest whole step of a run that is left is one of ``saves``.
    """
    kept = {save.number: save for save in saves if save.local_only}
    if not kept:
        return []
    damaged = set(rows.column(sql, f"SELECT save FROM shards WHERE {IS_QUARANTINED}"))
    whole = {save.number for save in saves if save.sealed_at is not None} - damaged
    return [
        kept[save.number]
        for steps in _unfinished(sql, whole).values()
        for save in surplus(steps, 1)
        if save.number in kept and not notes.is_pinned(sql, save.run, save.step)
    ]


def _unfinished(sql: apsw.Connection, whole: Collection[int]) -> dict[str, list[LocalStep]]:
    """Return the saves that are not published, run by run."""
    query = f"SELECT {rows.SAVE_COLUMNS} {rows.FROM_SAVES} {OPEN_SAVES.sql()}"
    by_run: dict[str, list[LocalStep]] = {}
    for save in map(rows.save_of, sql.execute(query)):
        by_run.setdefault(save.run, []).append(LocalStep(save, save.number in whole))
    return by_run


def rank_progress(sql: apsw.Connection, number: int, remote: str) -> list[RankProgress]:
    """Return how far each rank of a save is, by rank; those that put nothing are left out."""
    query = (
        "SELECT rank, count(*), sum(size_bytes), count(verified_at), "
        "coalesce(sum(iif(verified_at IS NOT NULL, size_bytes, 0)), 0), "
        f"sum({IS_QUARANTINED}), min(committed_at), max(committed_at), max(verified_at) "
        f"{_AT_REMOTE} WHERE save = ?1 GROUP BY rank ORDER BY rank"
    )
    return [RankProgress(*row) for row in sql.execute(query, (number, remote))]


def shard_places(
    sql: apsw.Connection, number: int, remote: str, start: int, limit: int
) -> list[ShardPlace]:
    """Return ``limit`` shards of a save from the ``start``-th on, by rank and arrival."""
    query = f"{_PLACE} ORDER BY rank, shards.version LIMIT ?3 OFFSET ?4"
    return [_place_of(row) for row in sql.execute(query, (number, remote, limit, start))]


def shard_place(sql: apsw.Connection, number: int, remote: str, version: int) -> ShardPlace | None:
    """Return where one shard of a save is; None: this version has none."""
    row = sql.execute(f"{_PLACE} AND shards.version = ?3", (number, remote, version)).fetchone()
    return None if row is None else _place_of(row)


def shard_counts(sql: apsw.Connection, number: int, remote: str) -> list[ShardCount]:
    """Return how many shards of a save are where."""
    query = (
        "SELECT state, here, verified_at IS NOT NULL, EXISTS (SELECT 1 FROM verified_copies "
        "AS others WHERE others.version = shards.version AND remote <> ?2), count(*) "
        f"{_AT_REMOTE} WHERE save = ?1 GROUP BY 1, 2, 3, 4"
    )
    return [
        ShardCount(ShardState(state), bool(here), bool(verified), bool(copied), shards)
        for state, here, verified, copied, shards in sql.execute(query, (number, remote))
    ]


def _place_of(row: rows.Row) -> ShardPlace:
    version, rank, name, size_bytes, digest, state, committed_at, verified_at, here, copies = row
    what = version, rank, name, size_bytes, rows.unpacked(digest), ShardState(state)
    return ShardPlace(*what, committed_at, verified_at, bool(here), copies)
