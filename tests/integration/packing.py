"""What tests of packs share: a rank's small shards, and looking at the bucket by hand."""

from __future__ import annotations

from cachetier_client.bucket_format.documents import ShardSummary
from cachetier_client.bucket_format.stored import InPack
from cachetier_client.identity.names import SaveIds

from cachetier.drain.messages import Size
from cachetier.local.catalog import shards
from cachetier.remote.base import ObjectStore
from tests.integration.drain_node import REMOTE, Node, patterned

SIZE = Size(uploads=4, parts=4)
SHARDS = 140


def body_of(number: int) -> bytes:
    """Return a small shard: empty, in the catalog or in a file of its own."""
    return patterned(number * 1000, number)


def put_small(node: Node, ids: SaveIds, shards: int = SHARDS) -> dict[str, bytes]:
    """Put the small shards of a rank, and return them by name."""
    bodies = {f"r{ids.rank}-{number}": body_of(number) for number in range(shards)}
    for name, body in bodies.items():
        node.put(ids, name, body)
    return bodies


def packs_in(objects: ObjectStore, prefix: str = "ckpt/") -> list[str]:
    """Return the keys of all packs."""
    return [key for key in objects.list(prefix).keys if "/.cachetier/pack-" in key]


def summaries(node: Node, ids: SaveIds) -> dict[str, ShardSummary]:
    """Return the shards of a published step as its manifest lists them."""
    manifest = node.bucket.published(ids.run, ids.step)
    assert manifest is not None
    return {shard.name: shard for shard in manifest.shards}


def by_hand(node: Node, ids: SaveIds, name: str) -> bytes:
    """Read a shard with what the manifest says alone, as anybody can."""
    shard = summaries(node, ids)[name]
    folder = f"ckpt/{ids.run}/{ids.step}"
    if shard.pack is None:
        return node.bucket.objects.get(f"{folder}/{name}")
    key = f"{folder}/.cachetier/{shard.pack.name}"
    return node.bucket.objects.get(key)[shard.pack.start :][: shard.size_bytes]


def in_pack(node: Node, ids: SaveIds, name: str) -> InPack | None:
    """Return where the catalog has a shard."""
    shard = node.shard(ids, name)
    assert shard is not None
    stored = node.store.read(lambda sql: shards.stored_of(sql, shard.version, REMOTE))
    assert stored is not None
    return stored.pack
