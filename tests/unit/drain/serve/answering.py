"""The side of ``serve`` alone: the service of a drain over a node's catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachetier_client.clock import Clock

from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.stats import DrainStats
from cachetier.local.catalog import notes
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.notifier import Changes
from tests.stateful.node import Node
from tests.stateful.real_drain import ORDERS


class Answering:
    """The ``service`` of the drain of ``remote_state``, without a drain."""

    def __init__(
        self,
        node: Node,
        clock: Clock,
        remote_state: RemoteState | None = None,
        queue: QueueState | None = None,
    ) -> None:
        state = remote_state or RemoteState(node.store, DURABLE)
        self.node = node
        self.queue = queue or QueueState(clock, lambda: 1.0)
        self.stats = DrainStats(state.remote, clock)
        self.context = DrainContext(
            node.store, self.queue, self.stats, Changes(clock), node.incidents, clock, state
        )
        self.service = DrainService(self.context, ORDERS)

    def shard(self, name: str) -> Shard:
        (found,) = (row for row in self.node.rows() if row.name == name)
        return found

    def incidents(self) -> Sequence[IncidentRecord]:
        return self.node.store.read(notes.incidents_after, 0)

    def shown(self) -> dict[str, Any]:
        """Return what the status says of the drain."""
        return self.stats.snapshot(self.queue.in_flight()).as_json()
