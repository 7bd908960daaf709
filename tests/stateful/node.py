"""A node: the durable core put together as the service does, without processes and doors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import block_lengths
from cachetier_client.results import Receipt

from cachetier.ingest.ingest import NodeIngest
from cachetier.ingest.write_back import WriteBack
from cachetier.local.catalog import connection, saves, shards
from cachetier.local.files.data_files import Files
from cachetier.local.recovery import lock_directory, open_store
from cachetier.local.store import Staged, Store
from cachetier.model.backpressure import WhenFull
from cachetier.model.objects import is_mount
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.model.shard import INLINE_BYTES, Shard
from cachetier.notifier import Changes
from cachetier.reclaim.evict import Evictor, Watermarks
from cachetier.reclaim.retention import Retention
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.store_clock import StoreClock
from cachetier.restore.fill import Room
from cachetier.restore.replica_choice import NO_REPLICAS, Replicas
from cachetier.restore.restore import Restore
from cachetier.steps.incidents import Incidents
from cachetier.steps.operations import Checkpoints
from tests.stateful.fake_drain import REMOTE, FakeDrain
from tests.stateful.object_node import MOUNT, ObjectNode, content_of, mounted_at
from tests.stateful.reading import bytes_of_opened
from tests.stateful.real_drain import RealDrain

__all__ = ["CAPACITY_BYTES", "Node", "content_of", "write"]
CAPACITY_BYTES = 256 << 20
MakeDrain = Callable[[Store, Bucket, Clock], FakeDrain]


class Node:
    """One store with everything around it; ``lock`` False leaves the directory to others too."""

    def __init__(
        self,
        cache_dir: Path,
        remote: ObjectStore,
        clock: Clock,
        *,
        capacity_bytes: int = CAPACITY_BYTES,
        files: Files | None = None,
        vfs: str | None = None,
        make_drain: MakeDrain = FakeDrain,
        policy: Policy = DRAIN_ALL,
        keeps: Callable[[], bool] = lambda: True,
        store_clock: StoreClock | None = None,
        memory_bytes: int = 0,
        replicas: Replicas = NO_REPLICAS,
    ) -> None:
        self._lock = lock_directory(cache_dir)
        try:
            self.recovered = open_store(
                *(cache_dir, capacity_bytes, clock),
                files=files,
                vfs=vfs,
                policy=policy,
                memory_bytes=memory_bytes,
            )
        except BaseException:
            os.close(self._lock)
            raise
        self.store = store = self.recovered.store
        self.cache_dir = cache_dir
        self.clock = clock
        self.bucket = Bucket(remote, Layout("tier"))
        self.changes = Changes(clock)
        self.incidents = Incidents(store)
        self.evictor = Evictor(store, clock, self._still_remote, watermarks=Watermarks())
        self.retention = Retention(store, policy.keep_local, self.evictor.evict)
        self.drain = make_drain(store, self.bucket, clock)
        self.store_clock = store_clock or StoreClock()
        stores = {MOUNT.bucket: remote}
        self.real_drain = RealDrain(store, self.bucket, clock, [MOUNT], stores, self.store_clock)
        mounted = mounted_at(store, remote, clock, MOUNT, self.store_clock)
        room = Room(self._make_room, keeps)
        of = store, self.bucket, clock
        self.restore = Restore(*of, remote=REMOTE, replicas=replicas, room=room, mounted=mounted)
        what = store, self.bucket, self.changes, clock
        self.checkpoints = Checkpoints(*what, remote=REMOTE, published=self.restore.published)
        reject, make_room = WhenFull.REJECT, self._make_room
        knows = self.restore.knowledge
        self.ingest = NodeIngest(store, when_full=reject, make_room=make_room, knowledge=knows)
        damaged = self.restore.report_damage
        self.write_back = WriteBack(
            *(store, self.changes),
            make_room=make_room,
            evict=self.evictor.evict,
            on_damage=damaged,
        )
        self.objects = ObjectNode(
            store, mounted, self.restore, self.changes, clock, write, make_room=self._make_room
        )

    def close(self) -> None:
        """Let go of the directory in good order; that only saves time, so it may fail."""
        self.restore.close()
        self.real_drain.close()
        try:
            self.store.close()
        except (apsw.IOError, apsw.FullError):
            connection.abandon(self.store._committer._connection)  # else whoever collects it fails
            assert self.store.reserve is not None
            self.store.reserve.close()
        os.close(self._lock)

    def die(self) -> None:
        """Let go as a killed process does: nothing is put in order first."""
        writer = self.store._committer._connection
        writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self.restore.close()
        self.real_drain.close()
        self.store._reader.close()
        self.store._looker.close()
        writer.close()
        assert self.store.reserve is not None
        self.store.reserve.close()
        os.close(self._lock)

    def put(self, ids: SaveIds, name: str, data: bytes, *, memory: bool = False) -> Receipt:
        """Put a shard the way its size asks for: inside the catalog, or through a file."""
        content = content_of(data)
        if len(data) <= INLINE_BYTES:
            return self.ingest.begin_inline(ids, name, data, content.digest, 0.0)()
        staged = self.ingest.begin(ids, name, len(data), 0.0, memory=memory)
        assert isinstance(staged, Staged)
        try:
            write(staged, data)
        except BaseException:
            self.ingest.abort(staged)
            raise
        return self.ingest.commit(staged, ids, name, content)

    def get(self, run: str, step: int, name: str, timeout_seconds: float = 0.0) -> bytes:
        """Read a shard as a client does: check what came, and ask to verify it if it is wrong.

        Raises:
            IntegrityError, NotFoundError, ...: As ``Restore.open``.
        """
        opened = self.restore.open(run, step, name, timeout_seconds)
        body = bytes_of_opened(opened)
        if content_of(body) == opened.shard.content:
            return body
        assert not self.restore.verify(run, step, name), "verify calls wrong bytes sound"
        opened = self.restore.open(run, step, name, timeout_seconds)
        body = bytes_of_opened(opened)
        assert content_of(body) == opened.shard.content, "wrong bytes twice"
        return body

    def evict(self, shard: Shard) -> bool:
        """Evict one shard by the evictor's rules."""
        return self.evictor.evict(shard)

    def look(self) -> None:
        """See what nobody has open any more, as the service's own thread does."""
        self.store.open_files.look()
        self.store.open_files.look_at_readers()

    def rows(self) -> list[Shard]:
        """Return every shard the catalog knows."""

        def query(sql: apsw.Connection) -> list[Shard]:
            versions = [row[0] for row in sql.execute("SELECT version FROM shards")]
            found = [shards.shard_by_version(sql, version) for version in versions]
            return [shard for shard in found if shard is not None]

        return self.store.read(query)

    def location_of(self, shard: Shard) -> str | None:
        """Return where the objects of a shard's save go, once that is known."""
        save = self.store.read(
            lambda sql: saves.save_named(sql, shard.run, shard.step, shard.save_id)
        )
        return save.location if save is not None else None

    def _make_room(self) -> None:
        self.evictor.make_room()
        if self.store.space.wanted_bytes:
            self.retention.make_room()

    def _still_remote(self, shard: Shard) -> bool:
        if is_mount(shard.run):
            return self.restore.sources.still_there(shard)
        location = self.location_of(shard)
        stored = self.store.read(lambda sql: shards.stored_of(sql, shard.version, REMOTE))
        return location is not None and self.bucket.holds(shard, location, stored)


def write(staged: Staged, data: bytes) -> None:
    """Write as a rank does: block by block through the descriptor, then the true size."""
    assert staged.writer is not None
    start = 0
    for length in block_lengths(len(data)):
        os.pwrite(staged.writer, data[start : start + length], start)
        start += length
    os.ftruncate(staged.writer, len(data))
