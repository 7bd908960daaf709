"""Incidents: background failures, handed to the clients they concern at their next call.

A client hears of incidents of the runs it has used, from the instant it was created; so it also
hears of what happened while it, or the service, was away.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from cachetier.local.catalog import notes
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.store import Store

CLIENT_LIMIT = 10_000  # of one principal
RUNS_LIMIT = 1_000  # of one client


@dataclass(slots=True)
class _Listener:
    since: float
    seen: int = 0
    runs: set[str] = field(default_factory=set)


class Incidents:
    """Which client has heard of which incident. Thread-safe and bounded."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        # By principal, so that no client of one makes those of another unheard.
        self._by_principal: dict[str, OrderedDict[str, _Listener]] = {}
        self._newest = 0
        self.refresh()

    def refresh(self) -> None:
        """Look for new incidents; the recorder of an incident calls this."""
        self._newest = self._store.read(notes.newest_incident)

    def listen(self, client_id: str, since: float) -> None:
        """Remember a client; one that is known keeps its place."""
        with self._lock:
            listeners = self._by_principal.setdefault(_principal_of(client_id), OrderedDict())
            listeners.setdefault(client_id, _Listener(since))
            listeners.move_to_end(client_id)
            while len(listeners) > CLIENT_LIMIT:
                listeners.popitem(last=False)

    def used(self, client_id: str, run: str) -> None:
        """Remember that a client uses ``run``."""
        listener = self._listener(client_id)
        if listener is not None and len(listener.runs) < RUNS_LIMIT:
            listener.runs.add(run)

    def pending(self, client_id: str) -> int:
        """Return how many incidents wait for a client; cheap when there are none."""
        listener = self._listener(client_id)
        if listener is None or listener.seen >= self._newest:
            return 0
        return len(self.take(client_id, clear=False))

    def take(self, client_id: str, *, clear: bool = True) -> list[IncidentRecord]:
        """Return the incidents that wait for a client, and forget them if ``clear``."""
        listener = self._listener(client_id)
        if listener is None:
            return []
        found = self._store.read(notes.incidents_after, listener.seen)
        concerned = [i for i in found if i.at >= listener.since and i.run in listener.runs]
        if found and (clear or not concerned):
            listener.seen = found[-1].number
        return concerned

    def _listener(self, client_id: str) -> _Listener | None:
        listeners = self._by_principal.get(_principal_of(client_id))
        return None if listeners is None else listeners.get(client_id)


def _principal_of(client_id: str) -> str:
    """Return the first part of a name as ``Caller.own`` makes it."""
    return client_id.partition("/")[0]
