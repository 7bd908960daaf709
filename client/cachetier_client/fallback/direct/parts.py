"""The rank parts that this process is saving, and where each of their shards is.

It is kept for all clients of the process, and as long as the part is not sealed or aborted, however
many saves that are: a part must not be published without a shard that somebody was promised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachetier_client import forks
from cachetier_client.bucket_format.documents import HeldShard, PartDocument, ShardEntry
from cachetier_client.deadline import Deadline
from cachetier_client.fallback.direct.remote import RemoteAddress
from cachetier_client.identity.names import SaveIds

SEALED_LIMIT = 64
UNSEALED_LIMIT = 4096

Key = tuple[str, int, int, str]


@dataclass(slots=True)
class DirectRankPart:
    """One rank's part of a save, as far as this process put it.

    Attributes:
        started_at: When this process first put something of it.
        held: What the service acknowledged.
        stored: What went straight to the bucket, verified.
        address: Which bucket, once the step is claimed there.
        location: Where in the bucket, then.
        begun: How many shards of it something may be of in the bucket.
        sealed: The part's document, once it lies there.
        final: Whether it is sealed, here or at the service, so that nothing may be added.
        pending: Whether the service is to seal it, once it is back.
        followed: Whether it was sealed at the service, but may still grow.
    """

    part: SaveIds
    started_at: float
    held: dict[str, HeldShard] = field(default_factory=dict)
    stored: dict[str, ShardEntry] = field(default_factory=dict)
    address: RemoteAddress | None = None
    location: str | None = None
    begun: int = 0
    sealed: PartDocument | None = None
    final: bool = False
    pending: bool = False
    followed: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def direct(self) -> bool:
        """Whether it goes straight to the bucket, which then stays so."""
        return self.begun > 0

    def turns_back(self, is_back: Callable[[], bool]) -> bool:
        """Return whether its first shard, half sent, goes to the service after all."""
        if self.begun != 1 or not is_back():
            return False
        with self.lock:
            if self.begun != 1:
                return False
            self.begun = 0
            return True

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is anywhere."""
        return not (self.held or self.stored or self.location is not None or self.final)

    @property
    def has_ended(self) -> bool:
        """Whether it may be forgotten."""
        return self.final or self.sealed is not None or self.pending or self.followed

    @property
    def is_sealed_by_service(self) -> bool:
        """Whether the service has sealed it for good: what comes then, it alone can answer."""
        return self.final and not self.pending and self.sealed is None

    @contextmanager
    def locked(self, deadline: Deadline) -> Iterator[None]:
        """Keep other calls from the part.

        Raises:
            DeadlineError: Another call does, for longer than this one may take.
        """
        what = f"waiting for another call of rank {self.part.rank}"
        if not self.lock.acquire(timeout=deadline.require(what)):
            raise deadline.passed(what)
        try:
            yield
        finally:
            self.lock.release()


class DirectRankParts:
    """The parts of a process. Thread-safe; a forked child begins with what its parent knew."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._states: dict[Key, DirectRankPart] = {}
        forks.own(self)

    def of(self, part: SaveIds, now: float) -> DirectRankPart:
        """Return what is known of ``part``, from now on at least its name."""
        with self._lock:
            state = self._states.get(_key(part))
            if state is None or (state.part != part and state.is_empty):
                state = self._states[_key(part)] = DirectRankPart(part, now)
            if len(self._states) > UNSEALED_LIMIT:  # puts that nobody ever seals
                del self._states[next(iter(self._states))]
            return state

    def known(self, part: SaveIds) -> DirectRankPart | None:
        """Return what is known of ``part``; None if this process put nothing of it."""
        with self._lock:
            return self._states.get(_key(part))

    def forget(self, part: SaveIds) -> None:
        """Forget a part that has ended at the service."""
        with self._lock:
            self._states.pop(_key(part), None)

    def ended(self, state: DirectRankPart) -> None:
        """Keep a part that was sealed, as its seal may be repeated; but not many of them."""
        with self._lock:
            if self._states.pop(_key(state.part), None) is not None:
                self._states[_key(state.part)] = state  # now the youngest
            ended = [key for key, each in self._states.items() if each.has_ended]
            for key in ended[:-SEALED_LIMIT]:
                del self._states[key]

    def abandon(self) -> None:
        """Renew the locks in a forked child, where who held them does not exist."""
        self._lock = threading.RLock()
        for state in self._states.values():
            state.lock = threading.RLock()
        forks.own(self)


def _key(part: SaveIds) -> Key:
    return part.run, part.step, part.rank, part.save_id


THIS_PROCESS = DirectRankParts()
