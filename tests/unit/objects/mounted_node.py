"""A node with a mount: objects come into catalog and bucket as puts and the drain bring them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import apsw
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.uploads import DIGEST_KEY, ETAG_KEY
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.local.catalog import objects, shards
from cachetier.local.catalog.objects import UNCONDITIONAL, NewObject, NewPiece
from cachetier.local.store import Store
from cachetier.model.objects import Head, Mount, ObjectVersion, etag_of, piece_name
from cachetier.model.shard import INLINE_BYTES, Shard
from cachetier.objects.base import OpenedObject
from cachetier.objects.reads import ObjectReads
from cachetier.reclaim.evict import Evictor
from cachetier.remote.bucket import Bucket
from cachetier.remote.mounted import MountBuckets
from cachetier.restore.fill import Room
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.restore import Restore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import content_of, write

MOUNT = Mount("m", "bucket", "in/")
HEAD = Head({"content-type": "text/plain", "cache-control": "no-store"}, {"who": "me"})


class MountedNode:
    """What reads objects, over one store; ``bucket`` is the mount's."""

    def __init__(self, store: Store, clock: FakeClock, *, bucket_of_all: object = None) -> None:
        self.store = store
        store.space.capacity_bytes = 256 << 20
        self.clock = clock
        self.memory = (
            bucket_of_all
            if isinstance(bucket_of_all, MemoryObjectStore)
            else MemoryObjectStore(minimum_part_bytes=1, clock=clock)
        )
        self.bucket = FaultyObjectStore(self.memory)
        opened = Bucket(self.bucket, Layout())
        self.mounted = MountedObjects(store, MountBuckets([MOUNT], lambda _name: opened), clock)
        self.evictor = Evictor(store, clock, self._still_remote, look_into=self.mounted.look_into)
        self.restore = Restore(
            store,
            Bucket(MemoryObjectStore(), Layout()),
            clock,
            remote="durable",
            room=Room(lambda: None),
            mounted=self.mounted,
        )
        self.reads = ObjectReads(store, self.restore, self.mounted, self.restore.link, clock)

    def _still_remote(self, shard: Shard) -> bool:
        return self.restore.sources.still_there(shard)

    def put(self, key: str, *parts: bytes, head: Head = HEAD) -> ObjectVersion:
        """Put an object, whole or of several parts; it waits to be shown."""
        data = b"".join(parts)
        sizes = tuple(map(len, parts)) if len(parts) > 1 else ()
        number = self.store.read(objects.watermark)
        etag = etag_of(digest_of(data), f"{number:016x}", len(sizes))
        new = NewObject(key, head, number, etag, len(data), digest_of(data), sizes)
        pieces = [self._piece(part) for part in parts]
        now = self.clock.now()

        def commit(sql: apsw.Connection) -> int:
            save = objects.begun_mount(sql, MOUNT.run, now)
            committed = objects.insert_version(sql, save, new, UNCONDITIONAL, now)
            for at, piece in enumerate(pieces, 1):
                name = piece_name(committed.version, at)
                shards.insert_shard(sql, save, piece.named(name), now)
            return committed.version

        version = self.store.read(objects.by_version, self.store.write(commit))
        assert version is not None
        return version

    def delete(self, key: str) -> None:
        gone = NewObject(key, Head(), 0, "", 0, 0, deleted=True)
        now = self.clock.now()
        self.store.write(objects.delete_keys, MOUNT.run, [gone], now)

    def show(self, version: ObjectVersion) -> None:
        """Bring a version to the bucket, as the drain does."""
        data = b"".join(self._bytes_of(piece) for piece in self.pieces(version))
        ours = {ETAG_KEY: version.etag, DIGEST_KEY: to_hex(version.digest)}
        info = self.memory.put(
            version.key,
            data,
            digest=version.digest,
            metadata={**version.head.metadata, **ours},
            headers=version.head.headers,
        )
        self.store.write(
            objects.record_shown, version.version, info.etag, "durable", self.clock.now()
        )

    def shown(self, key: str, *parts: bytes) -> ObjectVersion:
        self.show(self.put(key, *parts))
        version = self.store.read(objects.current, MOUNT.run, key)
        assert version is not None
        return version

    def evicted(self, key: str, *parts: bytes) -> ObjectVersion:
        version = self.shown(key, *parts)
        assert all(self.evictor.evict(piece) for piece in self.pieces(version))
        return version

    def foreign(self, key: str, data: bytes) -> str:
        """Put an object past this node; return its ETag."""
        return self.memory.put(key, data, digest=digest_of(data)).etag.strip('"')

    def pieces(self, version: ObjectVersion) -> Sequence[Shard]:
        return self.store.read(objects.pieces_of, version.version)

    def read(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self.bytes_of(self.reads.open(MOUNT, key), start, end)

    def until_brought_back(self, version: ObjectVersion) -> None:
        """Return once nothing of a version is on its way: who reads along is not the last."""
        for piece in self.pieces(version):
            opened = self.restore.open(piece.run, piece.step, piece.name, 10.0)
            if opened.descriptor is not None:
                os.close(opened.descriptor)

    def bytes_of(self, opened: OpenedObject, start: int = 0, end: int | None = None) -> bytes:
        end = opened.found.size_bytes if end is None else end
        if opened.foreign is not None:
            return b"".join(bytes(each) for each in opened.foreign.read(start, end - start))
        data = bytearray()
        for piece in opened.pieces:
            with self.reads.open_piece(piece, 10.0) as content:
                for number in range(len(piece.shard.content.block_digests)):
                    data += content.read_block(number)
        return bytes(data[start:end])

    def _bytes_of(self, piece: Shard) -> bytes:
        copy = self.store.local_copy(piece)
        assert copy is not None
        if copy.body is not None:
            return copy.body
        assert copy.descriptor is not None
        with open(copy.descriptor, "rb") as file:
            return file.read()

    def _piece(self, data: bytes) -> NewPiece:
        content = content_of(data)
        assert self.store.space.try_reserve(len(data))
        if len(data) <= INLINE_BYTES:
            return NewPiece(content, body=data)
        staged = self.store.stage(len(data))
        write(staged, data)
        staged.close_writer()
        assert self.store.open_files.take_back(staged.file)
        self.store._keep(staged, content)
        return NewPiece(content, file_id=staged.file_id)
