"""The totals of the node at one instant, read from the catalog in one transaction."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import apsw

from cachetier.local.catalog import exposure_queries, pins, replica_queries, rows
from cachetier.local.catalog.exposure_queries import (
    Damage,
    Dirty,
    DurableStep,
    Kept,
    MountTotals,
    OpenSave,
    OtherSave,
    Run,
)
from cachetier.local.catalog.pins import PinTotals
from cachetier.local.catalog.replica_queries import Lag
from cachetier.model.names import DURABLE
from cachetier.model.objects import RECORD_BYTES
from cachetier.model.policy import LocalStep, surplus

_CLEAN = "shards.state = 'clean' AND (shards.file_id IS NOT NULL OR shards.inline)"
_DAMAGED_OR_PINNED = (
    "SELECT run, sum(size_bytes), count(*) FROM shards JOIN saves ON number = save "
    "WHERE shards.state = 'quarantined' GROUP BY run UNION ALL "
    "SELECT saves.run, sum(size_bytes), count(*) FROM pins "
    "JOIN saves ON saves.run = pins.run AND saves.step = pins.step "
    f"JOIN shards ON shards.save = saves.number WHERE {_CLEAN} GROUP BY saves.run"
)
# Rows of objects that no shard stands for: deletions that wait, and uploads that are open.
_RECORDS = (
    f"SELECT run, count(*) * {RECORD_BYTES}, count(*) FROM objects JOIN saves ON number = save "
    "WHERE objects.state <> 'clean' AND deleted GROUP BY run UNION ALL "
    f"SELECT run, count(*) * {RECORD_BYTES} + sum(length(head)), count(*) "
    "FROM object_uploads JOIN saves ON number = save WHERE version IS NULL GROUP BY run"
)


@dataclass(frozen=True, slots=True)
class Owed:
    """What a remote is owed; ``since``: when the first of it was sealed, None if nothing is."""

    lag: Lag
    since: float | None


@dataclass(frozen=True, slots=True)
class NodeTotals:
    """What lies here and how far it is: what is not durable, by what becomes of it.

    ``dirty`` is to be drained, ``kept`` stays here by a policy, ``unwanted`` belongs to saves that
    were superseded or refused, and goes with them. ``evictable_bytes`` go when room is needed.
    """

    dirty: Dirty = field(default_factory=Dirty)
    kept: Dirty = field(default_factory=Dirty)
    unwanted: Dirty = field(default_factory=Dirty)
    unwanted_saves: tuple[tuple[str, int], ...] = ()  # (run, step)
    oldest_dirty_at: float | None = None
    clean_bytes: int = 0
    evictable_bytes: int = 0
    damage: Damage = field(default_factory=Damage)
    policy: Kept = field(default_factory=Kept)
    pins: PinTotals = field(default_factory=PinTotals)
    saves: tuple[OpenSave, ...] = ()
    runs: tuple[Run, ...] = ()
    durable: Mapping[str, DurableStep] = field(default_factory=dict)
    dirty_bytes_by_run: Mapping[str, int] = field(default_factory=dict)
    owed: Mapping[str, Owed] = field(default_factory=dict)
    mounts: tuple[MountTotals, ...] = ()


def node_totals(
    sql: apsw.Connection,
    remotes: Sequence[str],
    active_since: float,
    lent: Collection[int] = (),
) -> NodeTotals:
    """Return what the catalog says.

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
    by_save = exposure_queries.dirty_by_save(sql)
    saves = exposure_queries.open_saves(sql, by_save)
    ended = by_save.keys() - {save.number for save in saves}
    others = exposure_queries.other_saves(sql, by_save, sorted(ended))
    awaited: list[OpenSave | OtherSave] = [each for each in saves if not each.local_only]
    awaited += [each for each in others if each.wanted]
    dirty = _sum(each.dirty for each in awaited)
    by_run = _dirty_by_run(awaited)
    runs = _runs(sql, {save.run for save in saves} | by_run.keys(), active_since)
    mounts = exposure_queries.mounts(sql, by_save)
    return NodeTotals(
        dirty=dirty,
        kept=_sum(each.dirty for each in saves if each.local_only),
        unwanted=_sum(each.dirty for each in others if not each.wanted),
        unwanted_saves=tuple((each.run, each.step) for each in others if not each.wanted),
        oldest_dirty_at=exposure_queries.committed_at(sql, dirty.oldest),
        clean_bytes=_clean_bytes(sql),
        evictable_bytes=_evictable_bytes(sql, saves, lent),
        damage=exposure_queries.damage(sql),
        policy=exposure_queries.kept_by_policy(sql),
        pins=pins.totals(sql),
        saves=tuple(saves),
        runs=tuple(runs),
        durable=_durable(sql, runs),
        dirty_bytes_by_run=by_run,
        owed={name: _owed(sql, name, saves, mounts) for name in remotes},
        mounts=tuple(mounts),
    )


