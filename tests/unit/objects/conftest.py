"""The putting side of objects over the store of a node, and a bucket that a look may find."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cachetier.access.quotas import Quotas
from cachetier.ingest.admission import Admission
from cachetier.ingest.shares import Shares
from cachetier.local.catalog import object_writes, objects
from cachetier.local.catalog.object_writes import InBucket
from cachetier.local.store import Staged
from cachetier.model.backpressure import WhenFull
from cachetier.model.objects import NO_HEAD, Head, Mount, ObjectVersion
from cachetier.objects.base import DeclaredPart, PutAnswer, PutObject, StoredPart
from cachetier.objects.intake import ObjectIntake
from cachetier.objects.ordering import NodeOrdering
from cachetier.objects.puts import ObjectPuts
from cachetier.objects.uploads import ObjectUploads
from tests.stateful.node import Node, content_of, write
from tests.stateful.reading import bytes_of

MOUNT = Mount("data", "bucket")
INLINE_BYTES = 64 << 10
MINIMUM_PART_BYTES = 100


@dataclass
class Putting:
    """Puts objects as the door does, and reads them back from the catalog."""

    node: Node
    mount: Mount = MOUNT
    there: dict[str, InBucket] = field(default_factory=dict)
    looks: int = 0

    def __post_init__(self) -> None:
        store, clock = self.node.store, self.node.clock
        admission = Admission(store, WhenFull.REJECT, lambda: None)
        self.quotas = Quotas()
        self.intake = ObjectIntake(
            store,
            admission,
            Shares(self.quotas, waits=False, ring=lambda: None),
            self.node.changes,
            clock,
        )
        ordering = NodeOrdering()
        self.puts = ObjectPuts(self.intake, ordering, self._look)
        self.uploads = ObjectUploads(self.intake, ordering, self.puts, MINIMUM_PART_BYTES)

    def _look(self, _mount: Mount, key: str) -> InBucket:
        self.looks += 1
        return self.there.get(key, InBucket())

    def staged(self, data: bytes) -> Staged:
        staged = self.intake.begin(self.mount, len(data), 0.0)
        write(staged, data)
        return staged

    def put(self, key: str, data: bytes, head: Head = NO_HEAD, **how: object) -> PutAnswer:
        """Put an object the way its size asks for."""
        put = PutObject(key, head, self.puts.watermark(self.mount), **how)  # type: ignore[arg-type]
        if len(data) <= INLINE_BYTES:
            return self.puts.commit_inline(self.mount, put, data, 0.0)
        return self.puts.commit(self.mount, put, self.staged(data), content_of(data))

    def part(self, key: str, upload_id: str, number: int, data: bytes) -> StoredPart:
        small = len(data) <= INLINE_BYTES
        return self.uploads.commit_part(
            self.mount,
            key,
            upload_id,
            number,
            content=content_of(data),
            bytes_of=data if small else self.staged(data),
        )

    def complete(self, key: str, upload_id: str, parts: list[StoredPart]) -> PutAnswer:
        put = PutObject(key, NO_HEAD, self.puts.watermark(self.mount))
        declared = [DeclaredPart(part.number, part.etag) for part in parts]
        return self.uploads.complete_upload(self.mount, put, upload_id, declared)

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
        store.drop(store.write(object_writes.record_shown, version, etag, "durable", 1.0))
        self.node.changes.ring()


@pytest.fixture
def putting(node: Node) -> Putting:
    return Putting(node)
