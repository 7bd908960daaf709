"""Look at the whole node: everything that both status and Prometheus show.

They show the same because both are made from the same ``Levels``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachetier.clock import Clock
from cachetier.local.catalog.node_totals import Owed, ledger
from cachetier.local.catalog.replica_queries import Lag
from cachetier.local.store import Store
from cachetier.model.names import DURABLE
from cachetier.status import exposure
from cachetier.telemetry.node_snapshot import Levels, RemoteLevel, ServiceSnapshot


@dataclass(frozen=True, slots=True)
class Facts:
    """What the catalog does not know; ``drain`` is that of the status object."""

    remotes: tuple[str, ...]
    drain: Mapping[str, Any]
    connections: int
    busy_ranks: int
    exposure_objective_seconds: float
    started_at: float


def standing(store: Store, facts: Facts) -> ServiceSnapshot:
    """Return what can be said without the catalog."""
    space = store.space
    return ServiceSnapshot(
        fenced=store.fenced is not None,
        used_bytes=space.used_bytes,
        capacity_bytes=space.capacity_bytes,
        waiting_puts_bytes=space.wanted_bytes,
        open_connections=facts.connections,
        busy_ranks=facts.busy_ranks,
        exposure_objective_seconds=facts.exposure_objective_seconds,
        started_at=facts.started_at,
        remote_states=tuple((name, _state(facts.drain, name)) for name in facts.remotes),
    )


def survey(store: Store, clock: Clock, facts: Facts) -> Levels:
    """Return what the node looks like now."""
    now = clock.now()
    active_since = now - exposure.ACTIVE_SECONDS
    found = store.look(lambda sql: ledger(sql, facts.remotes, active_since))
    stuck = exposure.incomplete(found.saves, found.durable, now)
    oldest = found.oldest_dirty_at
    return Levels(
        standing=standing(store, facts),
        dirty_bytes=found.dirty.size_bytes,
        dirty_shards=found.dirty.shards,
        oldest_dirty_seconds=max(0.0, now - oldest) if oldest is not None else 0.0,
        clean_bytes=found.clean_bytes,
        evictable_bytes=found.evictable_bytes,
        quarantined_shards=found.damage.shards,
        quarantined_total=found.damage.ever,
        local_only_bytes=found.kept.size_bytes,
        local_only_shards=found.kept.shards,
        local_only_steps=found.policy.steps,
        local_only_total=found.policy.ever,
        unwanted_bytes=found.unwanted.size_bytes,
        unwanted_shards=found.unwanted.shards,
        unwanted_saves=found.unwanted_saves,
        pinned_steps=found.pins.steps,
        pinned_bytes=found.pins.size_bytes,
        incomplete_steps=stuck.steps,
        oldest_incomplete_seconds=stuck.oldest_seconds,
        runs=exposure.run_levels(
            found.runs, found.durable, found.saves, found.dirty_bytes_by_run, now
        ),
        remotes=tuple(_remote(name, found.owed[name], facts, now) for name in facts.remotes),
    )


def _remote(name: str, owed: Owed, facts: Facts, now: float) -> RemoteLevel:
    described, drain = _found(facts.drain, name)
    return RemoteLevel(
        name=name,
        state=_state(facts.drain, name),
        pending_steps=owed.lag.steps,
        pending_shards=owed.lag.shards,
        pending_bytes=owed.lag.size_bytes,
        given_up_steps=owed.lag.given_up,
        eta_seconds=_eta_seconds(owed.lag, drain.get("rate_bytes_per_second")),
        last_progress_seconds=_standstill_seconds(described, owed, facts.started_at, now),
    )


def _found(drain: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return how a remote is found, and the state of the drain to it."""
    remotes: Sequence[Mapping[str, Any]] = drain.get("remotes", ())
    described = next((each for each in remotes if each["name"] == name), {})
    return described, drain if name == DURABLE else described.get("drain") or {}


def _state(drain: Mapping[str, Any], name: str) -> str:
    return str(_found(drain, name)[0].get("state", "ok"))


def _eta_seconds(lag: Lag, rate: float | None) -> float | None:
    if not lag.shards:
        return 0.0
    return lag.size_bytes / rate if rate else None


def _standstill_seconds(
    described: Mapping[str, Any], owed: Owed, started_at: float, now: float
) -> float:
    """Return for how long nothing got to a remote that could have; a window's pause is none."""
    paused = (described.get("pace") or {}).get("bytes_per_second") == 0
    if not owed.lag.shards or owed.since is None or paused:
        return 0.0
    return max(0.0, now - max(owed.since, described.get("progressed_at") or 0.0, started_at))
