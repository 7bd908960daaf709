"""Choose the remote to restore a shard from: verified copies, the nearest first.

Replicas come in the order of the settings, the durable remote last. A copy that is damaged, or
cannot be reached, is passed over while there is another; a remote that could not be reached is
asked last for a while, so that one that is cut off does not cost every restore its timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from cachetier_client.bucket_format.stored import Stored
from cachetier_client.clock import Clock

from cachetier.errors import (
    CachetierError,
    IntegrityError,
    NotFoundError,
    ObjectMissingError,
    RemoteError,
)
from cachetier.local.catalog import copies, shards
from cachetier.local.store import Store
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.pace import RestorePace
from cachetier.restore.remote_shard import RemoteShard
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

AWAY_SECONDS = 15.0
DAMAGED_LIMIT = 1000
MOMENT_SECONDS = 5.0
REMEMBERED_PACKS = 256

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Reason(StrEnum):
    """Why a remote copy was passed over.

    ``missing`` is no damage: whoever runs a replica may thin it out.
    """

    DAMAGED = "damaged"
    MISSING = "missing"
    UNREACHABLE = "unreachable"


PassedOver = Callable[[Shard, RemoteShard, Reason, CachetierError], None]


class PassedOverCopies:
    """Counts and logs the copies that were passed over; ``warnings`` tells of damaged ones.

    Callers got their bytes, so none of this is an incident that a client would raise.
    """

    def __init__(self, count: Callable[[Reason, str], None]) -> None:
        """Begin without any; ``count`` gets the reason and the remote of each."""
        self._count = count
        self._damaged: dict[str, list[str]] = {}

    def __call__(
        self, shard: Shard, copy: RemoteShard, reason: Reason, error: CachetierError
    ) -> None:
        self._count(reason, copy.remote)
        ids = {"run": shard.run, "step": shard.step, "name": shard.name}
        where = {"key": copy.key, "remote": copy.remote}
        tell(log, events.COPY_PASSED_OVER, reason=error.message, **ids, **where)
        if reason is Reason.DAMAGED:
            keys = self._damaged.setdefault(copy.remote, [])
            if copy.key not in keys and len(keys) < DAMAGED_LIMIT:
                keys.append(copy.key)

    def warnings(self) -> list[str]:
        """Return what a person should look after, for each remote."""
        return [
            f"damaged copies at {remote}, passed over since the start: {', '.join(keys[:3])}"
            + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
            for remote, keys in self._damaged.items()
        ]


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas, the nearest first.

    ``on_passed_over`` is called with each copy that was damaged or out of reach where another was
    left to try.
    """

    remotes: Sequence[Remote] = ()
    on_passed_over: PassedOver = lambda _shard, _source, _reason, _error: None


NO_REPLICAS = Replicas()


class Absences:
    """Remembers which remotes could not be reached lately. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def note(self, remote: str) -> None:
        """Remember that ``remote`` could not be reached just now."""
        with self._lock:
            self._until[remote] = self._clock.monotonic() + AWAY_SECONDS

    def forget(self, remote: str) -> None:
        """Remember that ``remote`` answers."""
        with self._lock:
            self._until.pop(remote, None)

    def away(self, remote: str) -> bool:
        """Return whether ``remote`` could not be reached lately."""
        with self._lock:
            return self._until.get(remote, 0.0) > self._clock.monotonic()


class Looks:
    """Asks for a pack once for all its members that go in the same moment. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen_at: dict[tuple[str, str, str], float] = {}

    def holds(self, remote: Remote, shard: Shard, location: str, stored: Stored) -> bool:
        """Return what ``Bucket.holds`` does, or for a pack what it said a moment ago.

        Raises:
            RemoteError: The store cannot say.
        """
        if stored.pack is None:
            return remote.bucket.holds(shard, location, stored)
        pack = remote.name, f"{shard.run}/{location}/{shard.save_id}", stored.pack.name
        with self._lock:
            if self._clock.monotonic() - self._seen_at.get(pack, -MOMENT_SECONDS) < MOMENT_SECONDS:
                return True
        there = remote.bucket.holds(shard, location, stored)
        with self._lock:
            self._seen_at.pop(pack, None)
            if there:
                self._seen_at[pack] = self._clock.monotonic()
            if len(self._seen_at) > REMEMBERED_PACKS:
                del self._seen_at[next(iter(self._seen_at))]
        return there


