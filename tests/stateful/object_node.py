"""The objects of a node, put together as the service does, and called as the S3 door does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import Clock
from cachetier_client.io.digests import block_lengths, blocks_of, combine, digest_of

from cachetier.access.quotas import Quotas
from cachetier.errors import NotFoundError
from cachetier.ingest.admission import Admission
from cachetier.ingest.shares import Shares
from cachetier.local.catalog import object_uploads
from cachetier.local.catalog.objects import InBucket
from cachetier.local.store import Staged, Store
from cachetier.model.backpressure import WhenFull
from cachetier.model.objects import NO_HEAD, Head, Mount
from cachetier.model.shard import INLINE_BYTES
from cachetier.notifier import Changes
from cachetier.objects.base import DeclaredPart, ObjectPart, PutAnswer, PutObject, StoredPart
from cachetier.objects.foreign import in_bucket
from cachetier.objects.intake import ObjectIntake
from cachetier.objects.ordering import PlaceInOrder
from cachetier.objects.puts import ObjectPuts
from cachetier.objects.reads import ObjectReads
from cachetier.objects.uploads import ObjectUploads
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.mounted import MountBuckets
from cachetier.remote.store_clock import StoreClock
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.restore import Restore
from cachetier.service.objects import NodeObjects
from tests.stateful.reading import bytes_of

MOUNT = Mount("data", "bucket", "in/")
MINIMUM_PART_BYTES = 100


def content_of(data: bytes) -> Content:
    """Describe ``data`` as a rank does: a digest for each block, and the whole from them."""
    blocks, start = [], 0
    for length in block_lengths(len(data)):
        blocks.append(digest_of(data[start : start + length]))
        start += length
    return Content(len(data), combine(blocks, len(data)), tuple(blocks))


def buckets_at(
    remote: ObjectStore, mount: Mount, store_clock: StoreClock | None = None
) -> MountBuckets:
    """Return the bucket of a mount, which is ``remote``."""
    bucket = Bucket(remote, Layout())
    return MountBuckets([mount], lambda _name: bucket, store_clock)


def mounted_at(
    store: Store,
    remote: ObjectStore,
    clock: Clock,
    mount: Mount,
    store_clock: StoreClock | None = None,
) -> MountedObjects:
    """Return the objects of a mount whose bucket is ``remote``."""
    return MountedObjects(store, buckets_at(remote, mount, store_clock), clock)


class NodeOrdering:
    """Keeps the order of this node alone."""

    def before_commit(
        self, _mount: Mount, _keys: Sequence[str]
    ) -> AbstractContextManager[PlaceInOrder]:
        return nullcontext(PlaceInOrder())


class ObjectNode:
    """Puts, deletes, uploads and reads keys of one mount; ``write`` writes bytes to a stage."""

    def __init__(
        self,
        store: Store,
        mounted: MountedObjects,
        restore: Restore,
        changes: Changes,
        clock: Clock,
        write: Callable[[Staged, bytes], None],
        *,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        (self.mount,) = mounted.buckets.mounts
        self._store = store
        self._mounted = mounted
        self._write = write
        admission = Admission(store, WhenFull.REJECT, make_room)
        shares = Shares(Quotas(), waits=False, ring=lambda: None)
        ordering = NodeOrdering()
        store_clock = mounted.buckets.store_clock
        self.intake = ObjectIntake(store, admission, shares, changes, clock, store_clock)
        self.puts = ObjectPuts(self.intake, ordering, self.look)
        self.uploads = ObjectUploads(self.intake, ordering, self.puts, MINIMUM_PART_BYTES)
        reads = ObjectReads(store, restore, mounted, restore.link, clock)
        self.objects = NodeObjects([self.mount], self.intake, self.puts, self.uploads, reads)

    def look(self, mount: Mount, key: str) -> InBucket:
        info = self._mounted.look(mount.run, key)
        return InBucket() if info is None else in_bucket(info)

    def staged(self, data: bytes) -> Staged:
        staged = self.objects.begin(self.mount, len(data), 0.0)
        try:
            self._write(staged, data)
        except BaseException:
            self.objects.abort(staged)
            raise
        return staged

    def put(self, key: str, data: bytes, head: Head = NO_HEAD, **how: object) -> PutAnswer:
        """Put an object the way its size asks for."""
        put = PutObject(key, head, self.objects.watermark(self.mount), **how)  # type: ignore[arg-type]
        bytes_of = data if len(data) <= INLINE_BYTES else self.staged(data)
        return self.objects.commit(self.mount, put, content=content_of(data), bytes_of=bytes_of)

    def delete(self, *keys: str) -> list[PutAnswer]:
        return self.objects.delete(self.mount, keys)

    def begin_upload(self, key: str) -> str:
        return self.objects.create_upload(self.mount, key, NO_HEAD, "somebody")

    def part(self, key: str, upload_id: str, number: int, data: bytes) -> StoredPart:
        return self.objects.commit_part(
            self.mount,
            key,
            upload_id,
            number,
            content=content_of(data),
            bytes_of=data if len(data) <= INLINE_BYTES else self.staged(data),
        )

    def complete(self, key: str, upload_id: str, parts: list[StoredPart]) -> PutAnswer:
        put = PutObject(key, NO_HEAD, self.objects.watermark(self.mount))
        declared = [DeclaredPart(part.number, part.etag) for part in parts]
        return self.objects.complete_upload(self.mount, put, upload_id, declared)

    def parts_put(self) -> dict[str, dict[int, bytes]]:
        """Return the bytes of the parts of every open upload, by its key; there is one of a key."""
        found = {}
        for upload in self.objects.uploads(self.mount, ""):
            parts = self._store.read(object_uploads.parts_of, upload.upload_id)
            found[upload.key] = {
                part.number: bytes_of(self._store, part.shard) or b"" for part in parts
            }
        return found

    def get(self, key: str) -> bytes | None:
        """Read an object as the door does; None where there is none."""
        try:
            opened = self.objects.open(self.mount, key)
        except NotFoundError:
            return None
        if opened.foreign is not None:
            return b"".join(opened.foreign.read(0, opened.found.size_bytes))
        data = b"".join(map(self._bytes_of, opened.pieces))
        assert digest_of(data) == opened.found.digest
        return data

    def _bytes_of(self, piece: ObjectPart) -> bytes:
        with self.objects.open_piece(piece, 0.0) as opened:
            blocks = range(blocks_of(piece.size_bytes))
            return b"".join(bytes(opened.read_block(number)) for number in blocks)
