"""Read published steps from the bucket alone, as a person with its format at hand would."""

from __future__ import annotations

from cachetier_client.bucket_format.documents import ShardEntry
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.errors import CachetierError
from cachetier.remote.bucket import Bucket
from tests.stateful.invariants import ViolationError, require


def published_bytes(bucket: Bucket, run: str, step: int) -> tuple[str, dict[str, bytes]] | None:
    """Return the save that is published, and each of its shards; None if there is none.

    Raises:
        ViolationError: It is not whole, or not one save's.
    """
    manifest = bucket.published(run, step)
    if manifest is None:
        return None
    where = f"step {step} as published"
    require([part.rank for part in manifest.parts] == [*range(manifest.world_size)], where)
    entries: list[ShardEntry] = []
    for reference in manifest.parts:
        try:
            part = bucket.part(run, manifest.location, reference.rank, reference.digest)
        except CachetierError as error:
            raise ViolationError(f"{where}: {error}") from error
        require(part.save_id == manifest.save_id, f"{where} has a part of {part.save_id}")
        entries += part.shards
    names = [entry.name for entry in entries]
    require(len(set(names)) == len(names), f"{where} lists a name twice: {names}")
    listed = tuple(entry.summary() for entry in entries)
    require(listed == manifest.shards, f"{where} lists other shards than its parts")
    layout, location = bucket.layout, manifest.location
    found = {}
    for entry in entries:
        key = layout.object_key(run, location, entry.name, entry.pack_name)
        found[entry.name] = _bytes_of(bucket, key, entry, manifest.save_id)
    return manifest.save_id, found


def _bytes_of(bucket: Bucket, key: str, entry: ShardEntry, save_id: str) -> bytes:
    there = bucket.has(key, save_id, int(entry.digest, 16), entry.stored())
    require(there, f"published {key} is not there")
    body = bucket.objects.get(key)
    if entry.pack is not None:
        body = body[entry.pack.start : entry.pack.start + entry.size_bytes]
    require(entry.codec is Codec.RAW, "nothing is compressed here")
    require(to_hex(digest_of(body)) == entry.digest, f"published {key} has other bytes")
    return body