def _dirty_by_run(saves: Iterable[OpenSave | OtherSave]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for save in saves:
        if save.dirty.shards:
            counted[save.run] = counted.get(save.run, 0) + save.dirty.size_bytes
    return counted


def _runs(sql: apsw.Connection, at_stake: Collection[str], active_since: float) -> list[Run]:
    runs = exposure_queries.every_run(sql)
    return [run for run in runs if run.newest_at >= active_since or run.name in at_stake]


def _durable(sql: apsw.Connection, runs: Iterable[Run]) -> dict[str, DurableStep]:
    found = ((run.name, exposure_queries.durable_step(sql, run.name)) for run in runs)
    return {name: step for name, step in found if step is not None}


def _owed(
    sql: apsw.Connection,
    remote: str,
    saves: Iterable[OpenSave],
    mounts: Sequence[MountTotals],
) -> Owed:
    if remote != DURABLE:
        lag = replica_queries.lag_of(sql, remote)
        return Owed(lag, replica_queries.waiting_since(sql, remote) if lag.shards else None)
    waiting = [save for save in saves if save.dirty.shards and not save.local_only]
    begun = [save.sealed_at for save in waiting] + [mount.oldest_at for mount in mounts]
    since = min((at for at in begun if at is not None), default=None)
    of_mounts = _sum(mount.dirty for mount in mounts)
    if any(replica_queries.configured(sql).values()):  # dirty may mean: there, but not at a replica
        lag = replica_queries.durable_lag(sql, remote)
    else:
        dirty = _sum(save.dirty for save in waiting)
        lag = Lag(len(waiting), dirty.shards, dirty.size_bytes, 0)
    shards, size_bytes = of_mounts.shards, of_mounts.size_bytes
    lag = replace(lag, shards=lag.shards + shards, size_bytes=lag.size_bytes + size_bytes)
    return Owed(lag, since)


def held_by_run(sql: apsw.Connection) -> dict[str, tuple[int, int]]:
    """Return how many bytes and shards each run has here that make no room by themselves.

    They are not durable, damaged, or pinned, or records of objects. Local-only steps that go for a
    put that waits are not counted. What becomes clean in between is counted twice, not left out.
    """
    by_save = exposure_queries.dirty_by_save(sql)
    going = {save.number for save in _removable(sql, exposure_queries.open_saves(sql, by_save))}
    held: dict[str, tuple[int, int]] = {}
    staying = sorted(by_save.keys() - going)
    others = (
        (each.run, each.dirty.size_bytes, each.dirty.shards)
        for each in exposure_queries.other_saves(sql, by_save, staying)
    )
    rest = *sql.execute(_DAMAGED_OR_PINNED), *sql.execute(_RECORDS)
    for run, size_bytes, shards in (*others, *rest):
        before = held.get(run, (0, 0))
        held[run] = before[0] + size_bytes, before[1] + shards
    return held


def _sum(parts: Iterable[Dirty]) -> Dirty:
    found = list(parts)
    return Dirty(
        sum(each.shards for each in found),
        sum(each.size_bytes for each in found),
        min((each.oldest for each in found if each.oldest is not None), default=None),
    )


def _clean_bytes(sql: apsw.Connection) -> int:
    """Return what lies here and is at every remote that is required, pinned or not."""
    return int(sql.execute(f"SELECT coalesce(sum(size_bytes), 0) FROM shards WHERE {_CLEAN}").get)


def _evictable_bytes(sql: apsw.Connection, saves: Sequence[OpenSave], lent: Collection[int]) -> int:
    """Return what goes: what is clean and not pinned, and local-only steps; ``saves`` are open.

    What is lent stays until its readers are done.
    """
    removable = _removable(sql, saves)
    lent_bytes = _lent_bytes(sql, lent, [save.number for save in removable])
    of_steps = sum(save.dirty.size_bytes for save in removable)
    return _clean_bytes(sql) - _pinned_clean_bytes(sql) + of_steps - lent_bytes


def _lent_bytes(sql: apsw.Connection, lent: Collection[int], removable: Collection[int]) -> int:
    """Return what of the evictable bytes is lent; ``removable`` saves are local-only."""
    query = (
        "SELECT coalesce(sum(shards.size_bytes), 0) FROM json_each(?) AS lent "
        "CROSS JOIN shards ON shards.version = lent.value "
        "JOIN saves ON saves.number = shards.save WHERE shards.file_id IS NOT NULL AND ("
        "shards.state = 'dirty' AND shards.save IN (SELECT value FROM json_each(?)) "
        "OR shards.state = 'clean' AND NOT EXISTS (SELECT 1 FROM pins "
        "WHERE pins.run = saves.run AND pins.step = saves.step))"
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
    damaged = {row[0] for row in sql.execute("SELECT save FROM shards WHERE state = 'quarantined'")}
    whole = {save.number for save in saves if save.sealed_at is not None} - damaged
    return [
        kept[save.number]
        for steps in _unfinished(sql, whole).values()
        for save in surplus(steps, 1)
        if save.number in kept and not pins.is_pinned(sql, save.run, save.step)
    ]


def _unfinished(sql: apsw.Connection, whole: Collection[int]) -> dict[str, list[LocalStep]]:
    """Return the saves that are not published, run by run."""
    query = f"SELECT {rows.SAVE_COLUMNS} FROM saves WHERE state IN ('open', 'local_only')"
    by_run: dict[str, list[LocalStep]] = {}
    for save in map(rows.save_of, sql.execute(query)):
        by_run.setdefault(save.run, []).append(LocalStep(save, save.number in whole))
    return by_run
