"""Evict clean shards for room, after the remote was asked again and if nobody reads them.

Above the high watermark clean shards go, least recently used first, until the low watermark. Saves
that a newer one replaced are collected too: at once when their step is published, after a grace
period otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cachetier_client.clock import Clock

from cachetier.errors import NotFoundError, PinnedError, RemoteError
from cachetier.local.catalog import saves, shards
from cachetier.local.store import Store
from cachetier.model.lifecycle import ForbiddenTransitionError
from cachetier.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Fractions of the capacity: eviction starts above ``high`` and stops below ``low``."""

    high: float = 0.9
    low: float = 0.8


class Evictor:
    """Evicts clean shards.

    ``still_remote`` asks the remote for the shard just before its bytes go; ``look_into`` is called
    where it is missing there.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        still_remote: Callable[[Shard], bool],
        *,
        look_into: Callable[[Shard], object] = lambda _shard: None,
        watermarks: Watermarks = Watermarks(),
        collect_after_seconds: float = 86_400.0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._still_remote = still_remote
        self._look_into = look_into
        self._watermarks = watermarks
        self._collect_after_seconds = collect_after_seconds
        self._used_at: dict[int, float] = {}
        self._one_round = threading.Lock()

    def touch(self, shard: Shard) -> None:
        """Remember that ``shard`` was used now."""
        self._used_at[shard.version] = self._clock.now()

    def look_at_disk(self) -> None:
        """See that the catalog has its reserve, and what a disk that was full takes now."""
        self._store.look_at_disk()

    def make_room(self) -> int:
        """Evict what callers wait for, and down to the low watermark once above the high one.

        Returns the bytes that went; fewer than wanted when the rest is dirty, or being read.
        """
        with self._one_round:
            space = self._store.space
            target = space.limit_bytes - space.wanted_bytes
            if space.used_bytes > self._high_bytes:
                target = min(target, self._low_bytes)
            return self._evict_until(target) if space.used_bytes > target else 0

    def evict(self, shard: Shard, *, though_read: bool = True) -> bool:
        """Drop the local bytes of a clean shard, if the remote has it; return whether they went.

        What somebody reads goes by its name alone, ``though_read``, and after a grace.
        """
        try:
            if self._still_remote(shard):
                return self._store.evict(shard, though_read=though_read)
            self._look_into(shard)
        except (RemoteError, NotFoundError, PinnedError, ForbiddenTransitionError, OSError):
            # The remote cannot say, the shard changed or was pinned meanwhile, or no descriptor is
            # left to see whether somebody reads it: its bytes stay.
            pass
        return False

    def collect(self) -> int:
        """Drop the shards of saves that a newer save replaced; return how many went."""
        before = self._clock.now() - self._collect_after_seconds
        collected = 0
        for save in self._store.read(saves.superfluous_saves, before):
            shards = self._store.write(saves.delete_superfluous_shards, save.number)
            self._store.drop(shards)
            collected += len(shards)
        return collected

    @property
    def _high_bytes(self) -> int:
        return int(self._store.space.capacity_bytes * self._watermarks.high)

    @property
    def _low_bytes(self) -> int:
        return int(self._store.space.capacity_bytes * self._watermarks.low)

    def _evict_until(self, target_bytes: int) -> int:
        """Evict what nobody reads; then lend no more than is lacking, as readers give it back."""
        freed, read = 0, []
        space, open_files = self._store.space, self._store.open_files
        found = [s for s in self._store.read(shards.clean_local_shards) if not s.in_memory]
        self._used_at = {s.version: self._used_at.get(s.version, s.committed_at) for s in found}
        for shard in sorted(found, key=lambda shard: self._used_at[shard.version]):
            if space.used_bytes <= target_bytes:
                return freed
            if self.evict(shard, though_read=False):
                freed += shard.content.size_bytes
            else:
                read.append(shard)
        for shard in read:
            if space.used_bytes - open_files.unlinked_bytes <= target_bytes:
                break
            self.evict(shard)
        return freed
