"""What the service says of itself while it runs: to people, Prometheus and load balancers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cachetier.clock import Clock
from cachetier.drain.serve.base import Drain
from cachetier.local.store import Store
from cachetier.status.collect import Facts, standing, survey
from cachetier.status.status import ServiceState, status_of
from cachetier.status.warnings import Machine
from cachetier.telemetry.node_snapshot import Levels, ServiceSnapshot


class Door(Protocol):
    """A door, as it is counted."""

    @property
    def connections(self) -> int: ...


@dataclass(slots=True)
class Course:
    """How far the service is on its way from start to stop."""

    leaving: bool = False
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the doors are; ``http`` is None while there is no such door."""

    socket: str
    http: str | None


class NodeReport:
    """Answers what the node is like now. Thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        machine: Machine,
        drain: Drain,
        course: Course,
        *,
        warnings: Callable[[], Sequence[str]],
        flow: Callable[[], Mapping[str, int]],
    ) -> None:
        """Make one; ``warnings`` adds what readers found, ``flow`` what went through."""
        self._store = store
        self._clock = clock
        self._machine = machine
        self._drain = drain
        self._course = course
        self._warnings = warnings
        self._flow = flow
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

    def standing(self) -> ServiceSnapshot:
        """Return the figures that Prometheus gets even while the catalog cannot be read."""
        return standing(self._store, self._facts(self._drain.state()))

    def levels(self) -> Levels:
        """Return the figures that Prometheus gets."""
        return self._levels(self._drain.state())

    def status(self) -> dict[str, Any]:
        """Return the status object; see docs/http.md."""
        drain = self._drain.state()
        moment = ServiceState(
            state=self._state(),
            reason=self.not_ready(),
            drain=drain,
            levels=self._levels(drain),
            socket=self._addresses.socket,
            http=self._addresses.http,
            etas=self._drain.etas,
            warnings=self._warnings(),
        )
        described = status_of(self._store, self._clock, self._machine, moment)
        return {**described, "flow": dict(self._flow())}

    def _levels(self, drain: Mapping[str, Any]) -> Levels:
        return survey(self._store, self._clock, self._facts(drain))

    def _facts(self, drain: Mapping[str, Any]) -> Facts:
        machine = self._machine
        return Facts(
            remotes=tuple(each.name for each in machine.remotes),
            drain=drain,
            connections=sum(door.connections for door in self._doors),
            busy_ranks=self._drain.queue.phases.hints().busy_ranks,
            exposure_objective_seconds=machine.exposure_objective_seconds,
            started_at=machine.started_at,
        )

    def _state(self) -> str:
        if self._course.stopping:
            return "stopping"
        if self._store.fenced:
            return "fenced"
        return "leaving" if self._course.leaving else "ready"
