"""What the node says of itself: one stable object for ``GET /v1/status`` and ``cachetier status``.

Source: docs/http.md, "Status".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cachetier import __version__
from cachetier.clock import Clock
from cachetier.local import queries, replica_queries
from cachetier.local.records import Backlog
from cachetier.local.replica_queries import Lag
from cachetier.local.store import Store
from cachetier.metrics import Levels
from cachetier.model.policy import Policy
from cachetier.model.replication import DURABLE
from cachetier.remote.settings import RemoteSettings
from cachetier.sizes import shown_span

PENDING_LIMIT = 50
LONG_AWAY_SECONDS = 300.0
SKIPPED_STEPS = 3  # so many in a row are no accident


@dataclass(frozen=True, slots=True)
class Machine:
    """What start-up found out: it does not change while the service runs."""

    cache_dir: str
    filesystem: str
    disk: dict[str, bool]
    sqlite_version: str
    remotes: tuple[RemoteSettings, ...]  # the durable one first
    when_full: str
    policy: Policy
    started_at: float


@dataclass(frozen=True, slots=True)
class Moment:
    """What only the service knows at this moment."""

    state: str
    reason: str | None
    drain: dict[str, Any]
    socket: str
    http: str | None
    connections: int
    etas: Callable[[Sequence[Backlog]], Mapping[int, float]]
    warnings: Sequence[str] = ()


def levels_of(
    store: Store,
    clock: Clock,
    *,
    remotes: Sequence[str],
    connections: int,
    remote_refused: bool,
    busy_ranks: int,
) -> Levels:
    """Measure the node for a scrape."""
    totals = store.read(queries.totals)
    oldest, kept = totals.oldest_dirty_at, totals.local_only
    return Levels(
        dirty_bytes=totals.dirty_bytes,
        dirty_shards=totals.dirty_shards,
        oldest_dirty_seconds=max(0.0, clock.now() - oldest) if oldest is not None else 0.0,
        used_bytes=store.space.used_bytes,
        capacity_bytes=store.space.capacity_bytes,
        quarantined_shards=totals.quarantined_shards,
        local_only_bytes=kept.size_bytes,
        local_only_steps=kept.declared_steps,
        fenced=store.fenced is not None,
        remote_refused=remote_refused,
        busy_ranks=busy_ranks,
        open_connections=connections,
        waiting_puts_bytes=store.space.wanted_bytes,
        pending_bytes={name: lag_at(store, name).size_bytes for name in remotes},
    )


def status_of(store: Store, clock: Clock, machine: Machine, moment: Moment) -> dict[str, Any]:
    """Return the status object."""
    totals = store.read(queries.totals)
    now, oldest = clock.now(), totals.oldest_dirty_at
    return {
        "version": __version__,
        "store_id": store.store_id,
        "pid": os.getpid(),
        "state": moment.state,
        "reason": moment.reason,
        "started_at": machine.started_at,
        "uptime_seconds": max(0.0, now - machine.started_at),
        "capacity_bytes": store.space.capacity_bytes,
        "used_bytes": store.space.used_bytes,
        "dirty_bytes": totals.dirty_bytes,
        "clean_bytes": max(
            0, totals.local_bytes - totals.dirty_bytes - totals.local_only.size_bytes
        ),
        "local_only": {**asdict(machine.policy), **asdict(totals.local_only)},
        "waiting_bytes": store.space.wanted_bytes,
        "dirty_shards": totals.dirty_shards,
        "oldest_dirty_seconds": max(0.0, now - oldest) if oldest is not None else 0.0,
        "quarantined_shards": totals.quarantined_shards,
        "fenced": store.fenced,
        "when_full": machine.when_full,
        "disk": {
            "directory": machine.cache_dir,
            "filesystem": machine.filesystem,
            "free_bytes": store.files.free_bytes(),
            **machine.disk,
        },
        "remotes": [_remote(store, remote, moment.drain) for remote in machine.remotes],
        "drain": {name: value for name, value in moment.drain.items() if name != "remotes"},
        "pending": pending_of(store, moment),
        "socket": moment.socket,
        "http": moment.http,
        "connections": moment.connections,
        "sqlite_version": machine.sqlite_version,
        "warnings": _warnings(store, machine, moment, now),
    }


def lag_at(store: Store, remote: str) -> Lag:
    """Return what a remote of the settings is still owed."""
    if remote == DURABLE:
        return store.read(lambda sql: replica_queries.durable_lag(sql, remote))
    return store.read(lambda sql: replica_queries.lag_of(sql, remote))


def _remote(store: Store, remote: RemoteSettings, drain: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a remote: as it was set, what it is still owed, and as its drain finds it."""
    lag = lag_at(store, remote.name)
    described: dict[str, Any] = {
        "name": remote.name,
        "role": remote.role,
        "required": remote.role == "durable" or remote.required,
        "url": remote.url,
        "endpoint": remote.endpoint,
        "verify": remote.verify,
        "conditional_writes": remote.conditional_writes,
        "pending_steps": lag.steps,
        "pending_shards": lag.shards,
        "pending_bytes": lag.size_bytes,
        "given_up_steps": lag.given_up,
        "state": "ok",
        "reason": "",
    }
    return described | dict(_found(remote, drain))


