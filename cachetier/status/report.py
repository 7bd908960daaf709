"""The report of a running service: status, health for load balancers, figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from cachetier_client.clock import Clock

from cachetier.access.access import Access
from cachetier.drain.serve.drains import Drains
from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.local.store import Store
from cachetier.objects.cluster import WaitingMarker
from cachetier.remote.answers import Answers
from cachetier.restore.pace import RestoreFigures
from cachetier.status.snapshot import NodeSnapshot, ServiceSnapshot, snapshot_of
from cachetier.status.status import status_of
from cachetier.status.warnings import Machine
from cachetier.steps.leaving import Course


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
    ) -> None:
        """A report; ``warnings`` adds what readers found, ``flow`` what went through.

        ``access`` knows what principals have of their quotas, and who shares the service's user;
        ``answers``, by remote, what requests of people met there; ``restore`` says how far restores
        are; ``markers`` are those that wait for other nodes.
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
