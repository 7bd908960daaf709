"""The node at one instant: the one snapshot that status, ``top`` and Prometheus are made from.

What the catalog says is one part of it (``NodeTotals``), what the drains say another
(``DrainSnapshot``); nothing of either is copied. What the service knows without its catalog stands
apart, so that Prometheus gets it even while the catalog cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachetier_client.clock import Clock

from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.local.catalog.copies import Lag
from cachetier.local.catalog.figures import (
    MountTotals,
    NodeTotals,
    SupersededObject,
    node_totals,
)
from cachetier.local.open_files import Lent
from cachetier.local.store import Store
from cachetier.objects.cluster import WaitingMarker
from cachetier.restore.pace import RestoreFigures
from cachetier.status import exposure
from cachetier.status.exposure import IncompleteSaves, RunExposure


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """The service's own knowledge of the node, which does not need the catalog.

    ``drains`` are those of all remotes by their names, of the durable one first.
    """

    state: str = "ready"
    reason: str | None = None
    fenced: bool = False
    used_bytes: int = 0
    memory_bytes: int = 0
    kept_for_peers_bytes: int = 0
    lent: Lent = field(default_factory=Lent)
    capacity_bytes: int = 0
    waiting_puts_bytes: int = 0
    open_connections: int = 0
    busy_ranks: int = 0
    exposure_objective_seconds: float = 0.0
    started_at: float = 0.0
    drains: Mapping[str, DrainSnapshot] = field(default_factory=dict)
    restore: RestoreFigures = field(default_factory=RestoreFigures)


@dataclass(frozen=True, slots=True)
class RemoteProgress:
    """How far the drain to one remote is.

    ``eta_seconds``: until what waits now is there, at the measured rate; None while nobody can
    tell. ``last_progress_seconds``: since something got there, 0 while there is nothing to do.
    """

    name: str
    pending: Lag = field(default_factory=Lag)
    eta_seconds: float | None = None
    last_progress_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class MountExposure:
    """The loss of one mount of the S3 door if this node were lost now.

    ``objects`` are acknowledged and not visible in the bucket yet, deletions among them, the oldest
    of them since ``exposure_seconds``; about ``conflicts`` of them a person has to decide.
    ``dirty_bytes`` are theirs, and those of uploads that are not complete. ``superseded`` are the
    last that the bucket never shows, as something newer was put there, or deleted.
    """

    mount: str
    objects: int
    dirty_bytes: int
    exposure_seconds: float
    conflicts: int
    superseded: tuple[SupersededObject, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The whole node; the durable remote is the first of ``remotes``.

    ``principals`` are those with a quota: see ``Quotas.described``.
    """

    service: ServiceSnapshot = field(default_factory=ServiceSnapshot)
    totals: NodeTotals = field(default_factory=NodeTotals)
    oldest_dirty_seconds: float = 0.0
    incomplete: IncompleteSaves = field(default_factory=IncompleteSaves)
    runs: tuple[RunExposure, ...] = ()
    mounts: tuple[MountExposure, ...] = ()
    markers: tuple[WaitingMarker, ...] = ()
    remotes: tuple[RemoteProgress, ...] = ()
    principals: tuple[dict[str, Any], ...] = ()


def snapshot_of(store: Store, clock: Clock, service: ServiceSnapshot) -> NodeSnapshot:
    """Return what the node looks like now."""
    now = clock.now()
    active_since = now - exposure.ACTIVE_SECONDS
    totals = store.look(node_totals, tuple(service.drains), active_since, service.lent.shards)
    oldest = totals.oldest_dirty_at
    return NodeSnapshot(
        service=service,
        totals=totals,
        oldest_dirty_seconds=max(0.0, now - oldest) if oldest is not None else 0.0,
        incomplete=exposure.incomplete(totals.saves, totals.durable, now),
        runs=exposure.of_runs(
            totals.runs, totals.durable, totals.saves, totals.dirty_bytes_by_run, now
        ),
        mounts=tuple(_of_mount(mount, now) for mount in totals.mounts),
        remotes=tuple(
            _progress(drain, totals.owed[name], service.started_at, now)
            for name, drain in service.drains.items()
        ),
    )


def _of_mount(mount: MountTotals, now: float) -> MountExposure:
    age_seconds = 0.0 if mount.oldest_at is None else max(0.0, now - mount.oldest_at)
    size_bytes = mount.dirty.size_bytes
    counted = mount.objects, size_bytes, age_seconds, mount.conflicts
    return MountExposure(mount.name, *counted, mount.superseded)


def _progress(drain: DrainSnapshot, owed: Lag, started_at: float, now: float) -> RemoteProgress:
    return RemoteProgress(
        name=drain.remote.name,
        pending=owed,
        eta_seconds=_eta_seconds(owed, drain.rate_bytes_per_second),
        last_progress_seconds=_standstill_seconds(drain, owed, started_at, now),
    )


def _eta_seconds(lag: Lag, rate: float | None) -> float | None:
    if not lag.shards:
        return 0.0
    return lag.size_bytes / rate if rate else None


def _standstill_seconds(drain: DrainSnapshot, owed: Lag, started_at: float, now: float) -> float:
    """Return for how long nothing got to a remote that could have; a window's pause is none."""
    if not owed.shards or owed.since is None or drain.remote.is_paused:
        return 0.0
    return max(0.0, now - max(owed.since, drain.remote.progressed_at or 0.0, started_at))
