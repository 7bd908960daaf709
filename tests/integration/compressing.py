"""What tests of a compressing drain share: reading the bucket by hand."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import zstandard
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.identity.names import SaveIds

from cachetier.drain.messages import Size
from cachetier.local.catalog import shards
from cachetier.remote.base import ObjectStore
from cachetier.restore.fill import Room
from cachetier.restore.restore import Restore
from tests.integration.drain_node import REMOTE, Node

SIZE = Size(uploads=4, parts=4, threads=2)
COMPRESSION = "zstd:1"


def decoded(body: bytes) -> bytes:
    """Decode a whole object as any zstd tool does: frame after frame, past skippable ones."""
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True)
    return reader.read()


def stored(node: Node, ids: SaveIds, name: str) -> Stored | None:
    """Return what the node knows of the shard's object."""
    shard = node.shard(ids, name)
    assert shard is not None
    return node.store.read(lambda sql: shards.stored_of(sql, shard.version, REMOTE))


@contextlib.contextmanager
def clean_node(cache_dir: Path, objects: ObjectStore) -> Iterator[Restore]:
    """A node that never saw the run: all it has is the bucket."""
    node = Node(cache_dir, objects)
    restore = Restore(
        node.store, node.bucket, node.clock, remote=REMOTE, room=Room(node.changes.ring)
    )
    yield restore
    restore.close()
    node.close()


def restored(restore: Restore, ids: SaveIds, name: str) -> bytes:
    opened = restore.open(ids.run, ids.step, name, 30.0)
    if opened.descriptor is None:
        assert opened.body is not None
        return opened.body
    with open(opened.descriptor, "rb") as file:
        data = file.read()
        assert os.fstat(file.fileno()).st_size == len(data)
        return data
