"""List the objects of a save, so that its deletion deletes nothing else.

A save's are the keys below its ``.cachetier/`` (but for parts of another save, with their packs),
those that its parts name, and those whose metadata bear its id. Whatever else lies between them is
somebody else's, also where it lies under the key of a shard that we never brought there, and so is
what we may not look at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cachetier_client.bucket_format.documents import PartDocument, decode
from cachetier_client.bucket_format.layout import rank_of_part
from cachetier_client.bucket_format.uploads import SAVE_KEY, ObjectInfo

from cachetier.errors import IntegrityError, ObjectMissingError, RemoteRefusedError
from cachetier.remote.bucket import Bucket, Each
from cachetier.telemetry.events import OfSave


@dataclass(frozen=True, slots=True)
class OwnedKeys:
    """Keys at a save's location, without the manifest of its step.

    ``parts`` say what else is the save's, so they go last. ``others`` are not the save's.
    """

    shards: tuple[str, ...]
    packs: tuple[str, ...]
    parts: tuple[str, ...]
    others: tuple[str, ...]

    def __len__(self) -> int:
        """Return how many of them are the save's."""
        return len(self.shards) + len(self.packs) + len(self.parts)


def owned_keys(
    bucket: Bucket,
    save: OfSave,
    location: str,
    *,
    each: Each = map,
    verified: Iterable[str] = (),
) -> OwnedKeys:
    """Return what is there of ``save``; only a key that nothing names costs a HEAD.

    Args:
        bucket: Where.
        save: Whose.
        location: Where its objects are.
        each: Makes many calls.
        verified: Names of shards that are known to be there, and the save's, beside its parts'.

    Raises:
        RemoteError: The store cannot say.
    """
    layout = bucket.layout
    outer, reserved = _listed(bucket, save, location)
    documents = sorted(key for key in reserved if rank_of_part(key) is not None)
    named = {layout.shard_key(save.run, location, name) for name in verified}
    theirs: set[str] = set()
    found = each(lambda key: _part_at(bucket, save, key), documents)
    for document, part in zip(documents, found, strict=True):
        if part is None:
            continue
        keys = {
            layout.object_key(save.run, location, shard.name, shard.pack_name)
            for shard in part.shards
        }
        if (part.run, part.step, part.save_id) == (save.run, save.step, save.save_id):
            named |= keys  # it was written after a look at each
        else:
            theirs |= {document, *keys} & reserved
    ours, others = outer & named, sorted(theirs)
    unnamed = sorted(outer - named)
    looks = each(lambda key: bucket.look(save.run, save.step, key), unnamed)
    for key, seen in zip(unnamed, looks, strict=True):
        if isinstance(seen, ObjectInfo) and seen.metadata.get(SAVE_KEY) == save.save_id:
            ours.add(key)
        elif seen is not None:
            others.append(key)
    parts = set(documents) - theirs
    packs = reserved - theirs - parts
    return OwnedKeys(*map(tuple, (sorted(ours), sorted(packs), sorted(parts), others)))


def _listed(bucket: Bucket, save: OfSave, location: str) -> tuple[set[str], set[str]]:
    """Return the keys at a location, and apart from them those below its ``.cachetier/``."""
    layout = bucket.layout
    prefixes = layout.prefixes(save.run, location)
    keys = {key for prefix in prefixes for key in bucket.objects.list(prefix).keys}
    keys.discard(layout.manifest_key(save.run, save.step))
    inner = layout.parts_prefix(save.run, location)
    reserved = {key for key in keys if key.startswith(inner)}
    return keys - reserved, reserved


def _part_at(bucket: Bucket, save: OfSave, key: str) -> PartDocument | None:
    """Return a part, of whichever save; None where it is damaged, or closed to us."""
    try:
        return decode(PartDocument, bucket.objects.get(key), key)
    except (ObjectMissingError, IntegrityError):
        return None
    except RemoteRefusedError:
        bucket.look(save.run, save.step, key)  # or more is refused than this
        return None
