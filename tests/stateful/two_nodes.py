"""Two nodes, one bucket, and everything that a larger world does to them, by the throw of dice.

Ranks 0 and 1 of a job put, seal and save again, each on its node, whose clock is its own; a third
node has no rank, but reads and deletes, and a job may move there. The drain is the real one. Other
hands delete objects, replies and writes are lost or late, disks go back to an older snapshot, are
copied to the other node, lose the catalog's log, are locked, or full. A life is repeated by its
seed.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.bucket_format.uploads import SAVE_KEY
from cachetier_client.identity.names import SaveIds

from cachetier.drain.channel import RefusedReportError
from cachetier.drain.schedule.tasks import TaskKind
from cachetier.errors import (
    BackpressureError,
    CachetierError,
    DirectoryInUseError,
    RemoteRefusedError,
    TransientError,
)
from cachetier.local.catalog import notes, saves
from cachetier.local.catalog.rows import LOG_LOST, IncidentRecord
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.shard import INLINE_BYTES
from cachetier.reclaim.evict import Evictor
from cachetier.remote.bucket import Remote
from cachetier.restore.knowledge import Knowledge
from cachetier.steps.unflushed import FRESH_SECONDS, UnflushedNotes
from tests.fakes.fake_clock import FakeClock
from tests.fakes.full_disk import FullDisk, FullVFS
from tests.fakes.late_store import LateStore
from tests.stateful.hands_on_disk import HandsOnDisk
from tests.stateful.invariants import judge_bytes, require
from tests.stateful.lives import drawn_from
from tests.stateful.node import Node
from tests.stateful.published import published_bytes
from tests.stateful.real_drain import InCaller

RUN, STEPS, NAMES = "run", (1, 2), (("a", "b"), ("c",))
SMALL, FILE, IN_PARTS = 300, 70_000, (1 << 20) + 5_000
TURNS, ENDLESS_TASKS = 40, 300
NODES, READER = (0, 1), 2
EVERY_NODE = (*NODES, READER)

# Nothing of this is done while a disk is full, or a catalog locked.
NOT_MEANWHILE = frozenset(
    {"take_a_snapshot", "go_back", "clone", "lose_log", "remove_lock", "lock_catalog", "fill_disk"}
)

Published = tuple[str, dict[str, bytes]]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a node acknowledged of a save: a put, as a data file or not, or a seal.

    ``late``: the save was published already, which the node did not know.
    """

    number: int
    step: int
    save_id: str
    late: bool
    file: bool = False


