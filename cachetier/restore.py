"""Give bytes back: from this node if they are here and sound, else from the remote, verified.

What this node never saw is looked for in the bucket (``adopt``); what is only remote is brought
back first (``refill``), so that every reader gets local bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cachetier.adopt import Adoption
from cachetier.clock import Clock
from cachetier.errors import (
    BackpressureError,
    IntegrityError,
    NotFoundError,
)
from cachetier.local import copies, queries
from cachetier.local.records import Incident
from cachetier.local.store import Store
from cachetier.model.checkpoint import OPEN_STATES, visible_save
from cachetier.model.lifecycle import ShardEvent, ShardState
from cachetier.model.shard import Shard
from cachetier.refill import Refill
from cachetier.remote.bucket import Bucket

Source = Literal["local", "remote"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A shard ready to be read: a descriptor, which the receiver closes, or its bytes."""

    shard: Shard
    descriptor: int | None
    body: bytes | None
    source: Source


class Restore:
    """Opens shards for reading. Thread-safe."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        clock: Clock,
        *,
        remote: str,
        make_room: Callable[[], None],
        on_used: Callable[[Shard], None] = lambda _shard: None,
        on_restored: Callable[[Shard], None] = lambda _shard: None,
        on_damaged: Callable[[Shard], None] = lambda _shard: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_used = on_used
        self._on_damaged = on_damaged
        self._adoption = Adoption(store, bucket, clock, remote=remote)
        self._refill = Refill(
            store, bucket, clock, remote=remote, make_room=make_room, on_restored=on_restored
        )

    def close(self) -> None:
        """Let the range readers go."""
        self._refill.close()

    def open(self, run: str, step: int, name: str, timeout_seconds: float) -> Opened:
        """Return the shard that readers of the step see.

        Raises:
            NotFoundError: Neither this node nor the bucket has it.
            IntegrityError: The only copy is damaged.
            BackpressureError: No room to restore it into.
            DeadlineError: Somebody else's restore of it did not end in time.
        """
        deadline = self._clock.monotonic() + timeout_seconds
        shard = self._find(run, step, name)
        local = self._local(shard)
        if local is not None:
            return local
        self._refill.fetch(shard, deadline)
        restored = self._local(self._find(run, step, name))
        if restored is None:
            raise BackpressureError(
                "the restored shard had to make room at once", run=run, step=step, name=name
            )
        return Opened(restored.shard, restored.descriptor, restored.body, "remote")

    def look(self, run: str, step: int, name: str) -> tuple[Shard, Source]:
        """Return the shard that readers of the step see, and where its bytes would come from.

        Nothing is fetched. Raises as ``open`` does.
        """
        shard = self._find(run, step, name)
        if shard.state is ShardState.QUARANTINED:
            raise _quarantined(shard)
        return shard, "local" if shard.inline or shard.file_id is not None else "remote"

    def verify(self, run: str, step: int, name: str) -> bool:
        """Read the local copy of a shard and return whether it is sound.

        A damaged one is taken out of use.
        """
        shard = self._find(run, step, name)
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            with contextlib.suppress(IntegrityError):
                self._look_into_missing(shard)
            return False
        if copy is None:
            return shard.state is not ShardState.QUARANTINED
        try:
            sound = copies.reads_right(copy)
        finally:
            copies.close(copy)
        if not sound:
            self.report_damage(shard)
        return sound

    def report_damage(self, shard: Shard) -> ShardState | None:
        """Take a shard whose local bytes failed their digest out of use.

        A clean one is dropped, so that the next reader gets the remote copy; a dirty one is
        quarantined. Returns the state it was in, or None if it was replaced or deleted meanwhile.
        """
        incident = Incident(
            code="integrity",
            message=f"the local bytes of shard {shard.name} fail their digest",
            hint="Save the step again, or restore an older one.",
            run=shard.run,
            step=shard.step,
            name=shard.name,
            rank=shard.rank,
        )
        now = self._clock.now()
        try:
            before = self._store.catalog.move(shard.version, ShardEvent.LOCAL_DAMAGE, incident, now)
        except NotFoundError:
            return None
        if before.state is ShardState.CLEAN:
            self._store.drop([before])
        self._on_damaged(shard)
        return before.state

    # --- finding ---------------------------------------------------------------------------------

    def _find(self, run: str, step: int, name: str) -> Shard:
        shard = self._known(run, step, name)
        if shard is not None:
            return shard
        save = visible_save(self._store.read(lambda sql: queries.saves_of(sql, run, step)))
        if save is not None and save.state in OPEN_STATES:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        self._adoption.adopt(run, step, name)
        shard = self._known(run, step, name)
        if shard is None:
            raise NotFoundError(f"no shard {name} in step {step}", run=run, step=step, name=name)
        return shard

    def _known(self, run: str, step: int, name: str) -> Shard | None:
        return self._store.read(lambda sql: queries.visible_shard(sql, run, step, name))

    # --- local -----------------------------------------------------------------------------------

    def _local(self, shard: Shard) -> Opened | None:
        if shard.state is ShardState.QUARANTINED:
            raise _quarantined(shard)
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            self._look_into_missing(shard)
            return None
        if copy is None:
            return None
        if not copies.looks_right(copy):
            copies.close(copy)
            self._give_up(shard)
            return None
        self._on_used(shard)
        return Opened(shard, copy.descriptor, copy.body, "local")

    def _look_into_missing(self, shard: Shard) -> None:
        """A file went after its row was read: evicted, which is fine, or lost, which is not."""
        now = self._store.read(lambda sql: queries.shard_by_version(sql, shard.version))
        if now is not None and now.file_id == shard.file_id:
            self._give_up(now)

    def _give_up(self, shard: Shard) -> None:
        """Take damaged local bytes out of use; raise if there are no others."""
        if self.report_damage(shard) in (ShardState.DIRTY, ShardState.QUARANTINED):
            raise _quarantined(shard)


def _quarantined(shard: Shard) -> IntegrityError:
    return IntegrityError(
        f"shard {shard.name} is damaged on this node and was not yet durable",
        run=shard.run,
        step=shard.step,
        name=shard.name,
    )
