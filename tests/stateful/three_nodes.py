"""Three nodes that keep copies for each other, one of which is lost, by the throw of dice.

The ranks of a job put and seal on nodes that are alive. One node, the same for a whole life, may
go back to an older disk, die for good, and come back with an old disk. Links break, between nodes
and to the bucket; calls of peers are late, or their answers lost; rooms are full; the power goes. A
life is repeated by its seed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.uploads import SAVE_KEY, ObjectInfo
from cachetier_client.identity.names import SaveIds

from cachetier.drain.channel import RefusedReportError
from cachetier.errors import CachetierError, RemoteError
from cachetier.local.catalog import copies, saves
from cachetier.model.levels import Level
from cachetier.model.lifecycle import CopyState
from cachetier.model.names import PEERS_NAME
from cachetier.peers.kept_saves import TOMBSTONE_SECONDS
from cachetier.remote.bucket import Bucket
from tests.fakes.fake_clock import FakeClock
from tests.fakes.late_store import LateStore
from tests.stateful.invariants import require
from tests.stateful.lives import drawn_from
from tests.stateful.peer_machine import (
    FINISH_AFTER_SECONDS,
    ROOM_BYTES,
    KeptDisk,
    Machine,
    Network,
)
from tests.stateful.published import published_bytes
from tests.stateful.real_drain import RealDrain

RUN, STEPS, NAMES = "run", (1, 2, 3), (("a", "b"), ("c",))
SMALL, FILE, IN_PARTS = 300, 70_000, (1 << 20) + 5_000
NUMBERS, NOBODY = (0, 1, 2), -1
TURNS, ENDLESS_TASKS = 40, 300

Save = tuple[int, str]


class ThreeNodes:
    """One life; of ``only`` these deeds, if any are named."""

    def __init__(self, top: Path, seed: int, vfs: str, only: frozenset[str] = frozenset()) -> None:
        self.top = top
        self.dice = random.Random(seed)
        self.vfs = vfs
        self.clock = FakeClock()
        self.store = LateStore(self.clock)
        self.bucket = Bucket(self.store.objects, Layout("tier"))
        self.disk = KeptDisk()
        self.network = Network(copies=self.dice.choice((1, 2)))
        self.met: Counter[str] = self.network.met
        self.loser = self.dice.choice(NUMBERS)  # the one node that may lose what it had
        self.lost = False
        self.world_size = self.dice.choice((1, 2))
        self.machines = {number: self._open(number) for number in NUMBERS}
        self.saves = dict.fromkeys(STEPS, 0)
        likely = (*NUMBERS, self.loser, self.loser)
        self.hosts = [self.dice.choice(likely) for _ in range(self.world_size)]  # of ranks
        self.hosts_of: dict[Save, list[int]] = {}
        # Steps of which no node knows which save is the newer one: by design, the first whole one.
        self.unordered: set[int] = set()
        self.acknowledged: dict[Save, dict[str, bytes]] = {}
        self.published: dict[Save, dict[str, bytes]] = {}
        self.promised: set[Save] = set()  # acknowledged at ``replicated``
        self.snapshot: Path | None = None
        self.deeds = drawn_from(self._weighted(), only)

    def _weighted(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.save_whole, 6),
            (self.put_one, 3),
            (self.seal_one, 3),
            (self.delete_step, 1),
            (self.copy_one, 8),
            (self.copy_all, 6),
            (self.drain_one, 4),
            (self.drain_all, 1),
            (self.look_after_copies, 4),
            (self.evict, 1),
            (self.restart, 1),
            (self.kill, 1),
            (self.cut_power, 2),
            (self.cut_a_link, 2),
            (self.heal, 2),
            (self.lose_the_bucket, 2),
            (self.find_the_bucket, 2),
            (self.fill_a_room, 1),
            (self.empty_the_rooms, 1),
            (self.delay_a_call, 3),
            (self.lose_an_answer, 2),
            (self.deliver, 2),
            (self.take_a_snapshot, 2),
            (self.go_back, 1),
            (self.die_for_good, 1),
            (self.come_back, 2),
            (self.come_back_to_a_finished_step, 1),
            (self.come_back_with_the_save_before, 1),
            (self.time_passes, 3),
            (self.long_silence, 1),
        ]

    def play(self, turns: int = TURNS) -> None:
        """Live, lose a node perhaps, let everything come to rest, and judge what is left."""
        with self.disk.recording():
            for _ in range(turns):
                self.dice.choice(self.deeds)()
                self.look()
            self.settle()

    def close(self) -> None:
        for machine in self.machines.values():
            machine.die()

    # --- ranks -----------------------------------------------------------------------------------

    def save_whole(self) -> None:
        self._save_whole(self.dice.choice(STEPS))

    def put_one(self) -> None:
        rank = self.dice.randrange(self.world_size)
        self._put(self.dice.choice(STEPS), rank, self.dice.choice(NAMES[rank]))

    def seal_one(self) -> None:
        self._seal(self.dice.choice(STEPS), self.dice.randrange(self.world_size))

    def delete_step(self) -> None:
        machine, step = self._some(), self.dice.choice(STEPS)
        if self._answered(lambda: machine.node.checkpoints.delete_step(RUN, step)):
            self.saves[step] += 1
            self.unordered.add(step)

    def _save_whole(self, step: int) -> None:
        self.saves[step] += 1
        self._put_all(step)
        self._seal_all(step)

    def _seal_all(self, step: int) -> None:
        for rank in range(self.world_size):
            self._seal(step, rank)

    def _put_all(self, step: int) -> None:
        for rank in range(self.world_size):
            for name in NAMES[rank]:
                self._put(step, rank, name)

    def _put(self, step: int, rank: int, name: str) -> None:
        size, ids = self.dice.choice((SMALL, SMALL, FILE, IN_PARTS)), self._ids(step, rank)
        data, host = self.dice.randbytes(size), self.machines.get(self._host(ids))
        if host is not None and self._answered(lambda: host.node.put(ids, name, data)):
            self.acknowledged.setdefault((step, ids.save_id), {})[name] = data

    def _seal(self, step: int, rank: int) -> None:
        ids = self._ids(step, rank)
        if self.acknowledged.get((step, ids.save_id), {}).keys() & set(NAMES[rank]):
            host = self.machines.get(self._host(ids))
            if host is not None:
                self._answered(lambda: host.node.checkpoints.seal(ids, None))

    def _ids(self, step: int, rank: int) -> SaveIds:
        save_id = f"save-{self.saves[step]}"
        return SaveIds(RUN, step, save_id, rank, self.world_size)

    def _host(self, ids: SaveIds) -> int:
        """Return the node of a rank for a save, from its first put on; one that is lost ends it."""
        save = ids.step, ids.save_id
        others = [at for (step, _), at in self.hosts_of.items() if step == ids.step]
        if save not in self.hosts_of and any(at != self.hosts for at in others):
            self.unordered.add(ids.step)
        number = self.hosts_of.setdefault(save, list(self.hosts))[ids.rank]
        return NOBODY if self.lost and number == self.loser else number

    def _answered(self, call: Callable[[], object]) -> bool:
        """Return whether ``call`` was acknowledged; a refusal is an honest answer."""
        self.clock.advance(1.0)
        try:
            call()
        except CachetierError:
            return False
        return True

    # --- what nodes do ---------------------------------------------------------------------------

    def copy_one(self) -> None:
        self._drain_one(self._some().copies)
        self.note_promises()

    def copy_all(self) -> None:
        self._drain(self._some().copies)
        self.note_promises()

    def drain_one(self) -> None:
        self._drain_one(self._some().node.real_drain)

    def drain_all(self) -> None:
        self._drain(self._some().node.real_drain)

    def look_after_copies(self, machine: Machine | None = None) -> None:
        """A node does what it does every five seconds: releases, and finishes."""
        machine = machine or self._some()
        try:
            machine.saves.look()
        except RemoteError:
            self.met["looks without the bucket"] += 1

    def evict(self) -> None:
        machine = self._some()
        for row in machine.node.rows():
            try:
                machine.node.evict(row)
            except CachetierError:
                continue

    def _drain(self, drain: RealDrain) -> None:
        for _ in range(ENDLESS_TASKS):
            if not self._drain_one(drain):
                return

    def _drain_one(self, drain: RealDrain) -> bool:
        try:
            return drain.drain_one()
        except RefusedReportError:
            return False  # it looks again later

    def note_promises(self) -> None:
        """Note the saves of which a node says that they are at ``replicated``."""
        for machine in self.machines.values():
            for step in STEPS:
                save = machine.node.store.read(saves.shown_save, RUN, step)
                if save is None or save.save_id != f"save-{self.saves[step]}":
                    continue
                if Level.REPLICATED in machine.node.checkpoints._view(save).levels:
                    self.promised.add((step, save.save_id))

    # --- what happens to them --------------------------------------------------------------------

    def restart(self) -> None:
        number = self._some().number
        self.machines[number].close()
        self.machines[number] = self._open(number)

    def kill(self) -> None:
        self._die(self._some().number)

    def cut_power(self) -> None:
        """What a keeper had not synced goes; its catalog is judged elsewhere."""
        machine = self._some()
        machine.die()
        self.disk.cut_power(machine.home)
        self.machines[machine.number] = self._open(machine.number)
        self.met["power cuts of a keeper"] += 1

    def _die(self, number: int) -> None:
        self.machines[number].die()
        self.machines[number] = self._open(number)

    def cut_a_link(self) -> None:
        self.network.cut.add(frozenset(self.dice.sample(NUMBERS, 2)))
        self.met["links between nodes that were cut"] += 1

    def heal(self) -> None:
        self.network.heal()

    def lose_the_bucket(self) -> None:
        for machine in self.machines.values():
            if self.dice.random() < 0.7:
                machine.link.go_down()

    def find_the_bucket(self) -> None:
        for machine in self.machines.values():
            machine.link.mend()

    def fill_a_room(self) -> None:
        keeper = self._some().keeper
        keeper.room_bytes = keeper.used_bytes
        self.met["rooms that were full"] += 1

    def empty_the_rooms(self) -> None:
        for machine in self.machines.values():
            machine.keeper.room_bytes = ROOM_BYTES

    def delay_a_call(self) -> None:
        self.network.plan("late")

    def lose_an_answer(self) -> None:
        self.network.plan("lost")

    def deliver(self) -> None:
        self.network.deliver()

    def time_passes(self) -> None:
        self.clock.advance(self.dice.choice((3.0, 12.0, 100.0)))

    def long_silence(self) -> None:
        self.clock.advance(FINISH_AFTER_SECONDS)

    # --- the node that loses what it had ---------------------------------------------------------

    def take_a_snapshot(self) -> None:
        if self.loser in self.machines:
            self.snapshot = self.top / "snapshot"
            shutil.rmtree(self.snapshot, ignore_errors=True)
            self.machines[self.loser].close()
            shutil.copytree(self.top / f"node-{self.loser}", self.snapshot)
            self.machines[self.loser] = self._open(self.loser)

    def go_back(self) -> None:
        if self.loser in self.machines and self.snapshot is not None:
            self._lose()
            self._return()
            self.met["neighbours that went back"] += 1

    def die_for_good(self) -> None:
        if self.loser in self.machines:
            self._lose()
            self.met["nodes that died for good"] += 1

    def come_back(self) -> None:
        """A node that was given up comes back after all, with an old disk."""
        if self.loser not in self.machines and self.snapshot is not None:
            self._return()
            self.met["nodes that came back with an old disk"] += 1

    def come_back_to_a_finished_step(self) -> None:
        """The old disk has other bytes of a save than those that its peers finished meanwhile."""
        if self.loser not in self.machines or self.loser not in self.hosts:
            return
        step = self.dice.choice(STEPS)
        self.saves[step] += 1
        self._put_all(step)
        self.take_a_snapshot()
        self._put_all(step)
        self._seal_all(step)
        self.find_the_bucket()
        self._copy_everywhere()
        self.die_for_good()
        for seconds in (FINISH_AFTER_SECONDS, FINISH_AFTER_SECONDS, 100.0):
            self._round(seconds)
        self.come_back()
        self._round(100.0)

    def come_back_with_the_save_before(self) -> None:
        """The old disk has an earlier save of a step than the one that its peers keep."""
        if self.loser not in self.machines or self.loser not in self.hosts:
            return
        step = self.dice.choice(STEPS)
        self._save_whole(step)
        if self.dice.random() < 0.5:
            self._copy_everywhere()
        self.take_a_snapshot()
        self._save_whole(step)
        self._copy_everywhere()
        self.go_back()
        self.met["owners that came back with the save before"] += 1

    def _copy_everywhere(self) -> None:
        self.network.heal()
        self.empty_the_rooms()
        for machine in self.machines.values():
            self._drain(machine.copies)
        self.note_promises()

    def _lose(self) -> None:
        """The directory of the loser goes; its ranks end, and the job saves again."""
        self.machines.pop(self.loser).die()
        shutil.rmtree(self.top / f"node-{self.loser}")
        self.lost = True
        others = [number for number in NUMBERS if number != self.loser]
        self.hosts = [self.dice.choice(others) if at == self.loser else at for at in self.hosts]
        for step, number in self.saves.items():
            if self.loser in self.hosts_of.get((step, f"save-{number}"), []):
                self.saves[step] += (step, f"save-{number}") not in self.promised

    def _return(self) -> None:
        assert self.snapshot is not None
        shutil.copytree(self.snapshot, self.top / f"node-{self.loser}")
        self.disk.trust(self.top / f"node-{self.loser}")
        self.machines[self.loser] = self._open(self.loser)

    # --- what must hold --------------------------------------------------------------------------

    def look(self) -> None:
        """What is published is one save's acknowledged bytes, and never changes."""
        for step in STEPS:
            found = published_bytes(self.bucket, RUN, step)
            if found is None:
                continue
            save = step, found[0]
            put = self.acknowledged.get(save)
            require(put is not None, f"step {step} is published as {found[0]}, which nobody put")
            require(found[1] == put, f"step {step} is not what was put as {found[0]}")
            first = self.published.setdefault(save, found[1])
            require(first == found[1], f"published step {step} has changed")

    def settle(self) -> None:
        """The node may die for good now; then its promises are kept by the others alone."""
        self.note_promises()
        if self.dice.random() < 0.7:
            self.die_for_good()
        self.network.heal()
        self.network.deliver()
        self.empty_the_rooms()
        self.clock.advance(100.0)
        self._judge_without_bucket()
        self.find_the_bucket()
        for _ in range(12):
            self._round(FINISH_AFTER_SECONDS / 2)
        self._judge_published()
        for seconds in (100.0, 100.0, TOMBSTONE_SECONDS, 100.0):
            self._round(seconds)
        self._judge_released()

    def _round(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for machine in self.machines.values():
            self._drain(machine.node.real_drain)
            self._drain(machine.copies)
            self.look_after_copies(machine)
        self.look()

    def owed(self) -> list[Save]:
        """Return what was acknowledged at ``replicated``, and neither replaced nor deleted."""
        newest = {(step, f"save-{number}") for step, number in self.saves.items()}
        return sorted(each for each in self.promised & newest if each[0] not in self.unordered)

    def _judge_without_bucket(self) -> None:
        """While the bucket is away, a step is restored from its own nodes and from copies."""
        self.find_the_bucket()
        owed = [each for each in self.owed() if self.bucket.manifest(RUN, each[0]) is None]
        for machine in self.machines.values():
            machine.link.go_down()
        for step, save_id in owed:
            hosts = self.hosts_of[step, save_id]
            for name, body in self.acknowledged[step, save_id].items():
                rank = next(rank for rank, names in enumerate(NAMES) if name in names)
                for machine in self._knowing(hosts[rank : rank + 1]):
                    self._judge_read(machine, step, name, body)
            for machine in self._knowing(hosts):
                latest = self._latest(machine)
                require(latest >= step, f"node {machine.number} names {latest}, not {step}")
        self.met["steps that were read without the bucket"] += len(owed)

    def _latest(self, machine: Machine) -> int:
        try:
            found = machine.node.checkpoints.latest(RUN, Level.REPLICATED)
        except RemoteError:
            return -1
        return found.step if found is not None else -1

    def _knowing(self, hosts: Sequence[int]) -> list[Machine]:
        """Return the nodes that must know what was put on ``hosts``: all, if one of them is lost.

        Else those: copies are for the loss of one node, and that was another one.
        """
        if self.lost and self.loser in hosts:
            return self._sound()
        return [self.machines[number] for number in hosts]

    def _sound(self) -> list[Machine]:
        """Return the nodes that are there, and lost nothing."""
        return [each for each in self.machines.values() if each.number != self.loser]

    def _judge_read(self, machine: Machine, step: int, name: str, body: bytes) -> None:
        where = f"{name} of replicated step {step} on node {machine.number}"
        try:
            found = machine.node.get(RUN, step, name)
        except CachetierError as error:
            require(False, f"{where} is lost: {error!r}")
        else:
            require(found == body, f"{where} has other bytes")

    def _judge_published(self) -> None:
        for step, save_id in self.owed():
            require((step, save_id) in self.published, f"replicated step {step} is not published")
            self.met["steps of a dead node that were published"] += self.lost
            for name, body in self.acknowledged[step, save_id].items():
                for machine in self._sound():
                    self._judge_read(machine, step, name, body)

    def _judge_released(self) -> None:
        """Nothing is left of a published save, and no catalog says that there is."""
        for machine in self.machines.values():
            for step in STEPS:
                found = self.bucket.published(RUN, step)
                if found is None:
                    continue
                left = [
                    each.key
                    for each in machine.keeper.listed(f"{RUN}/{step}")
                    if self._save_of(machine.keeper.head(each.key), machine) == found.save_id
                ]
                require(not left, f"node {machine.number} keeps {left} of a published step")
        for machine in self._sound():
            for save in machine.node.store.read(saves.saves_of_run, RUN):
                if (save.step, save.save_id) in self.published:
                    copy = machine.node.store.read(copies.copy_of, save.number, PEERS_NAME)
                    gone = copy is None or copy.state is CopyState.DELETED
                    require(gone, f"node {machine.number} believes in copies of step {save.step}")

    def _save_of(self, info: ObjectInfo | None, machine: Machine) -> str:
        assert info is not None
        if SAVE_KEY in info.metadata:
            return info.metadata[SAVE_KEY]
        return str(json.loads(machine.keeper.get(info.key)).get("save_id", ""))

    # --- in detail -------------------------------------------------------------------------------

    def _some(self) -> Machine:
        return self.machines[self.dice.choice(sorted(self.machines))]

    def _open(self, number: int) -> Machine:
        home = self.top / f"node-{number}"
        return Machine(home, number, self.network, self.store, self.clock, self.vfs)
