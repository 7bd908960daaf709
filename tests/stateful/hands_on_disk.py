"""What others do to the disk of a node: its log goes, its files go, it is locked, it is full.

Deeds of a ``World``; each proves that its fault took place, and counts it in ``World.met``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import apsw
import pytest
from cachetier_client.bucket_format.documents import ManifestState, manifest_of

from cachetier.errors import BackpressureError, CachetierError, CatalogDamagedError
from cachetier.fsck.findings import RepairOutcome
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.local.catalog import connection, saves
from cachetier.local.catalog.rows import LOG_LOST
from cachetier.local.store import Staged
from cachetier.model.lifecycle import OPEN_SAVES, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote
from tests.stateful.invariants import require
from tests.stateful.node import CAPACITY_BYTES, Node, content_of, write
from tests.stateful.reading import bytes_of
from tests.stateful.unsynced import default_vfs

if TYPE_CHECKING:
    from tests.stateful.two_nodes import World

REPAIRS = 3
CLOSED_SECONDS = 60.0  # on a busy machine, until a thread of a restore has closed what it read

Deed = Callable[[], None]


class HandsOnDisk:
    """The deeds of those who get at the directory of a node, or at its disk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._holder: apsw.Connection | None = None

    def weighted(self) -> list[tuple[Deed, int]]:
        return [
            (self.lose_log, 2),
            (self.remove_lock, 2),
            (self.lock_catalog, 2),
            (self.fill_disk, 2),
        ]

    # --- files that go ---------------------------------------------------------------------------

    def lose_log(self) -> None:
        """A node is killed, and the log of its catalog goes: no start until it is repaired.

        Every data file comes back; what lay in the catalog alone since the start may be lost.
        """
        world = self._world
        number = world.dice.choice((0, 1))
        node = world.nodes[number]
        unfinished = node.store.read(saves.unfinished_saves)
        going_on = {(each.step, each.save_id) for each in unfinished if each.state in OPEN_SAVES}
        rows = [row for row in node.rows() if (row.step, row.save_id) in going_on]
        node.die()
        log = node.cache_dir / "catalog.db-wal"
        require(log.stat().st_size > 0, "there was no log to lose")
        log.unlink()
        try:
            world.nodes[number] = world._open(number)
        except CatalogDamagedError as error:
            require("cachetier fsck --repair" in error.hint, f"which verb, says nobody: {error}")
        else:
            require(False, "a node started without its log")
        world.met["logs that were lost"] += 1
        world.forget(number, world.opened[number], files=False)
        gone = [row for row in rows if row.state is ShardState.EVICTED]
        world.forgotten |= {(row.step, row.save_id) for row in gone} - world.published.keys()
        self._repair(number)
        world.nodes[number] = world._open(number)
        self._judge_repaired(world.nodes[number], rows)

    def _repair(self, number: int) -> None:
        """Repair until a start would be admitted: the bucket may refuse something meanwhile."""
        world, node = self._world, self._world.nodes[number]
        left: list[RepairOutcome] = []
        for _ in range(REPAIRS):
            with default_vfs(world.vfs):
                report = fsck(
                    node.cache_dir,
                    [Remote(DURABLE, node.bucket)],
                    world.clocks[number],
                    FsckOptions(repair=True),
                    capacity_bytes=CAPACITY_BYTES,
                    sleep=lambda _seconds: None,
                )
            if not (node.cache_dir / "running").exists():
                return
            left = report.outcomes
        require(False, f"{REPAIRS} repairs did not bring a node back: {left}")

    def _judge_repaired(self, node: Node, before: Sequence[Shard]) -> None:
        """What was in a data file is there again, or set aside; of the rest somebody is told."""
        incidents = self._world.incidents_of(node)
        require(any(each.code == LOG_LOST for each in incidents), "nobody is told of a lost log")
        found = {(row.step, row.save_id, row.name): row for row in node.rows()}
        for row in before:
            if row.file_id is None or row.state not in (ShardState.DIRTY, ShardState.CLEAN):
                continue
            now = found.get((row.step, row.save_id, row.name))
            sound = now is not None and now.state is not ShardState.QUARANTINED
            if sound and now is not None and now.content == row.content:
                continue
            described = self._is_described(node, row)
            told = row.state is ShardState.CLEAN or described or self._is_kept(node, row)
            require(told, f"{row.name} of step {row.step} was not taken back: {now}")
            self._world.forgotten.add((row.step, row.save_id))  # a seal goes without it
        there = {file_id for file_id, _ in node.store.files.all()}
        self._world.lost_files |= {row.file_id for row in found.values() if row.file_id} - there

    def _is_described(self, node: Node, row: Shard) -> bool:
        """Return whether the bucket has the bytes, and says so; or a save that came after them."""
        bucket = node.bucket
        manifest = manifest_of(bucket.manifest(row.run, row.step))
        if manifest is None:
            return False
        if manifest.save_id != row.save_id:
            return manifest.state is ManifestState.PUBLISHED
        key = bucket.layout.part_key(row.run, manifest.location, row.rank)
        if bucket.objects.head(key) is None:
            return False
        part = bucket.part(row.run, manifest.location, row.rank)
        stored = [each for each in part.shards if each.name == row.name]
        same = [each for each in stored if each.content() == row.content]
        return bool(same) and bucket.holds(row, manifest.location, same[0].stored())

    def _is_kept(self, node: Node, row: Shard) -> bool:
        """Return whether the bytes are in ``lost+found``, as the step was published without them.

        What a file says of itself is not whether its save was to replace that one. The bucket is
        asked: nobody may have heard yet that a publication went well.
        """
        assert row.file_id is not None
        aside = (node.cache_dir / "lost+found" / row.file_id).exists()
        seen = manifest_of(node.bucket.manifest(row.run, row.step))
        return aside and seen is not None and seen.state is ManifestState.PUBLISHED

    def remove_lock(self) -> None:
        """The file ``lock`` that other versions left goes in the middle of a put, and no more."""
        world = self._world
        number = world.dice.choice((0, 1))
        node = world.nodes[number]
        ids, name, data = world.next_put(number)
        staged = self._staged(node, lambda: node.ingest.begin(ids, name, len(data), 0.0))
        lock = node.cache_dir / "lock"
        lock.touch()
        lock.unlink()
        world.met["locks that were removed"] += 1
        world.second_service(number)
        if staged is None:
            return
        write(staged, data)
        put = world._answered(lambda: node.ingest.commit(staged, ids, name, content_of(data)))
        if put:
            world.acknowledge(ids, name, data)
            where = ids.step, ids.save_id, name
            (row,) = (row for row in node.rows() if (row.step, row.save_id, row.name) == where)
            require(bytes_of(node.store, row) == data, "a put was acknowledged without its bytes")

    def _staged(self, node: Node, begin: Callable[[], object]) -> Staged | None:
        try:
            staged = begin()
        except CachetierError:
            return None
        assert isinstance(staged, Staged)
        return staged

    # --- a catalog that is locked, a disk that is full -------------------------------------------

    def lock_catalog(self) -> None:
        """Another program holds the catalog for some calls: they are refused, and that is all."""
        world = self._world
        number = world.dice.choice((0, 1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "BUSY_MILLISECONDS", 0)
            self._lock(number)
            try:
                world.nodes[number].store.write(_touch)
            except BackpressureError as error:
                require("holds the catalog's lock" in error.message, f"a lock is {error}")
                world.met["locks from outside"] += 1
            self._go_on(world.dice.randint(2, 6))
            self.let_go(number)
        node = world.nodes[number]
        node.store._committer._connection.set_busy_timeout(connection.BUSY_MILLISECONDS)
        require(node.store.fenced is None, f"a lock from outside fenced: {node.store.fenced}")

    def _lock(self, number: int) -> None:
        node = self._world.nodes[number]
        node.store._committer._connection.set_busy_timeout(0)
        self._holder = apsw.Connection(str(node.cache_dir / "catalog.db"), vfs=self._world.vfs)
        self._holder.execute("BEGIN IMMEDIATE")

    def let_go(self, number: int) -> None:
        """Let whoever holds the catalog of a node, or fills its disk, end that."""
        self._world.disks[number].free()
        if self._holder is not None:
            self._holder.execute("ROLLBACK")
            self._holder.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # or the log would go
            self._holder.close()
            self._holder = None

    def fill_disk(self) -> None:
        """Others fill the disk for some calls: what frees room goes on, by the reserve."""
        world = self._world
        number = world.dice.choice((0, 1))
        disk, before = world.disks[number], world.disks[number].refused.total()
        rows = world.nodes[number].rows()
        dirty = {row.version for row in rows if row.state is ShardState.DIRTY}
        disk.fill(world.dice.choice((0, 20_000, 4 << 20)))
        self._go_on(world.dice.randint(3, 8))
        node = world.nodes[number]
        world.time_passes()
        world._drain(node)
        self._judge_reserve(node)
        self.let_go(number)
        world.met["full disks that refused"] += disk.refused.total() > before
        clean = {row.version for row in node.rows() if row.state is not ShardState.DIRTY}
        world.met["shards drained from a full disk"] += len(dirty & clean)
        require(node.store.fenced is None, f"a full disk fenced: {node.store.fenced}")
        node.store.look_at_disk()
        require(not node.store.space.disk_is_full, "a disk with room is called full")

    def _judge_reserve(self, node: Node) -> None:
        """What is clean goes from a full disk if it is in the bucket."""
        evictor = self._world._evictor(node)
        for row in node.rows():
            if row.state is ShardState.CLEAN and node._still_remote(row):
                ends_at = time.monotonic() + CLOSED_SECONDS
                while not (gone := evictor.evict(row)) and time.monotonic() < ends_at:
                    time.sleep(0.01)
                require(gone, f"{row.name} cannot be evicted from a full disk")

    def _go_on(self, turns: int) -> None:
        world = self._world
        for _ in range(turns):
            world.dice.choice(world.deeds_meanwhile)()
            world.look()


def _touch(sql: apsw.Connection) -> None:
    sql.execute("UPDATE store SET id = id").fetchall()
