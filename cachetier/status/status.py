"""What the node says of itself: one stable object for ``GET /v1/status`` and ``cachetier status``.

Its figures are those of ``Levels``, as Prometheus has them.

Source: docs/http.md, "Status".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cachetier import __version__
from cachetier.clock import Clock
from cachetier.local.catalog import queries
from cachetier.local.catalog.records import Backlog
from cachetier.local.store import Store
from cachetier.remote.settings import RemoteSettings
from cachetier.status.warnings import Machine, cautions
from cachetier.steps.views import view_of_save
from cachetier.telemetry.node_snapshot import Levels, RemoteLevel

PENDING_LIMIT = 50


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What only the service knows at this moment."""

    state: str
    reason: str | None
    drain: Mapping[str, Any]
    levels: Levels
    socket: str
    http: str | None
    etas: Callable[[Sequence[Backlog]], Mapping[int, float]]
    warnings: Sequence[str] = ()


def status_of(store: Store, clock: Clock, machine: Machine, moment: ServiceState) -> dict[str, Any]:
    """Return the status object."""
    now, found_remotes = clock.now(), _by_name(moment.drain)
    backlog = store.look(queries.backlog)
    return {
        "version": __version__,
        "store_id": store.store_id,
        "pid": os.getpid(),
        "state": moment.state,
        "reason": moment.reason,
        "started_at": machine.started_at,
        "uptime_seconds": max(0.0, now - machine.started_at),
        **_figures(moment.levels),
        "local_only": _local_only(machine, moment.levels),
        "fenced": store.fenced,
        "when_full": machine.when_full,
        "disk": {
            "directory": machine.cache_dir,
            "filesystem": machine.filesystem,
            "free_bytes": store.files.free_bytes(),
            **machine.disk,
        },
        "remotes": [
            _remote(remote, level, found_remotes.get(remote.name, {}))
            for remote, level in zip(machine.remotes, moment.levels.remotes, strict=True)
        ],
        "drain": {name: value for name, value in moment.drain.items() if name != "remotes"},
        "pending": pending_of(store, moment, backlog),
        "pending_steps": len(backlog),
        "socket": moment.socket,
        "http": moment.http,
        "sqlite_version": machine.sqlite_version,
        "warnings": [
            *cautions(store, machine, moment.levels, found_remotes, now),
            *moment.warnings,
        ],
    }


def _figures(levels: Levels) -> dict[str, Any]:
    return {
        "capacity_bytes": levels.standing.capacity_bytes,
        "used_bytes": levels.standing.used_bytes,
        "dirty_bytes": levels.dirty_bytes,
        "clean_bytes": levels.clean_bytes,
        "evictable_bytes": levels.evictable_bytes,
        "waiting_bytes": levels.standing.waiting_puts_bytes,
        "dirty_shards": levels.dirty_shards,
        "oldest_dirty_seconds": levels.oldest_dirty_seconds,
        "quarantined_shards": levels.quarantined_shards,
        "unwanted": {"shards": levels.unwanted_shards, "size_bytes": levels.unwanted_bytes},
        "pinned": {"steps": levels.pinned_steps, "size_bytes": levels.pinned_bytes},
        "exposure": [asdict(run) for run in levels.runs],
        "exposure_objective_seconds": levels.standing.exposure_objective_seconds,
        "incomplete": {
            "steps": levels.incomplete_steps,
            "oldest_seconds": levels.oldest_incomplete_seconds,
        },
        "eta_seconds": levels.remotes[0].eta_seconds,
        "connections": levels.standing.open_connections,
    }


def _local_only(machine: Machine, levels: Levels) -> dict[str, Any]:
    return {
        **asdict(machine.policy),
        "steps": levels.local_only_steps,
        "shards": levels.local_only_shards,
        "size_bytes": levels.local_only_bytes,
        "declared_steps": levels.local_only_total,
    }


def _by_name(drain: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each for each in drain.get("remotes", ())}


def _remote(remote: RemoteSettings, level: RemoteLevel, found: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a remote: as it was set, as its drain finds it, and what it is still owed."""
    return {
        "name": remote.name,
        "role": remote.role,
        "required": remote.role == "durable" or remote.required,
        "url": remote.url,
        "endpoint": remote.endpoint,
        "verify": remote.verify,
        "conditional_writes": remote.conditional_writes,
        "reason": "",
        **found,
        **asdict(level),
    }


def pending_of(
    store: Store, moment: ServiceState, backlog: Sequence[Backlog]
) -> list[dict[str, Any]]:
    """List the steps with something left to drain, oldest first, at most ``PENDING_LIMIT``.

    ``eta_seconds`` is until it is durable, whatever the replicas; null while nobody can tell.
    """
    etas = moment.etas(backlog)
    return [
        {
            "run": each.save.run,
            "step": each.save.step,
            "save_id": each.save.save_id,
            "state": _shown_state(store, each),
            "shards": each.shards,
            "dirty_shards": each.dirty_shards,
            "dirty_bytes": each.dirty_bytes,
            "size_bytes": each.size_bytes,
            "started_at": each.save.started_at,
            "eta_seconds": etas.get(each.save.number),
        }
        for each in backlog[:PENDING_LIMIT]
    ]


def _shown_state(store: Store, each: Backlog) -> str:
    """Return the state of a save in the word that ``cachetier ls`` has for it."""
    number = each.save.number
    parts, summary = store.look(
        lambda sql: (queries.parts_of(sql, number), queries.summary_of(sql, number))
    )
    return view_of_save(each.save, parts, summary).state
