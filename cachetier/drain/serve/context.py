"""The context that everything on the side of ``serve`` shares when it answers a drain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cachetier_client.clock import Clock

from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.stats import DrainStats
from cachetier.errors import IntegrityError, NotFoundError, PreconditionFailedError
from cachetier.local.catalog import notes, shards
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.objects import Mount
from cachetier.model.shard import Shard
from cachetier.notifier import Changes
from cachetier.remote.store_clock import StoreClock
from cachetier.steps.incidents import Incidents


@dataclass(frozen=True, slots=True)
class DrainContext:
    """Everything on the side of ``serve``, for one remote.

    ``packing``: small shards of a rank go there together. ``mounts`` are those of the S3 door whose
    objects go to the remote's server, by what the catalog calls them; ``store_clock`` is that
    server's.
    """

    store: Store
    queue: QueueState
    stats: DrainStats
    changes: Changes
    incidents: Incidents
    clock: Clock
    remote_state: RemoteState
    packing: bool = False
    mounts: Mapping[str, Mount] = field(default_factory=dict)
    store_clock: StoreClock = field(default_factory=StoreClock)

    def shard(self, version: int) -> Shard:
        """Return a shard, or raise NotFoundError."""
        shard = self.store.read(shards.shard_by_version, version)
        if shard is None:
            raise NotFoundError(f"shard version {version} was replaced or deleted")
        return shard

    def save(self, number: int) -> Save:
        """Return a save as this remote's drain sees it, or raise NotFoundError."""
        save = self.remote_state.save(number)
        if save is None:
            raise NotFoundError(f"there is no save {number}")
        return save

    def add_incident(self, of: Shard | Save, message: str, hint: str) -> None:
        """Let clients hear of what went wrong with a shard or a save."""
        name, rank = (of.name, of.rank) if isinstance(of, Shard) else (None, None)
        code = PreconditionFailedError.code if isinstance(of, Shard) else IntegrityError.code
        incident = IncidentRecord(code, message, hint, of.run, of.step, name, rank)
        self.store.write(notes.insert_incident, incident, self.clock.now())
        self.announce()

    def announce(self) -> None:
        """Let those who wait look again, and clients see what is new."""
        self.incidents.refresh()
        self.changes.ring()
