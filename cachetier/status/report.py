"""The report of a running service: status, health for load balancers, figures for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from cachetier_client.clock import Clock

from cachetier import __version__
from cachetier.access.access import Access
from cachetier.drain.serve.drains import Drains
from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.local.catalog import saves, shards
from cachetier.local.catalog.rows import Backlog
from cachetier.local.store import Store
from cachetier.objects.cluster import WaitingMarker
from cachetier.remote.answers import Answers
from cachetier.remote.settings import RemoteSettings
from cachetier.restore.pace import RestoreFigures
from cachetier.status.snapshot import NodeSnapshot, RemoteProgress, ServiceSnapshot, snapshot_of
from cachetier.status.warnings import Machine, warnings_of
from cachetier.steps.leaving import Course
from cachetier.steps.views import view_of_save


class Door(Protocol):
    """A door, as it is counted."""

    @property
    def connections(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the doors are; ``http`` and ``s3`` are None while there is no such door."""

    socket: str
    http: str | None
    s3: str | None = None


class NodeReport:
    """Answers what the node is like now. Thread-safe."""

    def __init__(  # noqa: PLR0913 - whom it asks
        self,
        store: Store,
        clock: Clock,
        machine: Machine,
        drain: Drains,
        course: Course,
        *,
        warnings: Callable[[], Sequence[str]],
        flow: Callable[[], Mapping[str, int]],
        access: Access,
        answers: Mapping[str, Answers],
        restore: Callable[[], RestoreFigures],
        markers: Callable[[], Sequence[WaitingMarker]] = tuple,
        kept_for_peers_bytes: Callable[[], int] = int,
    ) -> None:
        """A report; ``warnings`` adds what readers found, ``flow`` what went through.

        ``access`` knows what principals have of their quotas, and who shares the service's user;
        ``answers``, by remote, what requests of people met there; ``restore`` says how far restores
        are; ``markers`` are those that wait for other nodes; ``kept_for_peers_bytes`` says how much
        of other nodes is here.
        """
        self._store = store
        self._clock = clock
        self._machine = machine
        self._drain = drain
        self._course = course
        self._warnings = warnings
        self._flow = flow
        self._access = access
        self._answers = answers
        self._restore = restore
        self._markers = markers
        self._kept_for_peers_bytes = kept_for_peers_bytes
        self._doors: Sequence[Door] = ()
        self._addresses = Addresses("", None)

    def doors_are_open(self, doors: Sequence[Door], addresses: Addresses) -> None:
        self._doors, self._addresses = doors, addresses

    def not_ready(self) -> str | None:
        """Return why no work is taken, or None."""
        if self._course.stopping:
            return "the service is stopping"
        leaving = "the node is being left" if self._course.leaving else None
        return self._store.fenced or leaving

    def service(self) -> ServiceSnapshot:
        """Return what Prometheus gets even while the catalog cannot be read."""
        machine, space = self._machine, self._store.space
        found, now = {each.remote.name: each for each in self._drain.state()}, self._clock.now()
        drains = {
            each.name: found.get(each.name) or DrainSnapshot.unknown(each.name)
            for each in machine.remotes
        }
        for name, drain in drains.items():
            if answers := self._answers.get(name):
                drain.remote = drain.remote.with_answers(answers.met, now)
        return ServiceSnapshot(
            state=self._state(),
            reason=self.not_ready(),
            fenced=self._store.fenced is not None,
            used_bytes=space.used_bytes,
            memory_bytes=self._store.memory.used_bytes,
            kept_for_peers_bytes=self._kept_for_peers_bytes(),
            lent=self._store.open_files.lent(),
            capacity_bytes=space.capacity_bytes,
            waiting_puts_bytes=space.wanted_bytes,
            open_connections=sum(door.connections for door in self._doors),
            busy_ranks=self._drain.queue.phases.hints().busy_ranks,
            exposure_objective_seconds=machine.exposure_objective_seconds,
            started_at=machine.started_at,
            drains=drains,
            restore=self._restore(),
        )

    def node(self) -> NodeSnapshot:
        """Return the whole node as it is now."""
        found = snapshot_of(self._store, self._clock, self.service())
        principals = tuple(self._access.quotas.described())
        return replace(found, principals=principals, markers=tuple(self._markers()))

    def status(self) -> dict[str, Any]:
        """Return the status object; see docs/http.md."""
        now = self._clock.now()
        described = status_of(self._store, self._machine, self.node(), self._drain.etas, now)
        described["warnings"] += self._warnings()
        found = {"flow": dict(self._flow()), "shared_uid": self._access.shared_uid}
        return {**described, **asdict(self._addresses), **found}

    def _state(self) -> str:
        if self._course.stopping:
            return "stopping"
        if self._store.fenced:
            return "fenced"
        return "leaving" if self._course.leaving else "ready"


# --- the status object ----------------------------------------------------------------------------

