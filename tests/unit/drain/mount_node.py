"""A node with a mount of the S3 door: its versions are written as a put does, its drain is real."""

from __future__ import annotations

import apsw
from cachetier_client.io.digests import joined

from cachetier.local.catalog import objects, shards
from cachetier.local.catalog.objects import UNCONDITIONAL, KeyCondition, NewObject
from cachetier.local.catalog.rows import NewShard
from cachetier.model.objects import NO_HEAD, Head, Mount, ObjectVersion, etag_of, piece_name
from cachetier.remote.base import ObjectStore
from cachetier.remote.store_clock import StoreClock
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node, content_of
from tests.stateful.real_drain import RealDrain

MOUNT = Mount("mount", "data", "ckpt/")


def known_clock(clock: FakeClock) -> StoreClock:
    """Return the clock of a store that tells the same as ``clock``, which nobody sets."""
    store_clock, offset = StoreClock(clock.monotonic), clock.now() - clock.monotonic()
    store_clock.learn((offset, offset))
    return store_clock


class MountNode:
    """Puts and deletes keys of ``MOUNT``; ``store`` is the bucket that it lies in."""

    def __init__(self, node: Node, store: ObjectStore, clock: FakeClock) -> None:
        self.node = node
        self.clock = clock
        self.store_clock = known_clock(clock)
        stores = {MOUNT.bucket: store}
        self.drain = RealDrain(node.store, node.bucket, clock, [MOUNT], stores, self.store_clock)
        self._nonces = 0

    def put(
        self,
        key: str,
        *pieces: bytes,
        follows: int | None = None,
        head: Head = NO_HEAD,
        epoch: str | None = None,
        waits: str | None = None,
        condition: KeyCondition = UNCONDITIONAL,
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
            acknowledged_at=self.store_clock.now(),
        )

        def record(sql: apsw.Connection) -> int:
            save = objects.begun_mount(sql, MOUNT.run, self.clock.now())
            found = objects.insert_version(sql, save, new, condition, self.clock.now())
            version = found.version
            for number, (content, body) in enumerate(zip(contents, pieces, strict=True), 1):
                shard = NewShard(piece_name(version, number), 0, content, body=body)
                shards.insert_shard(sql, save, shard, self.clock.now())
            return version

        return self.node.store.write(record)

    def delete(self, *keys: str) -> int:
        """Commit the deletion of keys, by one request, and return the version of the first."""
        at, now = self.store_clock.now(), self.clock.now()
        gone = [
            NewObject(key, NO_HEAD, 0, "", 0, 0, deleted=True, acknowledged_at=at) for key in keys
        ]
        deleted = self.node.store.write(objects.delete_keys, MOUNT.run, gone, now)
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
