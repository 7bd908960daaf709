"""The putting side of objects over the store of a node, and a bucket that a look may find."""

from __future__ import annotations

import pytest

from cachetier.local.catalog import objects
from cachetier.local.catalog.objects import InBucket
from cachetier.model.objects import Mount, ObjectVersion
from cachetier.remote.base import ObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node, write
from tests.stateful.object_node import MINIMUM_PART_BYTES, ObjectNode, mounted_at
from tests.stateful.reading import bytes_of

MOUNT = Mount("data", "bucket")
__all__ = ["MINIMUM_PART_BYTES", "MOUNT", "Putting"]


class Putting(ObjectNode):
    """Puts objects as the door does, and reads them back from the catalog.

    ``there`` is what looks find in the bucket, and ``looks`` how many there were.
    """

    def __init__(self, node: Node, mount: Mount = MOUNT) -> None:
        self.node = node
        self.there: dict[str, InBucket] = {}
        self.looks = 0
        bucket: ObjectStore = MemoryObjectStore()
        mounted = mounted_at(node.store, bucket, node.clock, mount)
        super().__init__(node.store, mounted, node.restore, node.changes, node.clock, write)

    def look(self, _mount: Mount, key: str) -> InBucket:
        self.looks += 1
        return self.there.get(key, InBucket())

    def current(self, key: str) -> ObjectVersion | None:
        return self.node.store.read(objects.current, self.mount.run, key)

    def read(self, key: str) -> bytes | None:
        """Return the bytes of what readers see under a key; None for nothing."""
        found = self.current(key)
        if found is None or found.deleted:
            return None
        store = self.node.store
        pieces = store.read(objects.pieces_of, found.version)
        assert len(pieces) == found.pieces
        return b"".join(bytes_of(store, piece) or b"" for piece in pieces)

    def show(self, version: int, etag: str = "remote") -> None:
        store = self.node.store
        store.drop(store.write(objects.record_shown, version, etag, "durable", 1.0))
        self.node.changes.ring()


@pytest.fixture
def putting(node: Node) -> Putting:
    return Putting(node)
