"""A Hypothesis state machine: the durable core against a dictionary.

Acknowledged is readable with the same bytes. Clean is verified at the remote. Dirty or pinned is
never evicted. Accounted bytes are the bytes on disk. Published is whole and one save's. Deleted and
aborted stay so. Local-only is neither drained nor removed while it is the newest. What somebody
else put into the bucket is there for ever.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from cachetier.errors import CachetierError, NotFoundError
from cachetier.local.catalog.saves import saves_of_run
from cachetier.model.checkpoint import Save
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.names import DURABLE
from cachetier.model.policy import Policy
from cachetier.model.shard import Shard
from cachetier.reclaim.gc import Garbage, GarbageKind
from cachetier.remote.bucket import Remote
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.faults.counting import count
from tests.faults.slices import share_of
from tests.stateful.invariants import judge_bytes, judge_figures, judge_rows
from tests.stateful.model import DELETED, OK, OPEN, PUBLISHED, Model, ModelSave
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced

pytestmark = [pytest.mark.slow]

RUNS, STEPS, RANKS, NAMES = ("alpha", "beta"), (1, 2), (0, 1), ("a", "b/c")
WORLD_SIZE = len(RANKS)

runs, steps = st.sampled_from(RUNS), st.sampled_from(STEPS)
ranks, names = st.sampled_from(RANKS), st.sampled_from(NAMES)
bodies = st.builds(
    lambda size, seed: bytes([seed]) * size,
    st.sampled_from([0, 300, 300, 70_000, 70_000]),
    st.integers(1, 2),
)
LIVES, LIVES_OF_A_SEED = 2_000, 50
SLOW = settings(
    max_examples=LIVES_OF_A_SEED,
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=settings.get_profile("default").suppress_health_check,
)


class Tier(RuleBasedStateMachine):
    """One node with its remote and drain; ``model`` is what it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.vfs = self.stack.enter_context(unsynced())
        self.place = Path(tempfile.mkdtemp(prefix="tier-"))
        self.remote = MemoryObjectStore(minimum_part_bytes=1)
        self.clock = FakeClock()
        self.policy = Policy()
        self.model = Model()
        self.saves: dict[tuple[str, int], int] = {}
        self.damaged: set[str] = set()
        self.foreign: dict[str, bytes] = {}
        self.node: Node

    @initialize(every=st.sampled_from([2, 1]))
    def choose_policy(self, every: int) -> None:
        self.policy = Policy(durable_every=every, keep_local=1)
        self.model = Model(durable_every=every)
        self._start()

    def _start(self) -> None:
        self.model.passed_over.clear()
        self.node = Node(
            self.place / "cache", self.remote, self.clock, vfs=self.vfs, policy=self.policy
        )

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.die()
        self.stack.close()
        shutil.rmtree(self.place)

    # --- ranks -----------------------------------------------------------------------------------

    @rule(run=runs, step=steps, rank=ranks, name=names, data=bodies)
    def put(self, run: str, step: int, rank: int, name: str, data: bytes) -> None:
        ids = self._ids(run, step, rank)
        self._same(self.model.put(ids, name, data), lambda: self.node.put(ids, name, data))

    @rule(run=runs, step=steps, rank=ranks, name=names, data=bodies)
    def put_late(self, run: str, step: int, rank: int, name: str, data: bytes) -> None:
        """A process of an earlier save is still alive."""
        ids = self._ids(run, step, rank, back=1)
        self._same(self.model.put(ids, name, data), lambda: self.node.put(ids, name, data))

    @rule(run=runs, step=steps, rank=ranks)
    def seal(self, run: str, step: int, rank: int) -> None:
        ids = self._ids(run, step, rank)
        self._same(
            self.model.seal(ids), lambda: self.node.checkpoints.seal(ids, ranks_on_node=WORLD_SIZE)
        )

    @rule(run=runs, step=steps)
    def follow(self, run: str, step: int) -> None:
        ids = self._ids(run, step, 1)
        self._same(
            self.model.follow(ids),
            lambda: self.node.checkpoints.seal(ids, ranks_on_node=WORLD_SIZE, follows=True),
        )

    @rule(run=runs, step=steps)
    def save_whole(self, run: str, step: int) -> None:
        """Both ranks put and seal, as nearly every save does."""
        for rank in RANKS:
            self.put(run, step, rank, NAMES[rank], bytes([rank + 1]) * (300 + 70_000 * rank))
            self.seal(run, step, rank)

    @rule(run=runs, step=steps, size=st.sampled_from([0, 3, 70_000]))
    def save_small_shards(self, run: str, step: int, size: int) -> None:
        """One rank puts several small shards: they may go in a pack."""
        for number, name in enumerate(NAMES):
            self.put(run, step, 0, name, bytes([number + 1]) * size)
        for rank in RANKS:
            self.seal(run, step, rank)

    @rule(run=runs, step=steps, rank=ranks)
    def abort(self, run: str, step: int, rank: int) -> None:
        ids = self._ids(run, step, rank)
        self._same(self.model.abort(ids), lambda: self.node.checkpoints.abort_rank(ids))

    @rule(run=runs, step=steps)
    def save_again(self, run: str, step: int) -> None:
        """The job was killed, or means to overwrite: what comes next is another save."""
        self.saves[run, step] = self.saves.get((run, step), 0) + 1

    @rule(run=runs, step=steps)
    def delete_step(self, run: str, step: int) -> None:
        self._same(
            self.model.delete_step(run, step),
            lambda: self.node.checkpoints.delete_step(run, step),
        )

    # --- the node itself -------------------------------------------------------------------------

    @rule()
    def drain_one(self) -> None:
        self.node.drain.drain_one()
        self._learn_of_damage()

    @rule()
    def drain_all(self) -> None:
        self.node.drain.drain_all()
        self._learn_of_damage()
        for (run, step), saves in self.model.steps.items():
            for save in saves:
                if save.state == OPEN and save.whole() and not _is_damaged(save):
                    self.model.publish(save, run, step)

    @rule()
    def evict_all(self) -> None:
        """Try them all: only what is clean and not pinned may go."""
        for row in self.node.rows():
            may_go = row.state is ShardState.CLEAN and (row.run, row.step) not in self.model.pinned
            assert self.node.evict(row) is may_go

    @rule(run=runs, step=steps)
    def pin(self, run: str, step: int) -> None:
        pins = self.node.checkpoints
        self._same(self.model.pin(run, step), lambda: pins.pin(run, step))

    @rule(run=runs, step=steps)
    def unpin(self, run: str, step: int) -> None:
        was_pinned = (run, step) in self.model.pinned
        assert self.node.checkpoints.unpin(run, step) is was_pinned
        self.model.pinned.discard((run, step))

    @rule(run=runs, step=steps)
    def flush_step(self, run: str, step: int) -> None:
        self._same(
            self.model.flush_step(run, step),
            lambda: self.node.checkpoints.flush(run, step, 0.0),
        )

    @rule()
    def trim(self) -> None:
        """Only local-only steps may vanish, and never the newest or what is pinned."""
        here = {row.version for row in self._pinned_rows()}
        self.node.retention.trim()
        assert {row.version for row in self._pinned_rows()} == here
        gone = {(s.run, s.step, s.save_id) for s in self._saves() if s.state == DELETED}
        for (run, step), saves in self.model.steps.items():
            for save in saves:
                if save.state != DELETED and (run, step, save.save_id) in gone:
                    self.model.remove(save, run, step)

    @rule()
    def collect(self) -> None:
        """What goes was of no use, and as many objects go as were counted."""
        self.node.drain.delete_all()
        self.clock.advance(1.0)
        before = self._objects()
        remotes = [Remote(DURABLE, self.node.bucket)]
        garbage = Garbage(self.node.store, self.node.cache_dir, remotes, self.clock)
        found = garbage.collect(0.0, dry_run=False)
        self.node.drain.delete_all()
        gone = {(s.run, s.step, s.save_id) for s in self._saves() if s.state == DELETED}
        for each in found.rubbish:
            if each.kind in (GarbageKind.INCOMPLETE, GarbageKind.REPLACED):
                assert each.run is not None
                assert each.step is not None
                assert each.save_id is not None
                save = self.model.collect(each.run, each.step, each.save_id)
                if (each.run, each.step, each.save_id) in gone:
                    save.state = DELETED
        assert (found.left, found.unanswered) == ((), ())
        assert len(before - self._objects()) == found.as_json()["objects"]

    @rule(run=runs, drained=st.booleans())
    def leave_a_step_behind(self, run: str, drained: bool) -> None:
        """A rank dies in its save, and the job goes on with the next step."""
        self.save_again(run, 1)
        self.put(run, 1, 0, "a", bytes(300))
        if drained:
            self.drain_all()
        self.save_again(run, 2)
        self.save_whole(run, 2)
        self.drain_all()
        self.collect()

    @rule(run=runs, step=steps, own=st.booleans(), name=st.sampled_from(["README.txt", "b/notes"]))
    def somebody_else_puts(self, run: str, step: int, own: bool, name: str) -> None:
        """An object lies between those of a save: at the step's keys, or at the second save's."""
        key = f"tier/{run}/{step}{'~save-1' if own else ''}/{name}"
        self.foreign[key] = key.encode()
        self.remote.put(key, key.encode(), digest=digest_of(key.encode()))

    @rule(clean_stop=st.booleans())
    def restart(self, clean_stop: bool) -> None:
        if clean_stop:
            self.node.close()
        else:
            self.node.die()
        self._start()
        assert self.node.recovered.lost_shards == 0

    @rule(which=st.integers(0, 9), at=st.integers(0, 100_000))
    def damage(self, which: int, at: int) -> None:
        """A bit of a data file flips, and nobody notices yet."""
        self._flip_a_bit(which, at)

    @rule(which=st.integers(0, 9), at=st.integers(0, 100_000))
    def damage_and_read(self, which: int, at: int) -> None:
        row = self._flip_a_bit(which, at)
        if row is not None:
            self.get(row.run, row.step, row.name)

    @rule(seconds=st.sampled_from([-86_400.0, 1.0, 86_400.0]))
    def jump_the_wall_clock(self, seconds: float) -> None:
        self.clock.jump(seconds)

    # --- readers ---------------------------------------------------------------------------------

    @rule(run=runs, step=steps, name=names)
    def get(self, run: str, step: int, name: str) -> None:
        save = self.model.visible(run, step, reads=True)
        shard = save.shards.get(name) if save is not None else None
        row = self._row(run, step, save, name)
        expected = OK if shard is not None else "not_found"
        if shard is not None and row is not None and self._only_copy_is_damaged(row):
            expected = "integrity"
        found: list[bytes] = []
        self._same(expected, lambda: found.append(self.node.get(run, step, name)))
        if shard is not None and expected == OK:
            assert found == [shard.data]
        self._learn_of_damage()

    @rule(run=runs)
    def look(self, run: str) -> None:
        for level in (Level.LOCAL, Level.DURABLE):
            expected = None
            for step in STEPS:
                here = level is Level.LOCAL
                save = self.model.visible(run, step) if here else self.model.published(run, step)
                if save is not None and (not here or self._is_restorable_here(save)):
                    expected = (step, save.save_id)
            view = self.node.checkpoints.latest(run, level)
            assert (view and (view.step, view.save_id)) == expected, f"latest {level} of {run}"
            if expected is not None:
                self.model.named(run, *expected)

    def _is_restorable_here(self, save: ModelSave) -> bool:
        """A step that was published must have its bytes here still; of any other none may go."""
        rows = [row for row in self.node.rows() if _is_of(row, self.model, save)]
        gone = save.state == PUBLISHED and any(row.lacks_bytes for row in rows)
        return len(save.sealed()) >= WORLD_SIZE and not _is_damaged(save) and not gone

    @rule(run=runs, step=steps)
    def look_at_step(self, run: str, step: int) -> None:
        save = self.model.visible(run, step)
        try:
            view, shards = self.node.checkpoints.step(run, step)
        except CachetierError as error:
            answer = error.code
        else:
            answer = OK
            assert save is not None
            assert view.save_id == save.save_id
            assert set(view.ranks) == save.sealed()
            assert {shard.name for shard in shards} == set(save.shards)
        assert answer == (OK if save is not None else "not_found")

    @rule(run=runs)
    def flush(self, run: str) -> None:
        """What is pending is what the model calls unfinished."""
        rows = [row for row in self.node.rows() if row.run == run]
        open_saves = [s for (r, _), saves in self.model.steps.items() if r == run for s in saves]
        if not open_saves:
            with pytest.raises(NotFoundError):
                self.node.checkpoints.flush(run, None, 0.0)
            return
        dirty = 0
        for save in open_saves:
            if save.state == OPEN:
                mine = [row for row in rows if _is_of(row, self.model, save)]
                dirty_here = sum(row.state is ShardState.DIRTY for row in mine)
                dirty += dirty_here or int(save.whole())
        assert self.node.checkpoints.flush(run, None, 0.0).shards == dirty

    # --- always ----------------------------------------------------------------------------------

    @invariant()
    def bytes_are_accounted_and_rows_are_true(self) -> None:
        if hasattr(self, "node"):
            judge_bytes(self.node)
            judge_rows(self.node, self.damaged)
            judge_figures(self.node)

    @invariant()
    def what_somebody_else_put_is_there(self) -> None:
        assert {key: self.remote.get(key) for key in self.foreign} == self.foreign

    @invariant()
    def pins_are_those_that_were_set(self) -> None:
        if hasattr(self, "node"):
            pinned = {(pin.run, pin.step) for pin in self.node.checkpoints.pins()}
            assert pinned == self.model.pinned

    @invariant()
    def every_promised_shard_is_catalogued(self) -> None:
        if not hasattr(self, "node"):
            return
        rows = {(row.run, row.step, row.save_id, row.name): row for row in self.node.rows()}
        for (run, step), saves in self.model.steps.items():
            for save in saves:
                for name, shard in save.shards.items():
                    row = rows[run, step, save.save_id, name]
                    assert row.rank == shard.rank
                    assert row.content.size_bytes == len(shard.data)
                    assert (row.state is ShardState.QUARANTINED) is shard.quarantined
                if save.state == DELETED:
                    gone = [k for k in rows if k[:3] == (run, step, save.save_id)]
                    assert not gone, f"deleted {gone} are back"

    # --- in detail -------------------------------------------------------------------------------

    def _same(self, expected: str, act: Callable[[], object]) -> None:
        """Do it, and compare the code it ends with; the model has done it already."""
        self.clock.advance(1.0)
        try:
            act()
            answer = OK
        except CachetierError as error:
            answer = error.code
        assert answer == expected

    def _ids(self, run: str, step: int, rank: int, back: int = 0) -> SaveIds:
        number = max(0, self.saves.get((run, step), 0) - back)
        return SaveIds(run, step, f"save-{number}", rank, WORLD_SIZE, overwrite=number % 2 == 1)

    def _objects(self) -> set[str]:
        """Return what is in the bucket but the manifests, which stay as tombstones."""
        return {key for key in self.remote.list("").keys if not key.endswith("/manifest.json")}

    def _saves(self) -> list[Save]:
        return [s for run in RUNS for s in self.node.store.read(partial(saves_of_run, run=run))]

    def _row(self, run: str, step: int, save: ModelSave | None, name: str) -> Shard | None:
        if save is None:
            return None
        key = (run, step, save.save_id, name)
        rows = self.node.rows()
        return next((r for r in rows if (r.run, r.step, r.save_id, r.name) == key), None)

    def _pinned_rows(self) -> list[Shard]:
        """Return what is here of pinned steps."""
        rows = [row for row in self.node.rows() if (row.run, row.step) in self.model.pinned]
        return [row for row in rows if row.state is not ShardState.EVICTED]

    def _only_copy_is_damaged(self, row: Shard) -> bool:
        if row.state is ShardState.QUARANTINED:
            return True
        return row.state is ShardState.DIRTY and row.file_id in self.damaged

    def _flip_a_bit(self, which: int, at: int) -> Shard | None:
        rows = sorted(self.node.rows(), key=lambda row: row.version)
        filed = [row for row in rows if row.file_id is not None and row.content.size_bytes > 0]
        sound = [row for row in filed if row.file_id not in self.damaged]
        if not sound:
            return None
        row = sound[which % len(sound)]  # a second flip might mend the first
        assert row.file_id is not None
        path = self.place / "cache" / "data" / row.file_id[:2] / row.file_id
        body = bytearray(path.read_bytes())
        body[at % len(body)] ^= 0x10
        path.write_bytes(body)
        self.damaged.add(row.file_id)
        return row

    def _learn_of_damage(self) -> None:
        """Only what was damaged may be quarantined; the model then knows it too."""
        for row in self.node.rows():
            if row.state is ShardState.QUARANTINED:
                assert row.file_id in self.damaged, f"sound {row.name} is quarantined"
                save = self.model.save_named(row.run, row.step, row.save_id)
                assert save is not None
                save.shards[row.name].quarantined = True


def _is_damaged(save: ModelSave) -> bool:
    return any(shard.quarantined for shard in save.shards.values())


def _is_of(row: Shard, model: Model, save: ModelSave) -> bool:
    return model.save_named(row.run, row.step, row.save_id) is save


@pytest.mark.parametrize("number", share_of(range(LIVES // LIVES_OF_A_SEED)))
def test_lives_agree_with_the_model(number: int, request: pytest.FixtureRequest) -> None:
    seeded = seed(number)(type("Tier", (Tier,), {}))
    run_state_machine_as_test(seeded, settings=SLOW)
    count(request, "lives of the state machine", LIVES_OF_A_SEED, number)
