"""Ask a remote whether it still holds what the catalog says it does."""

from __future__ import annotations

from cachetier.model.shard import Shard
from cachetier.model.stored import Stored
from cachetier.model.uploads import DIGEST_KEY, SAVE_KEY
from cachetier.remote.base import ObjectInfo
from cachetier.remote.bucket import Bucket


def holds(bucket: Bucket, shard: Shard, location: str, stored: Stored | None = None) -> bool:
    """Return whether the object of ``shard`` is there now: same size, same digest, same save.

    Args:
        stored: What was verified there; the raw bytes where it says nothing.

    Raises:
        RemoteError: The store cannot say.
    """
    found = bucket.objects.head(bucket.layout.shard_key(shard.run, location, shard.name))
    stored = stored or Stored.raw(shard.content)
    return found is not None and is_object_of(found, shard.save_id, shard.content.digest, stored)


def is_object_of(found: ObjectInfo, save_id: str, digest: int, stored: Stored) -> bool:
    """Return whether ``found`` is, as far as HEAD can say, the object that was verified before.

    Where the store keeps no digest, the metadata that was written with the object stands in for it;
    a shard that was streamed straight to the remote has none there, as it was not known yet.
    """
    if found.size_bytes != stored.size_bytes or found.digest not in (None, stored.digest):
        return False
    text = f"{digest:016x}"
    return found.metadata.get(SAVE_KEY) == save_id and found.metadata.get(DIGEST_KEY, text) == text
