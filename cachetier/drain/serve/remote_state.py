"""What is written down of one remote: where each save lies there, and what it has reached.

Dispatcher, snapshot and reports work on ``RemoteState`` and know no roles. ``DurableRemoteState``
is the system of record: what ends a save there ends it. ``ReplicaRemoteState`` shows each save with
the state and the location it has at the replica, and what ends it there ends it nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cachetier_client.bucket_format.stored import InPack, Stored

from cachetier.local.catalog import copies, parts, saves, shards, uploads
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.catalog.shards import ALL, ShardFilter
from cachetier.local.store import Store
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import (
    CANDIDATE_SAVES,
    COPY_ENDS,
    KEPT_SAVES,
    CopyEvent,
    SaveState,
    ShardState,
)
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class SaveOutcome:
    """What came of a report that a save ended: whether it is news, and shards whose files go.

    ``wait``: it has not ended for all that, as the durable remote has not decided yet.
    """

    news: bool
    removed: tuple[Shard, ...] = ()
    wait: bool = False


class RemoteState(Protocol):
    """The catalog as it concerns one remote. Thread-safe."""

    @property
    def remote(self) -> str:
        """The name of the remote."""

    @property
    def decides(self) -> bool:
        """Whether clients hear of how saves end here: at the durable remote."""

    def unfinished(self) -> list[Save]:
        """Return saves that the drain of the remote owes something, by arrival."""

    def save(self, number: int) -> Save | None: ...

    def parts(self, number: int) -> list[RankPart]: ...

    def wanted(self, number: int, limit: int, shard_filter: ShardFilter = ALL) -> list[Shard]:
        """Return up to ``limit`` shards of a save that are to be sent, oldest first."""

    def wants(self, shard: Shard) -> bool:
        """Return whether ``shard`` is still to be sent."""

    def out_of_reach(self, save: Save, /) -> bool:
        """Return whether the remote can never get what this node had of ``save``."""

    def locate(self, number: int, location: str) -> None: ...

    def part(self, number: int, rank: int, *, uploaded: bool) -> None:
        """Record whether a part is at the remote; one that is gone is written again."""

    def followed(self, number: int) -> None:
        """Record that rank 0 has sealed, wherever it is."""

    def ended(
        self, number: int, state: SaveState, incident: IncidentRecord | None, now: float, /
    ) -> SaveOutcome: ...

    def give_up(self, number: int, now: float, /) -> bool:
        """Record that it never gets the save whole; return whether that is news."""

    def verified(self, version: int, now: float, stored: Stored) -> None:
        """Record a verified copy; raises ForbiddenTransitionError for a quarantined shard."""

    def packed(self, packs: Mapping[int, InPack], now: float) -> list[Shard]:
        """Record a verified pack by its members, and return those that were recorded."""

    def lost(self, versions: Sequence[int]) -> list[ShardState]:
        """Record that the remote lost shards, at once: what was in one pack goes in one again."""

    def removed(self, number: int) -> None: ...

    def swept(self, number: int) -> None: ...


class DurableRemoteState:
    """The system of record.

    A published save of which it lost objects is shown as open until it has them again.
    """

    decides = True

    def __init__(self, store: Store, remote: str = DURABLE) -> None:
        self.remote = remote
        self._store = store

    def unfinished(self) -> list[Save]:
        read = self._store.read
        again = read(copies.saves_to_verify, self.remote)
        numbers = {save.number for save in again}
        return [
            *read(saves.unfinished_saves),
            *(replace(save, state=SaveState.OPEN) for save in again),
            *(save for save in read(uploads.unswept_saves) if save.number not in numbers),
        ]

    def save(self, number: int) -> Save | None:
        return self._store.read(saves.save_by_number, number)

    def parts(self, number: int) -> list[RankPart]:
        return self._store.read(saves.parts_of, number)

    def wanted(self, number: int, limit: int, shard_filter: ShardFilter = ALL) -> list[Shard]:
        return self._store.read(shards.dirty_shards_of, number, limit, self.remote, shard_filter)

    def wants(self, shard: Shard) -> bool:
        return shard.state is ShardState.DIRTY

    def out_of_reach(self, _save: Save, /) -> bool:
        return False  # its bytes are never evicted before they are there

    def locate(self, number: int, location: str) -> None:
        self._store.write(copies.record_location, number, location)

    def part(self, number: int, rank: int, *, uploaded: bool) -> None:
        self._store.write(copies.record_part, number, rank, uploaded=uploaded)

    def followed(self, number: int) -> None:
        self._store.write(parts.release_followers, number)

    def ended(
        self, number: int, state: SaveState, incident: IncidentRecord | None, now: float
    ) -> SaveOutcome:
        before = self.save(number)
        removed = self._store.write(
            copies.record_outcome, self._store.policy, number, state, incident, now
        )
        return SaveOutcome(before is not None and before.state is not state, tuple(removed))

    def give_up(self, _number: int, _now: float, /) -> bool:
        return False

    def verified(self, version: int, now: float, stored: Stored) -> None:
        self._store.write(copies.record_verified, version, self.remote, [self.remote], now, stored)

    def packed(self, packs: Mapping[int, InPack], now: float) -> list[Shard]:
        return self._store.write(copies.record_packed, packs, self.remote, [self.remote], now)

    def lost(self, versions: Sequence[int]) -> list[ShardState]:
        record = copies.record_lost
        return self._store.write(lambda sql: [record(sql, each, self.remote) for each in versions])

    def removed(self, number: int) -> None:
        self._store.write(copies.forget_save, number)

    def swept(self, number: int) -> None:
        self._store.write(copies.record_swept, number)


class ReplicaRemoteState:
    """A second copy, near or elsewhere."""

    decides = False

    def __init__(self, store: Store, remote: str, durable: str = DURABLE) -> None:
        self.remote = remote
        self._durable = durable
        self._store = store

    def unfinished(self) -> list[Save]:
        due = self._store.read(copies.due_saves, self.remote)
        return [save for save in due if save.state not in KEPT_SAVES]

    def save(self, number: int) -> Save | None:
        return self._store.read(copies.save_at, number, self.remote)

    def parts(self, number: int) -> list[RankPart]:
        return self._store.read(copies.parts_at, number, self.remote)

    def wanted(self, number: int, limit: int, shard_filter: ShardFilter = ALL) -> list[Shard]:
        return self._store.read(copies.shards_wanted_at, number, self.remote, limit, shard_filter)

    def wants(self, shard: Shard) -> bool:
        return shard.state in (ShardState.DIRTY, ShardState.CLEAN)

    def out_of_reach(self, save: Save) -> bool:
        return self._store.read(copies.is_out_of_reach, save.number, self.remote)

    def locate(self, number: int, location: str) -> None:
        self._store.write(copies.record_location_at, number, self.remote, location)

    def part(self, number: int, rank: int, *, uploaded: bool) -> None:
        self._store.write(copies.record_part_at, number, self.remote, rank, uploaded=uploaded)

    def followed(self, number: int) -> None:
        self._store.write(parts.release_followers, number)

    def ended(
        self, number: int, state: SaveState, _incident: IncidentRecord | None, now: float, /
    ) -> SaveOutcome:
        decided = self._store.read(saves.save_by_number, number)
        if state is SaveState.REFUSED and decided is not None and decided.state in CANDIDATE_SAVES:
            # Once it is durable it goes before any other: a save that is published by now was not
            # when the replica was asked.
            return SaveOutcome(news=False, wait=True)
        news = self._store.write(
            copies.record_outcome_at, number, self.remote, COPY_ENDS[state], now
        )
        return SaveOutcome(news)

    def give_up(self, number: int, now: float) -> bool:
        return self._store.write(
            copies.record_outcome_at, number, self.remote, CopyEvent.GIVE_UP, now
        )

    def verified(self, version: int, now: float, stored: Stored) -> None:
        self._store.write(
            copies.record_verified, version, self.remote, [self._durable], now, stored
        )

    def packed(self, packs: Mapping[int, InPack], now: float) -> list[Shard]:
        return self._store.write(copies.record_packed, packs, self.remote, [self._durable], now)

    def lost(self, versions: Sequence[int]) -> list[ShardState]:
        record = copies.record_lost_at
        return self._store.write(lambda sql: [record(sql, each, self.remote) for each in versions])

    def removed(self, number: int) -> None:
        self._store.write(copies.forget_save_at, number, self.remote)

    def swept(self, number: int) -> None:
        self._store.write(copies.record_swept_at, number, self.remote)
