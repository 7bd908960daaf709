"""Ask a remote whether it still holds what the catalog says it does."""

from __future__ import annotations

from cachetier.model.shard import Shard
from cachetier.model.uploads import DIGEST_KEY, SAVE_KEY
from cachetier.remote.base import ObjectInfo
from cachetier.remote.bucket import Bucket


def holds(bucket: Bucket, shard: Shard, location: str) -> bool:
    """Return whether the object of ``shard`` is there now: same size, same digest, same save.

    Raises:
        RemoteError: The store cannot say.
    """
    found = bucket.objects.head(bucket.layout.shard_key(shard.run, location, shard.name))
    content = shard.content
    return found is not None and is_object_of(
        found, shard.save_id, content.size_bytes, content.digest
    )


def is_object_of(found: ObjectInfo, save_id: str, size_bytes: int, digest: int) -> bool:
    """Return whether ``found`` is, as far as HEAD can say, the object that was verified before.

    Where the store keeps no digest, the metadata that was written with the object stands in for it;
    a shard that was streamed straight to the remote has none there, as it was not known yet.
    """
    if found.size_bytes != size_bytes or found.digest not in (None, digest):
        return False
    text = f"{digest:016x}"
    return found.metadata.get(SAVE_KEY) == save_id and found.metadata.get(DIGEST_KEY, text) == text
