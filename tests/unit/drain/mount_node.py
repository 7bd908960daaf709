"""A node with a mount of the S3 door: its versions are written as a put does, its drain is real."""

from __future__ import annotations

import apsw
from cachetier_client.io.digests import joined

from cachetier.local.catalog import object_writes, objects, statements
from cachetier.local.catalog.object_writes import Condition, NewObject
from cachetier.local.catalog.records import NewShard
from cachetier.model.objects import NO_HEAD, Head, Mount, ObjectVersion, etag_of, piece_name
from cachetier.remote.base import ObjectStore
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node, content_of
from tests.stateful.real_drain import RealDrain

MOUNT = Mount("mount", "data", "ckpt/")


class MountNode:
    """Puts and deletes keys of ``MOUNT``; ``store`` is the bucket that it lies in."""

    def __init__(self, node: Node, store: ObjectStore, clock: FakeClock) -> None:
        self.node = node
        self.clock = clock
        self.drain = RealDrain(node.store, node.bucket, clock, [MOUNT], {MOUNT.bucket: store})
        self._nonces = 0

    def put(
        self,
        key: str,
        *pieces: bytes,
        follows: int | None = None,
        head: Head = NO_HEAD,
        epoch: str | None = None,
        waits: str | None = None,
    ) -> int:
        """Commit an object of ``pieces`` and return its version."""
        contents = [content_of(piece) for piece in pieces]
        digest = joined((each.digest, each.size_bytes) for each in contents)
        sizes = tuple(map(len, pieces)) if len(pieces) > 1 else ()
        self._nonces += 1
        new = NewObject(
            key,
            head,
            self.watermark() if follows is None else follows,
            etag_of(digest, f"{self._nonces:016x}", len(sizes)),
            sum(map(len, pieces)),
            digest,
            sizes,
            epoch=epoch,
            waits=waits,
        )

        def record(sql: apsw.Connection) -> int:
            save = object_writes.begun_mount(sql, MOUNT.run, self.clock.now())
            found = object_writes.insert_version(sql, save, new, Condition(), self.clock.now())
            version = found.version
            for number, (content, body) in enumerate(zip(contents, pieces, strict=True), 1):
                shard = NewShard(piece_name(version, number), 0, content, body=body)
                statements.insert_shard(sql, save, shard, self.clock.now())
            return version

        return self.node.store.write(record)

    def delete(self, key: str) -> int:
        """Commit the deletion of a key and return its version."""
        new = NewObject(key, NO_HEAD, 0, "", 0, 0, deleted=True)
        now = self.clock.now()
        deleted = self.node.store.write(object_writes.delete_keys, MOUNT.run, [new], now)
        return deleted.versions[0].version

    def watermark(self) -> int:
        return self.node.store.read(objects.watermark)

    def version(self, number: int) -> ObjectVersion | None:
        return self.node.store.read(objects.by_version, number)

    def unshown(self) -> list[int]:
        save = self.node.store.read(objects.mount_save, MOUNT.run)
        return [] if save is None else self.node.store.read(objects.unshown_versions, save)

    def close(self) -> None:
        self.drain.close()