class World:
    """One life; of ``only`` these deeds, if any are named."""

    def __init__(
        self,
        top: Path,
        seed: int,
        vfs: str,
        *,
        offsets: tuple[float, float] = (0.0, 0.0),
        only: frozenset[str] = frozenset(),
    ) -> None:
        self.top = top
        self.dice = random.Random(seed)
        self.store = LateStore()
        self.clocks = [FakeClock(1_700_000_000.0 + offset) for offset in (*offsets, 0.0)]
        self._vfs = FullVFS(vfs)
        self.vfs = self._vfs.name
        self.disks = [self._disk(number) for number in EVERY_NODE]
        self.met: Counter[str] = Counter()  # faults that took place
        self.answered: list[Answered] = []
        self.opened = dict.fromkeys(EVERY_NODE, 0)  # how much was answered when a node opened last
        self.snapshots: dict[int, int] = {}  # and when the snapshot of its disk was taken
        self.forgotten: set[tuple[int, str]] = set()  # saves of which a disk lost something
        self.lost_files: set[str] = set()  # an older catalog names them
        self.notes: dict[int, UnflushedNotes] = {}
        self.nodes: list[Node] = [self._open(number) for number in EVERY_NODE]
        self.saves = dict.fromkeys(STEPS, 0)
        self.acknowledged: dict[tuple[int, str, str], bytes] = {}
        self.ever: dict[tuple[int, str], list[bytes]] = {}
        self.sealed: dict[tuple[int, str], set[int]] = {}
        self.published: dict[tuple[int, str], dict[str, bytes]] = {}
        self.removed: set[str] = set()  # keys whose object other hands removed
        self.deleted: set[int] = set()
        self.hands = HandsOnDisk(self)
        self.deeds = drawn_from(self._weighted(), only)
        self.deeds_meanwhile = [each for each in self.deeds if each.__name__ not in NOT_MEANWHILE]

    def _weighted(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.put, 8),
            (self.seal, 6),
            (self.save_whole, 3),
            (self.save_half, 1),
            (self.drain_one, 8),
            (self.drain_all, 2),
            (self.evict, 3),
            (self.read, 2),
            (self.read_what_latest_names, 3),
            (self.move, 1),
            (self.save_again, 1),
            (self.delete_step, 1),
            (self.restart, 1),
            (self.kill, 1),
            (self.second_service, 1),
            (self.remove_an_object, 1),
            (self.hold_a_write, 2),
            (self.deliver, 2),
            (self.replace_what_is_late, 2),
            (self.remove_before_publication, 1),
            (self.lose_a_write, 2),
            (self.refuse_a_write, 1),
            (self.take_a_snapshot, 2),
            (self.go_back, 2),
            (self.clone, 1),
            (self.time_passes, 2),
            *self.hands.weighted(),
        ]

    def play(self, turns: int = TURNS) -> None:
        """Live, let everything come to rest, and judge what is left."""
        for _ in range(turns):
            self.dice.choice(self.deeds)()
            self.look()
        self.settle()

    def close(self) -> None:
        for each in self.notes.values():
            each.stop(0.0)
        for node in self.nodes:
            node.die()
        self._vfs.unregister()

    # --- ranks -----------------------------------------------------------------------------------

    def put(self) -> None:
        rank = self.dice.choice(NODES)
        self._put_as(*self.next_put(rank))

    def next_put(self, rank: int) -> tuple[SaveIds, str, bytes]:
        """Return what a rank puts next."""
        size = self.dice.choice((SMALL, SMALL, FILE, FILE, IN_PARTS))
        name, step = self.dice.choice(NAMES[rank]), self.dice.choice(STEPS)
        return self._ids(step, rank), name, self.dice.randbytes(size)

    def seal(self) -> None:
        self._seal(self.dice.choice(STEPS), self.dice.choice(NODES))

    def save_whole(self) -> None:
        self._save(*NODES)

    def save_half(self) -> None:
        """The job is started again, and only one rank comes to its seal."""
        self._save(self.dice.choice(NODES))

    def _save(self, *ranks: int) -> None:
        step = self.dice.choice(STEPS)
        self.save_again(step)
        for rank in ranks:
            for name in NAMES[rank]:
                self._put(step, rank, name, self.dice.choice((SMALL, FILE, IN_PARTS)))
            self._seal(step, rank)

    def save_again(self, step: int | None = None) -> None:
        """The job was started again: what comes next is of another save."""
        self.saves[step if step is not None else self.dice.choice(STEPS)] += 1

    def _put(self, step: int, rank: int, name: str, size_bytes: int) -> None:
        self._put_as(self._ids(step, rank), name, self.dice.randbytes(size_bytes))

    def _put_as(self, ids: SaveIds, name: str, data: bytes) -> None:
        if self._answered(lambda: self.nodes[ids.rank].put(ids, name, data)):
            self.acknowledge(ids, name, data)

    def acknowledge(self, ids: SaveIds, name: str, data: bytes) -> None:
        """Remember that the node of a rank acknowledged a put."""
        self.acknowledged[ids.step, ids.save_id, name] = data
        self.ever.setdefault((ids.step, name), []).append(data)
        self._remember(ids, file=len(data) > INLINE_BYTES)

    def _remember(self, ids: SaveIds, *, file: bool = False) -> None:
        late = (ids.step, ids.save_id) in self.published
        self.answered.append(Answered(ids.rank, ids.step, ids.save_id, late, file))

    def _seal(self, step: int, rank: int) -> None:
        ids = self._ids(step, rank)
        if self._answered(lambda: self.nodes[rank].checkpoints.seal(ids, 1)):
            self.sealed.setdefault((step, ids.save_id), set()).add(rank)
            self._remember(ids)

    def _ids(self, step: int, rank: int) -> SaveIds:
        return SaveIds(RUN, step, f"save-{self.saves[step]}", rank, len(NODES), overwrite=True)

    def _answered(self, call: Callable[[], object]) -> bool:
        """Return whether ``call`` was acknowledged; a refusal is an honest answer."""
        for clock in self.clocks:
            clock.advance(1.0)
        try:
            call()
        except CachetierError:
            return False
        return True

    # --- nodes -----------------------------------------------------------------------------------

    def drain_one(self) -> None:
        self._drain_one(self._some_node())

    def drain_all(self) -> None:
        self._drain(self._some_node())

    def _drain(self, node: Node) -> None:
        """Drain until nothing is left, or, by a known defect, one publication goes on and on."""
        for _ in range(ENDLESS_TASKS):
            if not self._drain_one(node):
                return
        self.met["drains that did not end by themselves"] += 1

    def _drain_one(self, node: Node) -> bool:
        """Do one task; what is clean then is in the bucket, whatever was answered."""
        try:
            task = node.real_drain.next_task()
        except RefusedReportError:
            return False  # it looks again later
        if task is None:
            return False
        before = {row.version for row in node.rows() if row.state is ShardState.CLEAN}
        node.real_drain.perform(task)
        if task.kind in (TaskKind.UPLOAD, TaskKind.PACK):
            for row in node.rows():
                if row.state is ShardState.CLEAN and row.version not in before:
                    there = node._still_remote(row)
                    require(there, f"{row.name} is called clean, and is not in the bucket")
        if task.kind is TaskKind.PUBLISH and self.dice.random() < 0.5:
            self.store.deliver()
        return True

    def evict(self) -> None:
        """A clean copy goes only if the bucket has it now."""
        node = self._some_node()
        for row in node.rows():
            there = row.state is ShardState.CLEAN and node._still_remote(row)
            try:
                went = self._evictor(node).evict(row)
            except BackpressureError:
                continue  # it is told so, and tried again
            require(there or not went, f"{row.name} was evicted, and is not in the bucket")

    def read(self) -> None:
        """Readers get bytes that were acknowledged, or an error."""
        node, step = self._some_node(), self.dice.choice(STEPS)
        for name in [name for names in NAMES for name in names]:
            try:
                found = node.get(RUN, step, name)
            except CachetierError:
                continue
            put = self.ever.get((step, name), [])
            require(found in put, f"{name} of step {step} has bytes that nobody put")

    def read_what_latest_names(self) -> None:
        """A node that names a durable step gives all of it, of the save that it named."""
        node = self._some_node()
        try:
            found = node.checkpoints.latest(RUN, Level.DURABLE)
        except CachetierError:
            return
        if found is not None:
            self._judge_copy(node, found.step, found.save_id)

    def move(self) -> None:
        """A job that starts on the third node is told of the newest step that is not durable."""
        owed = self._owed()
        for _ in range(3):
            for each in self.notes.values():
                with suppress(CachetierError):
                    each.round()
            for clock in self.clocks:
                clock.advance(FRESH_SECONDS)
        told = self.nodes[READER].checkpoints.unflushed.of_run(RUN)
        for step, save_id in owed:
            known = [each for each in told if (each.step, each.save_id) == (step, save_id)]
            whole = bool(known) and known[0].is_whole
            require(whole, f"a job that moves is not told of {save_id} of step {step}")
            self.met["jobs that were told"] += 1

    def _owed(self) -> list[tuple[int, str]]:
        """Return the saves that every rank sealed, newer than what is durable; others may be too.

        Nodes that have copies of one disk have one note; what has an incident is told of by that.
        """
        if len({node.store.store_id for node in self.nodes}) < len(self.nodes):
            return []
        durable = [step for step in STEPS if self.nodes[0].bucket.published(RUN, step) is not None]
        owed = []
        for step in range(max(durable, default=0) + 1, max(STEPS) + 1):
            save = step, f"save-{self.saves[step]}"
            whole = self.sealed.get(save, set()) == set(NODES)
            if whole and save not in self.forgotten and step not in self.deleted:
                owed += [] if self._told(step) else [save]
        return owed

    def delete_step(self) -> None:
        step = self.dice.choice(STEPS)
        node = self._some_node()
        if self._answered(lambda: node.checkpoints.delete_step(RUN, step)):
            self.deleted.add(step)
            self.save_again(step)

    def restart(self) -> None:
        number = self.dice.choice(EVERY_NODE)
        self.nodes[number].close()
        self.nodes[number] = self._open(number)

    def kill(self) -> None:
        number = self.dice.choice(EVERY_NODE)
        self.nodes[number].die()
        self.nodes[number] = self._open(number)

    def second_service(self, number: int | None = None) -> None:
        """Nobody else may serve a directory, whatever was removed from it."""
        try:
            second = self._opened(number if number is not None else self.dice.choice(NODES))
        except DirectoryInUseError:
            return
        second.die()
        require(False, "a second service was admitted to a directory")

    def take_a_snapshot(self) -> None:
        number = self.dice.choice(NODES)
        self._copy(number, "snapshot")
        self.snapshots[number] = len(self.answered)

    def go_back(self) -> None:
        """A disk is restored: what it alone acknowledged since then went with it."""
        number = self.dice.choice(NODES)
        if number in self.snapshots:
            self.forget(number, self.snapshots[number])
            self._replace(number, self.top / f"snapshot-{number}")
            self.met["disks that went back"] += 1

    def clone(self) -> None:
        """A node starts with a copy of the other's directory."""
        number = self.dice.choice(NODES)
        self._copy(1 - number, "copy")
        self.forget(number, 0)
        self._replace(number, self.top / f"copy-{1 - number}")
        self.met["disks that were copied"] += 1

    def forget(self, number: int, since: int, *, files: bool = True) -> None:
        """The disk of a node has nothing any more of what it acknowledged ``since`` then.

        Of saves that were published before, the bucket has it all.
        """
        for each in self.answered[since:]:
            save = each.step, each.save_id
            here = each.number == number and (files or not each.file)
            if here and (each.late or save not in self.published):
                self.forgotten.add(save)

    def _copy(self, number: int, name: str) -> None:
        self.nodes[number].close()
        target = self.top / f"{name}-{number}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.top / f"node-{number}", target)
        self.nodes[number] = self._open(number)

    def _replace(self, number: int, by: Path) -> None:
        self.nodes[number].die()
        shutil.rmtree(self.top / f"node-{number}")
        shutil.copytree(by, self.top / f"node-{number}")
        self.nodes[number] = self._open(number)

    # --- the bucket ------------------------------------------------------------------------------

    def remove_an_object(self) -> None:
        """Other hands delete an object.

        Its loss is theirs once its rank's part is written; but of what went in parts the publisher
        looks again, if that was a while ago.
        """
        found = [key for key in self.store.list("").keys if key.split("/")[1] == RUN]
        keys = [key for key in found if "/rank-" not in key and not key.endswith("manifest.json")]
        if not keys:
            return
        key = self.dice.choice(keys)
        step = int(key.split("/")[2].partition("~")[0])
        info, manifest = self.store.head(key), self.nodes[0].bucket.published(RUN, step)
        assert info is not None
        if manifest is not None or (self._is_described(key) and info.size_bytes < IN_PARTS):
            self.removed.add(key)
        self.store.delete(key)
        self.met["objects that others removed"] += 1
        self.time_passes()

    def remove_before_publication(self) -> None:
        """An object goes after its part was written, and a while before the step is whole."""
        step = self.dice.choice(STEPS)
        self.save_again(step)
        self._put(step, 0, "a", IN_PARTS)
        self._seal(step, 0)
        self._drain(self.nodes[0])
        for key in self.store.list("").keys:
            info, save_id = self.store.head(key), f"save-{self.saves[step]}"
            at_step = key.startswith((f"tier/{RUN}/{step}/", f"tier/{RUN}/{step}~"))
            ours = info is not None and info.metadata.get(SAVE_KEY) == save_id
            if key.endswith("/a") and at_step and ours:
                self.store.delete(key)
        self.time_passes()
        self._put(step, 1, "c", SMALL)
        self._seal(step, 1)
        self._drain(self.nodes[1])

    def _is_described(self, key: str) -> bool:
        location = "/".join(key.split("/")[:3])
        return any("/rank-" in each for each in self.store.list(f"{location}/").keys)

    def hold_a_write(self) -> None:
        self.store.hold()

    def deliver(self) -> None:
        self.store.deliver()

    def replace_what_is_late(self) -> None:
        """A rank puts other bytes by the name of a shard whose completion is under way still."""
        step, rank = self.dice.choice(STEPS), self.dice.choice(NODES)
        self._drain(self.nodes[rank])
        self._put(step, rank, NAMES[rank][0], IN_PARTS)
        self.store.hold("complete_upload")
        self._drain(self.nodes[rank])
        self._put(step, rank, NAMES[rank][0], self.dice.choice((FILE, IN_PARTS)))
        self._drain(self.nodes[rank])

    def lose_a_write(self) -> None:
        self.store.lose()

    def refuse_a_write(self) -> None:
        self.store.refuse(self.dice.choice((RemoteRefusedError, TransientError)))

    def time_passes(self) -> None:
        for clock in self.clocks:
            clock.advance(100.0)

    # --- what must hold --------------------------------------------------------------------------

    def look(self) -> None:
        """What is published is one save's acknowledged bytes, and never changes."""
        for step in STEPS:
            manifest = self.nodes[0].bucket.published(RUN, step)
            if manifest is None:
                continue
            if self._lacks(step):
                continue
            found = published_bytes(self.nodes[0].bucket, RUN, step)
            assert found is not None
            save_id, bodies = found
            save = step, save_id
            if save not in self.published and save not in self.forgotten:
                self._judge_published(step, save_id, bodies)
            first = self.published.setdefault(save, bodies)
            require(first == bodies, f"published step {step} has changed")

    def _judge_published(self, step: int, save_id: str, bodies: dict[str, bytes]) -> None:
        put = {
            key[2]: body for key, body in self.acknowledged.items() if key[:2] == (step, save_id)
        }
        for name, body in bodies.items():
            require(put.get(name) == body, f"{name} of step {step} is not what was put")
        require(put.keys() == bodies.keys(), f"step {step} is published without {put.keys()}")

    def _lacks(self, step: int) -> bool:
        """Return whether other hands removed something of a step that is published."""
        return any(key.startswith(f"tier/{RUN}/{step}") for key in self.removed)

    def settle(self) -> None:
        """Let every fault end and every drain go on; then nothing is stuck, or lost in silence."""
        self.store.mend()
        for step in STEPS:
            for rank in NODES:
                self._seal(step, rank)
        for _ in range(6):
            for node in self.nodes:
                self._drain(node)
                self._evictor(node).collect()
            self.time_passes()
        self.look()
        self.met += Counter({f"writes: {plan}": n for plan, n in self.store.struck.items()})
        self.store.deliver()  # after all that, what was late arrives
        self.look()
        for node in self.nodes:
            judge_bytes(node, self.lost_files)
            self._judge_rest(node)
            for step in STEPS:
                self._judge_copy(node, step)
        self._judge_saves()
        self._judge_late_puts()

    def _judge_copy(self, node: Node, step: int, named: str | None = None) -> None:
        """A node that has looked gives a step as the bucket has it; nothing of one that is gone.

        Unless ``latest`` has just ``named`` it, a newer save that is whole there goes before it.
        """
        known = node.store.read(lambda sql: saves.saves_of(sql, RUN, step))
        newer = node.store.read(lambda sql: saves.whole_of(sql, known)) and named is None
        if self._lacks(step) or newer:
            return
        manifest = self.nodes[0].bucket.published(RUN, step)
        save_id = None if manifest is None else manifest.save_id
        if (named is not None and named != save_id) or (step, save_id) in self.forgotten:
            return
        bodies = {} if save_id is None else self.published.get((step, save_id), {})
        gone = [
            each for save, each in self.published.items() if save[0] == step and save[1] != save_id
        ]
        for name in [name for names in NAMES for name in names]:
            try:
                found = node.get(RUN, step, name)
            except CachetierError as error:
                lacks = error.code == "not_found" and name in bodies
                require(not lacks, f"{name} of {save_id} of step {step} is not found: {error}")
                continue
            if named is not None:
                require(found == bodies.get(name), f"{name} of step {step} is of another save")
            stale = any(each.get(name) == found for each in gone)
            require(not stale, f"{name} of step {step} is of a save that was replaced or deleted")

    def _judge_rest(self, node: Node) -> None:
        unfinished = node.store.read(saves.unfinished_saves)
        going_on = {(save.step, save.save_id) for save in unfinished}
        for row in node.rows():
            told = self._told(row.step)
            if row.state is ShardState.DIRTY and (row.step, row.save_id) in going_on:
                require(told, f"{row.name} of step {row.step} is never drained, and nobody is told")

    def _judge_late_puts(self) -> None:
        """What a node acknowledged of a save that was published without it, somebody is told of."""
        for (step, save_id, name), body in self.acknowledged.items():
            save, ended = (step, save_id), save_id != f"save-{self.saves[step]}"
            if save in self.published and save not in self.forgotten and not ended:
                right = self.published[save].get(name) == body
                require(right or self._told(step), f"{name} of published step {step} is lost")

    def _judge_saves(self) -> None:
        """The newest save of a step that every rank sealed is published, or somebody is told."""
        for step in STEPS:
            save_id = f"save-{self.saves[step]}"
            if self.sealed.get((step, save_id), set()) != set(NODES) or step in self.deleted:
                continue
            manifest = self.nodes[0].bucket.published(RUN, step)
            published = manifest is not None and manifest.save_id == save_id
            excused = self._told(step) or (step, save_id) in self.forgotten
            require(published or excused, f"{save_id} of step {step} is lost, and nobody is told")

    def outcome(self) -> dict[int, Published | None]:
        """Return what is published in the end."""
        found = {}
        for step in STEPS:
            manifest = self.nodes[0].bucket.published(RUN, step)
            found[step] = published_bytes(self.nodes[0].bucket, RUN, step) if manifest else None
        return found

    def _told(self, step: int) -> bool:
        incidents = [each for node in self.nodes for each in self.incidents_of(node)]
        return any(each.step == step and each.code != LOG_LOST for each in incidents)

    def incidents_of(self, node: Node) -> Sequence[IncidentRecord]:
        return node.store.read(lambda sql: notes.incidents_after(sql, 0))

    # --- in detail -------------------------------------------------------------------------------

    def _some_node(self) -> Node:
        return self.nodes[self.dice.choice(EVERY_NODE)]

    def _disk(self, number: int) -> FullDisk:
        disk = FullDisk(self.top / f"node-{number}", self.clocks[number])
        self._vfs.disks[str(disk.cache_dir.resolve())] = disk
        return disk

    def _open(self, number: int) -> Node:
        try:
            node = self._opened(number)
        except BackpressureError:
            self.hands.let_go(number)  # as the message asks for
            self.met["starts that were refused for a while"] += 1
            node = self._opened(number)
        self.opened[number] = len(self.answered)
        if number in self.notes:
            self.notes[number].stop(0.0)
        what = node.store, node.bucket, node.changes, self.clocks[number]
        self.notes[number] = UnflushedNotes(*what)
        node.restore.knowledge._threads = InCaller()  # type: ignore[assignment]  # no luck in it
        return node

    def _opened(self, number: int) -> Node:
        disk = self.disks[number]
        disk.cache_dir.mkdir(exist_ok=True)
        disk.prepare()
        clock = self.clocks[number]
        node = Node(disk.cache_dir, self.store, clock, files=disk, vfs=self.vfs)
        assert node.store.reserve is not None
        disk.keep(node.store.reserve)
        return node

    def _evictor(self, node: Node) -> Evictor:
        remote, clock = Remote(DURABLE, node.bucket), self.clocks[self.nodes.index(node)]
        missing = Knowledge(node.store, remote, clock, on_change=node.incidents.refresh)
        return Evictor(node.store, clock, node._still_remote, look_into=missing.look_into)