def _found(remote: RemoteSettings, drain: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (each for each in drain.get("remotes", ()) if each["name"] == remote.name)
    return next(found, {})


def _warnings(store: Store, machine: Machine, moment: Moment, now: float) -> list[str]:
    """Name what was chosen, or found, that weakens a promise or costs speed."""
    found = []
    for remote in machine.remotes:
        if not remote.conditional_writes:
            where = "" if remote.role == "durable" else f" at {remote.name}"
            found.append(
                f"conditional_writes is off{where}: two nodes that save one step may overwrite "
                "each other"
            )
        found += _warnings_of_replica(store, remote, moment, now)
    found += moment.warnings
    if machine.filesystem in ("tmpfs", "ramfs"):
        found.append("the cache is in memory: nothing survives the loss of power")
    if not machine.disk.get("direct_io", False):
        found.append("the disk refuses O_DIRECT: puts go through the page cache, slower")
    if not machine.disk.get("attributes", False):
        found.append("the disk keeps no extended attributes: a lost catalog could not be rebuilt")
    every = machine.policy.durable_every
    if every > 1:
        runs = store.read(lambda sql: queries.never_durable_runs(sql, every, SKIPPED_STEPS))
        found += [
            f"durable_every {every} divides no step of {run}: none is drained" for run in runs
        ]
    return found


def _warnings_of_replica(
    store: Store, remote: RemoteSettings, moment: Moment, now: float
) -> list[str]:
    if remote.role == "durable":
        return []
    found = []
    described = _found(remote, moment.drain)
    away_seconds = now - described["since"] if described else 0.0
    if (
        described
        and described["state"] in ("unreachable", "refused")
        and away_seconds > LONG_AWAY_SECONDS
    ):
        costs = (
            "nothing is evicted here until it is back"
            if remote.required
            else "steps that are evicted meanwhile never get there"
        )
        since = shown_span(away_seconds)
        found.append(f"replica {remote.name} is {described['state']} since {since}: {costs}")
    given_up = lag_at(store, remote.name).given_up
    if given_up:
        steps = "1 step" if given_up == 1 else f"{given_up} steps"
        found.append(
            f"replica {remote.name} never gets {steps}: bytes left this node before they were "
            "there; `required = true` would keep them"
        )
    return found


def pending_of(store: Store, moment: Moment) -> list[dict[str, Any]]:
    """List the steps with something left to drain, oldest first, at most ``PENDING_LIMIT``.

    ``eta_seconds`` is until it is durable, whatever the replicas; null while nobody can tell.
    """
    backlog = store.read(queries.backlog)
    etas = moment.etas(backlog)
    return [
        {
            "run": each.save.run,
            "step": each.save.step,
            "save_id": each.save.save_id,
            "state": str(each.save.state),
            "shards": each.shards,
            "dirty_shards": each.dirty_shards,
            "dirty_bytes": each.dirty_bytes,
            "size_bytes": each.size_bytes,
            "started_at": each.save.started_at,
            "eta_seconds": etas.get(each.save.number),
        }
        for each in backlog[:PENDING_LIMIT]
    ]