PENDING_LIMIT = 50

Etas = Callable[[Sequence[Backlog]], Mapping[int, float]]


def status_of(
    store: Store, machine: Machine, node: NodeSnapshot, etas: Etas, now: float
) -> dict[str, Any]:
    """Return the status object, but for what only the service knows: addresses and flow."""
    service, backlog = node.service, store.look(saves.backlog)
    durable = service.drains[node.remotes[0].name]
    return {
        "version": __version__,
        "store_id": store.store_id,
        "pid": os.getpid(),
        "state": service.state,
        "reason": service.reason,
        "started_at": machine.started_at,
        "uptime_seconds": max(0.0, now - machine.started_at),
        **_figures(node),
        "local_only": _local_only(machine, node),
        "fenced": store.fenced,
        "when_full": machine.when_full,
        "disk": {
            "directory": machine.cache_dir,
            "filesystem": machine.filesystem,
            "free_bytes": store.files.free_bytes(),
            **machine.disk,
        },
        "remotes": [
            _remote(remote, progress, service.drains[remote.name], now)
            for remote, progress in zip(machine.remotes, node.remotes, strict=True)
        ],
        "drain": durable.as_json(),
        "pending": _pending(store, backlog, etas(backlog)),
        "pending_steps": len(backlog),
        "sqlite_version": machine.sqlite_version,
        "warnings": warnings_of(store, machine, node, now),
    }


def _figures(node: NodeSnapshot) -> dict[str, Any]:
    service, totals, lent = node.service, node.totals, node.service.lent
    return {
        "capacity_bytes": service.capacity_bytes,
        "used_bytes": service.used_bytes,
        "memory_bytes": service.memory_bytes,
        "kept_for_peers_bytes": service.kept_for_peers_bytes,
        "dirty_bytes": totals.dirty.size_bytes,
        "clean_bytes": totals.clean_bytes,
        "evictable_bytes": totals.evictable_bytes,
        "lent_bytes": lent.size_bytes,
        "lent_most": {"holder": lent.holder, "size_bytes": lent.holder_bytes}
        if lent.holder is not None
        else None,
        "waiting_bytes": service.waiting_puts_bytes,
        "dirty_shards": totals.dirty.shards,
        "oldest_dirty_seconds": node.oldest_dirty_seconds,
        "quarantined_shards": totals.damage.now,
        "unwanted": {"shards": totals.unwanted.shards, "size_bytes": totals.unwanted.size_bytes},
        "pinned": asdict(totals.pins),
        "exposure": [asdict(run) for run in node.runs],
        "mounts": [asdict(mount) for mount in node.mounts],
        "waiting_markers": [asdict(marker) for marker in node.markers],
        "exposure_objective_seconds": service.exposure_objective_seconds,
        "incomplete": asdict(node.incomplete),
        "eta_seconds": node.remotes[0].eta_seconds,
        "connections": service.open_connections,
        "restore": asdict(service.restore),
        "principals": list(node.principals),
    }


def _local_only(machine: Machine, node: NodeSnapshot) -> dict[str, Any]:
    kept, policy = node.totals.kept, node.totals.policy
    return {
        **asdict(machine.policy),
        "steps": policy.now,
        "shards": kept.shards,
        "size_bytes": kept.size_bytes,
        "declared_steps": policy.ever,
    }


def _remote(
    remote: RemoteSettings, progress: RemoteProgress, drain: DrainSnapshot, now: float
) -> dict[str, Any]:
    """Describe a remote: as it was set, as its drain finds it, and what it is still owed."""
    is_durable, asked_at = remote.role == "durable", drain.remote.asked_at
    return {
        "name": remote.name,
        "role": remote.role,
        "required": is_durable or remote.required,
        "url": remote.url,
        "endpoint": remote.endpoint,
        "verify": remote.verify,
        "conditional_writes": remote.conditional_writes,
        **asdict(drain.remote),
        "unasked_seconds": None if asked_at is None else max(0.0, now - asked_at),
        **({} if is_durable else {"drain": drain.as_json()}),
        "pending_steps": progress.pending.steps,
        "pending_shards": progress.pending.shards,
        "pending_bytes": progress.pending.size_bytes,
        "given_up_steps": progress.pending.given_up,
        "eta_seconds": progress.eta_seconds,
        "last_progress_seconds": progress.last_progress_seconds,
    }


def _pending(
    store: Store, backlog: Sequence[Backlog], etas: Mapping[int, float]
) -> list[dict[str, Any]]:
    """List the steps with something left to drain, oldest first, at most ``PENDING_LIMIT``.

    ``eta_seconds`` is until it is durable, whatever the replicas; null while nobody can tell.
    """
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
    parts = store.look(saves.parts_of, each.save.number)
    summary = store.look(shards.summary_of, each.save.number)
    return view_of_save(each.save, parts, summary).state
