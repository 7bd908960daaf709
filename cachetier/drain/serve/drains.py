"""All drains of a node as one.

Each remote has a process, so that none waits for another. The durable remote's comes first: its
queue is where a write-through put reserves its object, and its pace says when a step will be
durable.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.drain.serve.supervisor import Supervisor
from cachetier.local.catalog.rows import Backlog
from cachetier.model.checkpoint import Save


class Drains:
    """Carries shards to the remotes, in the background; ``queue`` is the durable one's."""

    def __init__(self, durable: Supervisor, replicas: Sequence[tuple[Supervisor, bool]]) -> None:
        """Combine the drain of the durable remote and those of ``replicas``: (drain, required)."""
        self._durable = durable
        self._replicas = tuple(drain for drain, _ in replicas)
        self._required = tuple(drain for drain, required in replicas if required)
        self._all = (durable, *self._replicas)
        self.queue: QueueState = durable.queue

    def start(self) -> None:
        for drain in self._all:
            drain.start()

    def ask_to_end(self) -> None:
        """Begin no more, and end when what is in flight has; returns at once."""
        for drain in self._all:
            drain.ask_to_end()

    def stop(self, grace_seconds: float) -> None:
        """Return when all have ended, by force if one has not within ``grace_seconds``."""
        stoppers = [
            threading.Thread(target=drain.stop, args=(grace_seconds,), name="drain-stop")
            for drain in self._replicas
        ]
        for stopper in stoppers:
            stopper.start()
        self._durable.stop(grace_seconds)
        for stopper in stoppers:
            stopper.join()

    def hurry(self, run: str | None, step: int | None) -> None:
        """Bring a step, a run, or (None) everything first to where it has to be."""
        for drain in (self._durable, *self._required):
            drain.hurry(run, step)

    def hurry_replicas(self, run: str | None, step: int | None) -> None:
        """Bring it first to every replica too: somebody waits for ``replicated``."""
        for drain in self._replicas:
            drain.hurry(run, step)

    def refusals(self, run: str, step: int, since: float) -> list[str | None]:
        """Return of each remote why it takes nothing of a step now; None where it may."""
        return [drain.refusal(run, step, since) for drain in self._all]

    def nudge(self) -> None:
        self._durable.nudge()  # they share one bell

    def retry(self) -> None:
        """Try at once whatever was put off after a failure."""
        for drain in self._all:
            drain.retry()

    def limit_rate(self, bytes_per_second: float | None) -> None:
        """Send no more than this to the durable remote, until the service starts again.

        None: no more than the settings say.
        """
        self._durable.limit_rate(bytes_per_second)

    def passed_by(self, size_bytes: int) -> None:
        """Count a shard that was written straight to the durable remote, past the drain."""
        self._durable.passed_by(size_bytes)

    def published(self, save: Save) -> None:
        """Count a step of this node that was published, as a read of its manifest says."""
        self._durable.published(save)

    def etas(self, backlog: Sequence[Backlog]) -> Mapping[int, float]:
        """Return in how many seconds each save will be durable, by its number, where known."""
        return self._durable.etas(backlog)

    def state(self) -> tuple[DrainSnapshot, ...]:
        """Return the drain to each remote as it is now, the durable one's first."""
        return tuple(drain.state() for drain in self._all)
