"""Retention: removes local bytes that a policy gives up, and is the only module that does.

``trim`` keeps ``keep_local`` complete steps of each run. ``make_room`` gives up local-only steps,
oldest first, while a put waits for room; the newest complete step of a run stays. When only such
steps are left, the oldest of them is drained after all: no put waits for ever. A step that is
pinned stays in any case, beside those that ``keep_local`` keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import groupby

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import figures, notes, saves, shards
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save, sealed_here
from cachetier.model.lifecycle import DURABLE_SAVES, KEPT_SAVES
from cachetier.model.policy import LocalStep, surplus
from cachetier.model.shard import Shard
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)


class Retention:
    """Removes surplus local bytes. Called by one thread at a time.

    Args:
        store: Whose bytes go.
        keep_local: Complete steps of each run to keep; 0 for as many as there is room for.
        evict: Drops the local bytes of a clean shard, if the remote has it.
        on_removed: Called with each local-only step that is gone, and its bytes.
        on_wanted: Called when a step waits to be drained now.
    """

    def __init__(
        self,
        store: Store,
        keep_local: int,
        evict: Callable[[Shard], bool],
        *,
        on_removed: Callable[[Save, int], None] = lambda _save, _size_bytes: None,
        on_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._keep_local = keep_local
        self._evict = evict
        self._on_removed = on_removed
        self._on_wanted = on_wanted

    def trim(self) -> int:
        """Keep ``keep_local`` steps of each run; return the bytes evicted of published ones."""
        evicted_bytes = 0
        if not self._keep_local:
            return evicted_bytes
        for save in self._surplus(self._store.read(saves.saves_with_bytes), self._keep_local):
            freed_bytes = self._give_up(save)
            evicted_bytes += freed_bytes if save.state in DURABLE_SAVES else 0
        return evicted_bytes

    def make_room(self) -> int:
        """Give up local-only steps until those who wait for room have it; return the bytes."""
        found = self._store.read(saves.saves_with_bytes)
        if not any(save.state in KEPT_SAVES for save in found):
            return 0
        freed_bytes = 0
        for save in self._surplus(found, 1):
            if self._has_room():
                return freed_bytes
            if save.state in KEPT_SAVES:
                freed_bytes += self._give_up(save)
        if not self._has_room():
            self._let_one_go()
        return freed_bytes

    def _has_room(self) -> bool:
        space = self._store.space
        return space.used_bytes + space.wanted_bytes <= space.limit_bytes

    def _let_one_go(self) -> None:
        """Drain the oldest local-only step, if nothing else is being drained."""
        if self._store.read(figures.is_draining):
            return  # that makes room
        found = self._unpinned(self._store.read(saves.saves_with_bytes))
        oldest = next((save for save in found if save.state in KEPT_SAVES), None)
        if oldest is not None:
            tell(log, events.LOCAL_ONLY_DRAINED, **of(oldest))
            self._store.write(saves.want, oldest.number)
            self._on_wanted()

    def _surplus(self, saves: Iterable[Save], keep: int) -> list[Save]:
        """Return those of all ``saves`` with local bytes whose bytes may go, oldest first."""
        found: list[Save] = []
        ordered = sorted(saves, key=lambda save: (save.run, save.number))
        for _, of_run in groupby(ordered, key=lambda save: save.run):
            found += surplus([self._local_step(save) for save in of_run], keep)
        return sorted(self._unpinned(found), key=lambda save: save.number)

    def _unpinned(self, saves: Iterable[Save]) -> list[Save]:
        pinned = {(pin.run, pin.step) for pin in self._store.read(notes.pins)}
        return [save for save in saves if (save.run, save.step) not in pinned]

    def _local_step(self, save: Save) -> LocalStep:
        parts = self._store.read(saves.parts_of, save.number)
        summary = self._store.read(shards.summary_of, save.number)
        return LocalStep(save, sealed_here(parts) and not summary.quarantined_shards)

    def _give_up(self, save: Save) -> int:
        try:
            return self._remove(save) if save.state in KEPT_SAVES else self._clear(save)
        except CatalogDamagedError as error:
            tell(log, events.LOCAL_ONLY_KEPT, reason=error.message, **of(save))
            return 0

    def _remove(self, save: Save) -> int:
        """Remove a local-only step, which is then nowhere."""
        shards = self._store.write(saves.delete_local_only, save.number)
        size_bytes = sum(shard.content.size_bytes for shard in shards)
        if shards:
            self._store.drop(shards)
            tell(log, events.LOCAL_ONLY_REMOVED, size_bytes=size_bytes, **of(save))
            self._on_removed(save, size_bytes)
        return size_bytes

    def _clear(self, save: Save) -> int:
        """Drop the local bytes of a published step; it stays readable from the remote."""
        found = self._store.read(shards.clean_local_shards_of, save.number)
        return sum(shard.content.size_bytes for shard in found if self._evict(shard))
