"""What the service needs of whoever drains; ``Supervisor`` does, and so do stand-ins in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.local.catalog.records import Backlog
from cachetier.local.store import Store
from cachetier.notifier import Changes
from cachetier.steps.incidents import Incidents
from cachetier.telemetry.metrics import Metrics


class Drain(Protocol):
    """Carries shards to the remotes, in the background; ``queue`` is the durable one's."""

    queue: QueueState

    def start(self) -> None: ...

    def ask_to_end(self) -> None:
        """Begin no more, and end when what is in flight has; returns at once."""

    def stop(self, grace_seconds: float) -> None:
        """Return when it has ended, by force if it has not within ``grace_seconds``."""

    def hurry(self, run: str | None, step: int | None) -> None:
        """Bring a step, a run, or (None) everything first to where it has to be."""

    def hurry_replicas(self, run: str | None, step: int | None) -> None:
        """Bring it first to every replica too: somebody waits for ``replicated``."""

    def nudge(self) -> None: ...

    def passed_by(self, size_bytes: int) -> None:
        """Count a shard that was written straight to the durable remote, past the drain."""

    def etas(self, backlog: Sequence[Backlog]) -> Mapping[int, float]:
        """Return in how many seconds each save will be durable, by its number, where known."""

    def state(self) -> tuple[DrainSnapshot, ...]:
        """Return the drain to each remote as it is now, the durable one's first."""


OpenDrain = Callable[[Store, Changes, Incidents, Metrics], Drain]