class Sources:
    """Finds the remote copies of shards. Thread-safe."""

    def __init__(
        self,
        store: Store,
        durable: Remote,
        clock: Clock,
        replicas: Replicas = NO_REPLICAS,
        mounted: MountedObjects | None = None,
        absences: Absences | None = None,
        pace: RestorePace | None = None,
    ) -> None:
        """Find copies of shards at ``durable`` and ``replicas``, of pieces by ``mounted``."""
        self._store = store
        self._mounted = mounted
        self._remotes = (*replicas.remotes, durable)
        self._on_passed_over = replicas.on_passed_over
        self.absences = absences or Absences(clock)
        self._pace = pace or RestorePace(clock)
        self._looks = Looks(clock)

    def of(self, shard: Shard) -> list[RemoteShard]:
        """Return the copies of ``shard`` that were verified at a remote, the nearest first.

        Those at a remote that could not be reached lately come last. Empty where there is none.
        """
        if is_mount(shard.run):
            piece = self._mounted.copy_of(shard) if self._mounted is not None else None
            found = [piece] if piece is not None else []
        else:
            at_each = (self._at(remote, shard) for remote in self._remotes)
            found = [copy for copy in at_each if copy is not None]
        found.sort(key=lambda copy: self.absences.away(copy.remote))
        return [self._pace.paced(copy) for copy in found]

    def first(self, shard: Shard, read: Callable[[RemoteShard], Result]) -> Result:
        """Return what ``read`` makes of the nearest copy of ``shard`` that is there and sound.

        Args:
            shard: The shard to read.
            read: Reads one, and may be called again with the next.

        Raises:
            NotFoundError: There is no remote copy.
            IntegrityError: Every copy is damaged.
            RemoteError: What is not damaged cannot be reached.
        """
        failed: list[CachetierError] = []
        copies = self.of(shard)
        for copy in copies:
            try:
                result = read(copy)
            except (IntegrityError, RemoteError) as error:
                failed.append(error)
                self._pass_over(shard, copy, error, more=len(failed) < len(copies))
            else:
                self.absences.forget(copy.remote)
                return result
        for failure in failed:
            if isinstance(failure, RemoteError):
                raise failure
        if failed:
            raise failed[0]
        raise NotFoundError(
            f"shard {shard.name} has no remote copy", run=shard.run, step=shard.step
        )

    def still_there(self, shard: Shard) -> bool:
        """Ask whether a remote that had ``shard`` still holds it; the durable one first.

        A replica's word counts only where the durable remote never had it, or cannot be asked.

        Raises:
            RemoteError: None of them can say.
        """
        if is_mount(shard.run):
            return self._mounted is not None and self._mounted.still_there(shard)
        failed: list[RemoteError] = []
        for remote in reversed(self._remotes):
            known = self._known_at(remote, shard)
            if known is None:
                continue
            try:
                return self._looks.holds(remote, shard, *known)
            except RemoteError as error:
                self.absences.note(remote.name)
                failed.append(error)
        if failed:
            raise failed[0]
        return False

    def _pass_over(
        self, shard: Shard, copy: RemoteShard, error: CachetierError, *, more: bool
    ) -> None:
        reason = Reason.MISSING if is_missing(error) else Reason.DAMAGED
        reason = Reason.UNREACHABLE if isinstance(error, RemoteError) else reason
        if reason is Reason.UNREACHABLE:
            self.absences.note(copy.remote)
        if more:
            self._on_passed_over(shard, copy, reason, error)

    def _at(self, remote: Remote, shard: Shard) -> RemoteShard | None:
        """Return the copy of ``shard`` at ``remote``, if one was verified there."""
        known = self._known_at(remote, shard)
        return remote_shard(remote, shard, *known) if known is not None else None

    def _known_at(self, remote: Remote, shard: Shard) -> tuple[str, Stored] | None:
        """Return where ``remote`` has the objects of the shard's save, and how it stores it."""
        there = self._store.read(copies.copy_of, shard.save, remote.name)
        stored = self._store.read(shards.stored_of, shard.version, remote.name)
        if there is None or there.location is None or stored is None:
            return None
        return there.location, stored


def is_missing(error: BaseException) -> bool:
    """Return whether a read failed as there is no object."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ObjectMissingError):
        cause = cause.__cause__
    return cause is not None


def remote_shard(remote: Remote, shard: Shard, location: str, stored: Stored) -> RemoteShard:
    """Return the copy of ``shard`` among the objects that a save has at ``location``."""
    bucket = remote.bucket
    key = bucket.layout.object_key(shard.run, location, shard.name, stored.pack_name)
    return RemoteShard(bucket.objects, key, shard.content, stored, remote.name, bucket.slots)
