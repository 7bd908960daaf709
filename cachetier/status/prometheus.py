"""The snapshot of the node as Prometheus reads it: samples by the name of their series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter

from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.status.snapshot import NodeSnapshot, ServiceSnapshot
from cachetier.telemetry.metric_table import REMOTE_STATES, SERIES
from cachetier.telemetry.metrics import Points

Figure = Callable[[DrainSnapshot], float]

# A series whose status field is one of ``drain`` is read from there.
_OF_EACH_DRAIN: Mapping[str, Figure] = {
    series.name: attrgetter(series.status.removeprefix("drain."))
    for series in SERIES.values()
    if series.status.startswith("drain.")
} | {
    "saved_bytes": lambda drain: drain.saved_bytes,
    "throttled": lambda drain: drain.remote.throttled,
    "drain_concurrency": lambda drain: drain.remote.pace.get("concurrency", 0),
    # The drain reports None, or nothing yet: it has no limit.
    "drain_writes_per_second": lambda drain: (
        math.inf if (writes := drain.remote.pace.get("writes_per_second")) is None else writes
    ),
}


def points_of_service(now: ServiceSnapshot) -> Mapping[str, Points]:
    """Return what can be told while the catalog cannot be read."""
    drains = tuple(now.drains.items())
    plain: dict[str, float] = {
        "fenced": now.fenced,
        "used_bytes": now.used_bytes,
        "memory_bytes": now.memory_bytes,
        "kept_for_peers_bytes": now.kept_for_peers_bytes,
        "lent_bytes": now.lent.size_bytes,
        "capacity_bytes": now.capacity_bytes,
        "waiting_puts_bytes": now.waiting_puts_bytes,
        "open_connections": now.open_connections,
        "training_busy": now.busy_ranks,
        "exposure_objective_seconds": now.exposure_objective_seconds,
        "start_time_seconds": now.started_at,
        "remote_refused": any(drain.remote.state == "refused" for _, drain in drains[:1]),
        "drain_restarts": sum(drain.restarts for _, drain in drains),
        "drain_slowed_seconds": sum(drain.slowed_seconds for _, drain in drains),
        "restore_wanted_bytes": now.restore.wanted_bytes,
        "restore_done_bytes": now.restore.done_bytes,
    }
    states = [
        ((name, state), float(state == drain.remote.state))
        for name, drain in drains
        for state in REMOTE_STATES
    ]
    of_drains = {
        series: [((name,), figure(drain)) for name, drain in drains]
        if SERIES[series].labels
        else [((), figure(drain)) for _, drain in drains[:1]]
        for series, figure in _OF_EACH_DRAIN.items()
    }
    read = now.restore.from_peers_bytes, now.restore.from_remotes_bytes
    return {
        **of_drains,
        **_plain(plain),
        "remote_state": states,
        "restore_read_bytes": list(zip((("peers",), ("remotes",)), read, strict=True)),
        "restore_eta_seconds": [((), now.restore.eta_seconds)]
        if now.restore.eta_seconds is not None
        else [],
    }


def points_of_catalog(now: NodeSnapshot) -> Mapping[str, Points]:
    """Return what the catalog has to be read for."""
    totals = now.totals
    plain: dict[str, float] = {
        "dirty_bytes": totals.dirty.size_bytes,
        "dirty_shards": totals.dirty.shards,
        "oldest_dirty_seconds": now.oldest_dirty_seconds,
        "incomplete_steps": now.incomplete.steps,
        "oldest_incomplete_seconds": now.incomplete.oldest_seconds,
        "local_only_bytes": totals.kept.size_bytes,
        "local_only_steps": totals.policy.ever,
        "clean_bytes": totals.clean_bytes,
        "evictable_bytes": totals.evictable_bytes,
        "unwanted_bytes": totals.unwanted.size_bytes,
        "pinned_steps": totals.pins.steps,
        "waiting_markers": len(now.markers),
        "pinned_bytes": totals.pins.size_bytes,
        "quarantined_shards": totals.damage.now,
        "quarantined": totals.damage.ever,
    }
    remotes = now.remotes
    return {
        **_plain(plain),
        "run_exposure_seconds": [((each.run,), each.exposure_seconds) for each in now.runs],
        "run_durable_age_seconds": _known(
            (each.run, each.durable_age_seconds) for each in now.runs
        ),
        "run_dirty_bytes": [((each.run,), each.dirty_bytes) for each in now.runs],
        "mount_dirty_bytes": [((each.mount,), each.dirty_bytes) for each in now.mounts],
        "mount_unshown_objects": [((each.mount,), each.objects) for each in now.mounts],
        "mount_exposure_seconds": [((each.mount,), each.exposure_seconds) for each in now.mounts],
        "mount_conflicts": [((each.mount,), each.conflicts) for each in now.mounts],
        "remote_pending_bytes": [((each.name,), each.pending.size_bytes) for each in remotes],
        "drain_eta_seconds": _known((each.name, each.eta_seconds) for each in remotes),
        "drain_last_progress_seconds": [
            ((each.name,), each.last_progress_seconds) for each in remotes
        ],
        "quota_used_bytes": [
            ((each["name"],), each["size_bytes"]["used"]) for each in now.principals
        ],
        "quota_limit_bytes": _known(
            (each["name"], each["size_bytes"]["limit"]) for each in now.principals
        ),
    }


def _plain(figures: Mapping[str, float]) -> dict[str, Points]:
    """Return the figures that are one for the node, as samples without a label."""
    return {name: [((), value)] for name, value in figures.items()}


def _known(figures: Iterable[tuple[str, float | None]]) -> Points:
    """Return a sample for each figure that somebody can tell."""
    return [((label,), value) for label, value in figures if value is not None]
