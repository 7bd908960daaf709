"""Three nodes that put and delete the same keys of one bucket, by the throw of dice.

Nodes are behind, away, killed, and have backlogs; their disks go back, their catalogs lose their
log, or are built anew. The clocks of nodes differ, and none is that of the store. What the model
knows of is the time of each acknowledgement. A life is repeated by its seed.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from cachetier.drain.upload.deletions import FRESH_SECONDS
from cachetier.errors import CachetierError
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Remote
from cachetier.remote.store_clock import StoreClock
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.late_store import LateStore
from tests.stateful.invariants import require
from tests.stateful.lives import drawn_from
from tests.stateful.node import CAPACITY_BYTES, Node
from tests.stateful.object_node import MOUNT, buckets_at
from tests.stateful.unsynced import default_vfs

NODES = (0, 1, 2)
KEYS = tuple(f"{MOUNT.prefix}{name}" for name in ("a", "b/c", "latest"))
SMALL, FILE = 300, 70_000
PAUSES = (0.0, 0.5, 2.0, 20.0, 100.0)
OFFSETS = (0.0, 400.0, -90_000.0)
CLOSE_SECONDS = 6.5  # so near, nobody can say what came first: the rule's five, and roundings
ROUNDED_SECONDS = 1.0  # HTTP tells the time in seconds
TURNS = 40


@dataclass
class Write:
    """What a node acknowledged: a put, or (without data) a deletion.

    Attributes:
        life: The process of the node that did; it remembers the time of what it could not stamp.
        name: What the catalog knows it by: the ETag of a put, the version of a deletion.
        timed: By the store's clock, as far as the node knows.
        done_at: When the drain was through with it.
        shown: It was seen in the bucket.
        forgotten: The node's disk has nothing of it any more.
    """

    number: int
    node: int
    life: int
    key: str
    data: bytes | None
    at: float
    name: str | int
    timed: bool
    done_at: float | None = None
    shown: bool = False
    forgotten: bool = False

    @property
    def in_file(self) -> bool:
        return self.data is not None and len(self.data) >= FILE

    def __str__(self) -> str:
        what = "deletion" if self.data is None else f"put {self.number}"
        return f"{what} of {self.key} by node {self.node} at {self.at:.1f}"


class Dated(WrappedObjectStore):
    """A store whose answers tell its time, as those of HTTP do."""

    def __init__(self, store: LateStore, time: FakeClock, store_clock: StoreClock) -> None:
        super().__init__(store)
        self._time = time
        self._store_clock = store_clock

    def _around(self, _operation: Operation, _size: int, call: Callable[[], Answer], /) -> Answer:
        asked = self._store_clock.own()
        answer = call()
        self._store_clock.heard(formatdate(self._time.now()), asked)
        return answer


class Door:
    """A node and its S3 door; its service may be killed, its link cut, its disk changed."""

    def __init__(self, world: SharedKeys, number: int) -> None:
        self._world = world
        self.number = number
        self.directory = world.top / f"node-{number}"
        self.clock = FakeClock(world.time.now() + OFFSETS[number], 1_000.0 * number)
        self.is_away = False
        self.life = 0
        self.open()

    def open(self) -> None:
        self.life += 1
        store_clock = StoreClock(self.clock.monotonic)
        self.link = FaultyObjectStore(Dated(self._world.store, self._world.time, store_clock))
        if self.is_away:
            self.link.go_down()
        self.node = Node(
            self.directory, self.link, self.clock, vfs=self._world.vfs, store_clock=store_clock
        )
        self._ask_time()

    def _ask_time(self) -> None:
        if not self.is_away:
            self.link.check()

    def cut(self, *, away: bool) -> None:
        self.is_away = away
        if away:
            self.link.go_down()
        else:
            self.link.mend()
            self._ask_time()

    @property
    def knows_time(self) -> bool:
        return self.node.store_clock.between is not None

    def unshown(self) -> set[str | int]:
        """Return what the drain has to do still, by the names of ``Write``."""
        query = "SELECT iif(deleted, version, etag) FROM objects WHERE state <> 'clean'"
        rows = self.node.store.read(lambda sql: sql.execute(query).fetchall())
        return {each for (each,) in rows}  # type: ignore[misc]

    def superseded(self) -> set[tuple[int, str]]:
        query = "SELECT key FROM superseded_objects"
        rows = self.node.store.read(lambda sql: sql.execute(query).fetchall())
        return {(self.number, str(key)) for (key,) in rows}


class SharedKeys:
    """One life; of ``only`` these deeds, if any are named."""

    def __init__(
        self, top: Path, seed: int, vfs: str, *, only: frozenset[str] = frozenset()
    ) -> None:
        self.top, self.vfs = top, vfs
        self.dice = random.Random(seed)
        self.time = FakeClock(1_700_000_000.25)
        self.store = LateStore(self.time)
        self.met: Counter[str] = Counter()
        self.writes: list[Write] = []
        self.snapshots: dict[int, dict[int, bool]] = {}  # which writes a disk had forgotten then
        self.late: set[str] = set()  # keys under which the store did something late, at last
        self.told: set[tuple[int, str]] = set()  # nodes that said so of a key that they put
        self.seen: dict[str, Write | None] = dict.fromkeys(KEYS)
        self.doors = [Door(self, number) for number in NODES]
        self.deeds = drawn_from(self._weighted(), only)

    def _weighted(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.put, 10),
            (self.delete, 3),
            (self.drain_one, 8),
            (self.drain_all, 4),
            (self.time_passes, 6),
            (self.cut_link, 2),
            (self.mend_link, 3),
            (self.kill, 2),
            (self.restart, 1),
            (self.read, 2),
            (self.take_a_snapshot, 2),
            (self.go_back, 2),
            (self.lose_log, 1),
            (self.build_anew, 1),
            (self.hold_a_write, 1),
            (self.deliver, 1),
        ]

    def play(self, turns: int = TURNS) -> None:
        """Live, let everything come to rest, and judge what is left."""
        for _ in range(turns):
            self._pass(self.dice.choice((0.0, 0.1, 1.0)))
            self.dice.choice(self.deeds)()
            self.look()
        self.settle()

    def close(self) -> None:
        for door in self.doors:
            door.node.die()

    # --- programs --------------------------------------------------------------------------------

    def put(self) -> None:
        door, key = self._door(), self.dice.choice(KEYS)
        data = len(self.writes).to_bytes(4, "big") * (self.dice.choice((SMALL, FILE)) // 4)
        self._acknowledge(door, key, data, door.node.objects.put(key, data).etag)

    def delete(self) -> None:
        door = self._door()
        keys = self.dice.sample(KEYS, self.dice.choice((1, 2)))
        for key, answer in zip(keys, door.node.objects.delete(*keys), strict=True):
            self._acknowledge(door, key, None, answer.version)

    def _acknowledge(self, door: Door, key: str, data: bytes | None, name: str | int) -> None:
        number, at = len(self.writes), self.time.now()
        which = number, door.number, door.life, key
        self.writes.append(Write(*which, data, at, name, door.knows_time))

    def read(self) -> None:
        """Readers get bytes that were put."""
        door, key = self._door(), self.dice.choice(KEYS)
        try:
            found = door.node.objects.get(key)
        except CachetierError:
            return
        put = [write.data for write in self.writes if write.key == key]
        require(found is None or found in put, f"{key} has bytes that nobody put")

    # --- nodes -----------------------------------------------------------------------------------

    def drain_one(self) -> None:
        self._door().node.real_drain.drain_one()

    def drain_all(self) -> None:
        self._drain(self._door())

    def _drain(self, door: Door) -> None:
        while door.node.real_drain.drain_one():
            self.look()

    def cut_link(self) -> None:
        self._door().cut(away=True)

    def mend_link(self) -> None:
        self._door().cut(away=False)

    def kill(self) -> None:
        self._end(self._door())

    def restart(self) -> None:
        door = self._door()
        self._learn(door)
        door.node.close()
        door.open()

    def _end(self, door: Door, change: Callable[[], object] = lambda: None) -> None:
        """Kill a service, change its directory, and start it again."""
        self._learn(door)
        door.node.die()
        change()
        door.open()

    def take_a_snapshot(self) -> None:
        door = self._door()
        target = self.top / f"snapshot-{door.number}"
        shutil.rmtree(target, ignore_errors=True)
        self._end(door, lambda: shutil.copytree(door.directory, target))
        self.snapshots[door.number] = {each.number: each.forgotten for each in self.writes}

    def go_back(self) -> None:
        """A disk is restored: what it alone acknowledged since then went with it."""
        door = self._door()
        if door.number not in self.snapshots:
            return

        def change() -> None:
            shutil.rmtree(door.directory)
            shutil.copytree(self.top / f"snapshot-{door.number}", door.directory)

        self._end(door, change)
        then = self.snapshots[door.number]
        for write in self.writes:
            if write.node == door.number and write.done_at is None:
                write.forgotten = then.get(write.number, True)
        self.met["disks that went back"] += 1

    def lose_log(self) -> None:
        """The catalog's log goes with a kill; what was in files is taken back."""
        door = self._door()

        def change() -> None:
            (door.directory / "catalog.db-wal").unlink()
            self._fsck(door, repair=True)

        self._end(door, change)
        self._forget_what_no_file_has(door)
        self.met["logs that were lost"] += 1

    def build_anew(self) -> None:
        """The catalog goes; what is in files is taken back."""
        door = self._door()

        def change() -> None:
            for name in ("catalog.db", "catalog.db-wal", "catalog.db-shm"):
                (door.directory / name).unlink(missing_ok=True)
            self._fsck(door, rebuild=True)

        self._end(door, change)
        self._forget_what_no_file_has(door)
        self.met["catalogs that were built anew"] += 1

    def _forget_what_no_file_has(self, door: Door) -> None:
        for write in self.writes:
            if write.node == door.number and write.done_at is None and not write.in_file:
                write.forgotten = True

    def _fsck(self, door: Door, **wanted: bool) -> None:
        mounts = buckets_at(door.link, MOUNT, StoreClock(door.clock.monotonic))
        with default_vfs(self.vfs):
            report = fsck(
                door.directory,
                [Remote(DURABLE, door.node.bucket)],
                door.clock,
                FsckOptions(**wanted, mounts=mounts),  # type: ignore[arg-type]
                capacity_bytes=CAPACITY_BYTES,
                sleep=lambda _seconds: None,
            )
        said = " ".join(map(str, report.outcomes))
        self.told |= {(door.number, key) for key in KEYS if key in said}

    # --- the bucket ------------------------------------------------------------------------------

    def hold_a_write(self) -> None:
        self.store.hold()

    def deliver(self) -> None:
        """What a drain gave up comes late; nobody can forbid that."""
        before = {key: self._there(key) for key in KEYS}
        self.store.deliver()
        for key in [key for key in KEYS if self._there(key) != before[key]]:
            self.late.add(key)
            self.met["writes that came late"] += 1
            self.seen[key] = came = self._write_of(key, self._there(key))
            if came is not None:
                came.shown = True

    def time_passes(self) -> None:
        self._pass(self.dice.choice(PAUSES))

    def _pass(self, seconds: float) -> None:
        for clock in (self.time, *(door.clock for door in self.doors)):
            clock.advance(seconds)

    # --- what must hold --------------------------------------------------------------------------

    def look(self) -> None:
        """Nothing in the bucket is replaced by what is older than it, nor comes back."""
        for door in self.doors:
            self._learn(door)
        for key in KEYS:
            now, before = self._write_of(key, self._there(key)), self.seen[key]
            if now is not before:
                self.late.discard(key)
                self._judge_change(key, before, now)
                self.seen[key] = now

    def _learn(self, door: Door) -> None:
        """Learn of the writes of a node what its service does, while it lives."""
        unshown = door.unshown()
        self.told |= door.superseded()
        for write in self.writes:
            if write.node == door.number and not write.forgotten:
                if write.done_at is None and write.name not in unshown:
                    write.done_at = self.time.now()
                write.timed |= write.life == door.life and door.knows_time

    def _judge_change(self, key: str, before: Write | None, now: Write | None) -> None:
        deletions = [each for each in self.writes if each.key == key and each.data is None]
        if now is None:
            assert before is not None
            later = any(before.at - each.at <= ROUNDED_SECONDS for each in deletions)
            require(later, f"{before} is gone, and nobody deleted it since")
            return
        now.shown = True
        if before is not None:
            require(before.at - now.at <= ROUNDED_SECONDS, f"{now} replaced {before}")
            return
        for each in deletions:
            # What was deleted just now is heard of a moment later.
            is_known = each.done_at is not None and self.time.now() - each.done_at > FRESH_SECONDS
            after = is_known and each.timed and each.at - now.at > CLOSE_SECONDS
            require(not after, f"{now} came back after a {each}")

    def settle(self) -> None:
        """Let every fault end and every drain go on; then nothing is stuck, or lost in silence."""
        self.store.mend()
        for door in self.doors:
            door.cut(away=False)
        for _ in range(8):
            for door in self.doors:
                self._drain(door)
            self._pass(100.0)
        self.met += Counter({f"writes: {plan}": n for plan, n in self.store.struck.items()})
        for door in self.doors:
            self._judge_rest(door)
        for key in KEYS:
            self._judge_end(key)

    def _judge_rest(self, door: Door) -> None:
        query = "SELECT key, state FROM objects WHERE state <> 'clean'"
        left = door.node.store.read(lambda sql: sql.execute(query).fetchall())
        require(not left, f"node {door.number} never drains {left}")

    def _judge_end(self, key: str) -> None:
        last = self.seen[key]
        written = [each for each in self.writes if each.key == key and not each.forgotten]
        for door in self.doors:
            found = door.node.objects.get(key)
            there = None if last is None else last.data
            require(found == there, f"node {door.number} reads something else of {key} than {last}")
        self._judge_told(written)
        if key in self.late or not all(each.timed for each in written):
            return
        newest = max(written, key=lambda each: each.at, default=None)
        if newest is None:
            return
        # What a disk may have forgotten may have been there still.
        ends = [
            each for each in self.writes if each.key == key and newest.at - each.at <= CLOSE_SECONDS
        ]
        there = None if last is None else last.data
        require(there in [each.data for each in ends], f"in the end there is {last}, not {newest}")

    def _judge_told(self, written: list[Write]) -> None:
        """What never came to the bucket was put over at its node, or somebody is told."""
        for each in written:
            over = any(o.node == each.node and o.number > each.number for o in written)
            if each.data is None or each.shown or over:
                continue
            told = (each.node, each.key) in self.told
            require(told, f"{each} is lost, and nobody is told")

    def _there(self, key: str) -> bytes | None:
        return self.store.objects.get(key) if self.store.objects.head(key) is not None else None

    def _write_of(self, key: str, data: bytes | None) -> Write | None:
        if data is None:
            return None
        found = [each for each in self.writes if each.data == data and each.key == key]
        require(found, f"{key} has bytes in the bucket that nobody put")
        return found[0]

    def _door(self) -> Door:
        return self.doors[self.dice.choice(NODES)]
