"""The state of one remote in the catalog: where each save lies there, and what it has reached.

Service and snapshot work on it and know no roles. At the durable remote, which
``decides``, an end ends the save. A replica has each save in the state and at the location that it
has there, and an end there ends it nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cachetier_client.bucket_format.stored import InPack, Stored

from cachetier.local.catalog import copies, parts, saves, shards
from cachetier.local.catalog.copies import SaveOutcome
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.catalog.shards import ALL, ShardFilter
from cachetier.local.store import Store
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import (
    DECIDED_SAVES,
    KEPT_SAVES,
    SOUND_SHARDS,
    SaveState,
    ShardState,
)
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard


class RemoteState:
    """The catalog as it concerns one remote. Thread-safe.

    ``decides``: it is the durable remote, and clients hear of how saves end there.
    """

    def __init__(self, store: Store, remote: str = DURABLE) -> None:
        self.remote = remote
        self.decides = remote == DURABLE
        self._store = store

    def unfinished(self) -> list[Save]:
        """Return saves that the drain of the remote owes something, by arrival.

        At the deciding remote those that ended come last, and a published save of which it lacks
        shards is open until it has them.
        """
        read = self._store.read
        lacking = read(copies.saves_to_verify, self.remote) if self.decides else []
        again = {save.number: replace(save, state=SaveState.OPEN) for save in lacking}
        due = {save.number: save for save in read(copies.due_saves, self.remote)}
        found = [save for save in {**due, **again}.values() if save.state not in KEPT_SAVES]
        last = DECIDED_SAVES if self.decides else ()
        return sorted(found, key=lambda save: (save.state in last, save.number))

    def save(self, number: int) -> Save | None:
        """Return a save as the drain of the remote sees it."""
        return self._store.read(copies.save_at, number, self.remote)

    def parts(self, number: int) -> list[RankPart]:
        return self._store.read(saves.parts_of, number, self.remote)

    def wanted(self, number: int, limit: int, shard_filter: ShardFilter = ALL) -> list[Shard]:
        """Return up to ``limit`` shards of a save that are to be sent, oldest first."""
        if self.decides:  # what is clean is there
            which = number, limit, self.remote, shard_filter
            return self._store.read(shards.dirty_shards_of, *which)
        return self._store.read(copies.shards_wanted_at, number, self.remote, limit, shard_filter)

    def wants(self, shard: Shard) -> bool:
        """Return whether ``shard`` is still to be sent."""
        return shard.state is ShardState.DIRTY or (not self.decides and shard.state in SOUND_SHARDS)

    def out_of_reach(self, save: Save) -> bool:
        """Return whether the remote can never get what this node had of ``save``.

        Bytes are never evicted before the deciding remote has them.
        """
        return not self.decides and self._store.read(
            copies.is_out_of_reach, save.number, self.remote
        )

    def locate(self, number: int, location: str) -> None:
        """Record where the objects of a save are there."""
        self._store.write(copies.record_location, number, location, self.remote)

    def part(self, number: int, rank: int, *, uploaded: bool) -> None:
        """Record whether a part is at the remote; one that is gone is written again."""
        self._store.write(copies.record_part, number, rank, self.remote, uploaded=uploaded)

    def followed(self, number: int) -> None:
        """Record that rank 0 has sealed, wherever it is."""
        self._store.write(parts.release_followers, number)

    def ended(
        self, number: int, state: SaveState, incident: IncidentRecord | None, now: float
    ) -> SaveOutcome:
        """Record that a save ended there, as the drain reports; see ``copies.ended``."""
        at = number, self.remote
        return self._store.write(copies.ended, self._store.policy, at, state, incident, now)

    def give_up(self, number: int, now: float) -> bool:
        """Record that it never gets the save whole; return whether that is news."""
        return not self.decides and self._store.write(copies.give_up, number, self.remote, now)

    def verified(self, version: int, now: float, stored: Stored) -> None:
        """Record a verified copy; raises ForbiddenTransitionError for a quarantined shard."""
        self._store.write(copies.record_verified, version, self.remote, [DURABLE], now, stored)

    def packed(self, packs: Mapping[int, InPack], now: float) -> list[Shard]:
        """Record a verified pack by its members, and return those that were recorded."""
        return self._store.write(copies.record_packed, packs, self.remote, [DURABLE], now)

    def lost(self, versions: Sequence[int]) -> list[ShardState]:
        """Record that the remote lost shards, at once: what was in one pack goes in one again."""
        record = copies.record_lost
        return self._store.write(lambda sql: [record(sql, each, self.remote) for each in versions])

    def removed(self, number: int) -> bool:
        """Record that the objects of a deleted save are gone there; return whether that is news."""
        return self._store.write(copies.forget_save, number, self.remote)

    def swept(self, number: int) -> None:
        """Record that an ended save has nothing unfinished left there."""
        self._store.write(copies.record_swept, number, self.remote)
