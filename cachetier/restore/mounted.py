"""Objects of mounts as their buckets have them: looked at, read by pieces, let go once replaced.

A bucket under a mount is not ours alone: other nodes and other programs put and delete there. What
this node put is served from here while the bucket shows it; a look, which lasts a moment, says so.
What somebody else has replaced goes here too. What is gone there stays here for a while, as it may
be the only copy: ``cachetier fsck --repair`` sends it again. Nobody reads it meanwhile, as a
deletion through another node's door looks the same.
"""

from __future__ import annotations

import logging
import threading

from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.clock import Clock

from cachetier.errors import RemoteError
from cachetier.local.catalog import objects
from cachetier.local.store import Store
from cachetier.model.objects import ObjectVersion
from cachetier.model.shard import Shard
from cachetier.remote.mounted import MountBuckets
from cachetier.restore.remote_shard import RemoteShard
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

FRESH_SECONDS = 5.0  # for so long a look at an object counts
GONE_SECONDS = 3600.0  # what is gone in the bucket stays here for so long
REMEMBERED_LOOKS = 4096


class MountedObjects:
    """Looks at objects in the buckets of mounts. Thread-safe."""

    def __init__(self, store: Store, buckets: MountBuckets, clock: Clock) -> None:
        self._store = store
        self.buckets = buckets
        self._clock = clock
        self._lock = threading.Lock()
        self._shown_at: dict[int, float] = {}  # by version, as below
        self._gone_at: dict[int, float] = {}

    def look(self, run: str, key: str) -> ObjectInfo | None:
        """Return what the bucket of a mount has under a key.

        Raises:
            RemoteError: It cannot say.
        """
        return self.buckets.of(run).objects.head(key)

    def shows(self, version: ObjectVersion) -> bool:
        """Return whether the bucket shows a clean version, or did a moment ago; raises as ``look``.

        A look that found something else counts for nothing: it may be older than the version.
        """
        now = self._clock.monotonic()
        with self._lock:
            if now - self._shown_at.get(version.version, float("-inf")) < FRESH_SECONDS:
                return True
        found = self.look(version.run, version.key)
        shown = found is not None and found.etag == version.remote_etag
        with self._lock:
            self._shown_at.pop(version.version, None)
            if shown:
                _remember(self._shown_at, version.version, now)
        return shown

    def forget_look(self, version: ObjectVersion) -> None:
        """Forget what a look found: something says that it is not so any more."""
        with self._lock:
            self._shown_at.pop(version.version, None)

    def copy_of(self, piece: Shard) -> RemoteShard | None:
        """Return the copy of a piece in its mount's bucket, if that was verified to be there."""
        place = self._store.read(objects.place_of, piece)
        if place is None or not place.version.shown:
            return None
        try:
            bucket = self.buckets.of(piece.run)
        except RemoteError:
            return None
        return RemoteShard(
            bucket.objects,
            place.version.key,
            piece.content,
            Stored.raw(piece.content),
            piece.run,
            bucket.slots,
            begin=place.start,
            etag=place.version.remote_etag,
        )

    def still_there(self, piece: Shard) -> bool:
        """Ask whether the bucket still shows the object of a piece; raises as ``look``."""
        place = self._store.read(objects.place_of, piece)
        if place is None or not place.version.shown:
            return False
        return self.shows(place.version)

    def look_into(self, piece: Shard) -> None:
        """Act on it that the bucket does not show the object of a piece any more.

        Raises:
            RemoteError: It cannot say.
        """
        place = self._store.read(objects.place_of, piece)
        if place is None or not place.version.shown:
            return
        found = self.look(piece.run, place.version.key)
        if found is None:
            self._is_gone(place.version)
        elif found.etag != place.version.remote_etag:
            self.let_go(place.version)

    def let_go(self, version: ObjectVersion) -> None:
        """Forget a clean version that somebody else replaced in the bucket, and its bytes."""
        pieces = self._store.write(objects.forget_shown, version.version)
        if pieces is not None:
            self._store.drop(pieces)
            tell(log, events.OBJECT_REPLACED, run=version.run, key=version.key)

    def _is_gone(self, version: ObjectVersion) -> None:
        now, number = self._clock.monotonic(), version.version
        with self._lock:
            since = self._gone_at.get(number)
            if since is None:
                _remember(self._gone_at, number, now)
        if since is None:
            tell(log, events.OBJECT_GONE, run=version.run, key=version.key)
        elif now - since >= GONE_SECONDS:
            self.let_go(version)


def _remember(instants: dict[int, float], version: int, now: float) -> None:
    """Note when something was seen of a version; the oldest note goes when there are many."""
    instants[version] = now
    if len(instants) > REMEMBERED_LOOKS:
        del instants[next(iter(instants))]
