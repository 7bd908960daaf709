"""Ask a remote whether it still holds the objects that the catalog says it does."""

from __future__ import annotations

import threading

from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import DIGEST_KEY, SAVE_KEY
from cachetier_client.clock import Clock

from cachetier.model.shard import Shard
from cachetier.remote.base import ObjectInfo
from cachetier.remote.bucket import Bucket, Remote

MOMENT_SECONDS = 5.0
REMEMBERED_PACKS = 256


class Looks:
    """Asks for a pack once for all its members that go in the same moment. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen_at: dict[tuple[str, str, str], float] = {}

    def holds(self, remote: Remote, shard: Shard, location: str, stored: Stored) -> bool:
        """Return what ``holds`` does, or for a pack what it said a moment ago.

        Raises:
            RemoteError: The store cannot say.
        """
        if stored.pack is None:
            return holds(remote.bucket, shard, location, stored)
        pack = remote.name, f"{shard.run}/{location}/{shard.save_id}", stored.pack.name
        with self._lock:
            if self._clock.monotonic() - self._seen_at.get(pack, -MOMENT_SECONDS) < MOMENT_SECONDS:
                return True
        there = holds(remote.bucket, shard, location, stored)
        with self._lock:
            self._seen_at.pop(pack, None)
            if there:
                self._seen_at[pack] = self._clock.monotonic()
            if len(self._seen_at) > REMEMBERED_PACKS:
                del self._seen_at[next(iter(self._seen_at))]
        return there


def holds(bucket: Bucket, shard: Shard, location: str, stored: Stored | None = None) -> bool:
    """Return whether the object of ``shard`` is there now: same size, same digest, same save.

    Of a packed one that is its pack.

    Args:
        stored: What was verified there; the raw bytes where it says nothing.

    Raises:
        RemoteError: The store cannot say.
    """
    stored = stored or Stored.raw(shard.content)
    key = bucket.layout.object_key(shard.run, location, shard.name, stored.pack_name)
    found = bucket.objects.head(key)
    return found is not None and is_object_of(found, shard.save_id, shard.content.digest, stored)


def is_object_of(found: ObjectInfo, save_id: str, digest: int, stored: Stored) -> bool:
    """Return whether ``found`` is, as far as HEAD can say, the object that was verified before.

    Where the store keeps no digest, the metadata that was written with the object stands in for it;
    a shard that was streamed straight to the remote has none there, as it was not known yet.
    """
    holds = stored.pack or stored
    if found.size_bytes != holds.size_bytes or found.digest not in (None, holds.digest):
        return False
    text = f"{stored.pack.digest if stored.pack is not None else digest:016x}"
    return found.metadata.get(SAVE_KEY) == save_id and found.metadata.get(DIGEST_KEY, text) == text
