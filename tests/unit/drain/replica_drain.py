"""The drain of a replica as it is, task by task in the caller's thread."""

from __future__ import annotations

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.stats import DrainStats
from cachetier.notifier import Changes
from cachetier.steps.incidents import Incidents
from tests.stateful.real_drain import ORDERS, RealDrain


class ReplicaDrain(RealDrain):
    """Brings saves to the replica that the catalog calls ``near``."""

    def _service(self, changes: Changes) -> DrainService:
        context = DrainContext(
            self._store,
            self.queue,
            DrainStats("near", self._clock),
            changes,
            Incidents(self._store),
            self._clock,
            RemoteState(self._store, "near"),
        )
        return DrainService(context, ORDERS)
