"""Puts that memory is enough for: where they go, what is said of them, and how they reach the disk.

The folder in memory is an ordinary one here, which a reboot takes by its name.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import BackpressureError, FencedError, IntegrityError, InvalidRequestError
from cachetier.local.files.data_files import MEMORY_NAME, DiskFiles
from cachetier.local.store import Staged
from cachetier.model.levels import Level
from cachetier.model.lifecycle import ShardState
from cachetier.model.policy import Policy
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_files import FaultyFiles, FileFault, refuse
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save")
DATA = bytes(range(256)) * 400
MORE = DATA[::-1]
ROOM_BYTES = 100_000_000


class Life:
    """One cache directory and its folder in memory, over starts of its node."""

    def __init__(self, tmp_path: Path, vfs: str) -> None:
        self.cache_dir, self.memory = tmp_path / "cache", tmp_path / "shm" / "folder"
        self.cache_dir.mkdir(mode=0o700)
        (self.cache_dir / MEMORY_NAME).write_text(f"{self.memory}\n")
        self._remote, self._vfs = MemoryObjectStore(minimum_part_bytes=1), vfs
        self.files: FaultyFiles
        self.node = self.start()

    def start(
        self, *faults: FileFault, memory_bytes: int = 1_000_000, local_every: int = 1
    ) -> Node:
        self.memory.mkdir(parents=True, exist_ok=True)
        disk = DiskFiles(self.cache_dir)
        disk.prepare()
        self.files = FaultyFiles(disk, faults)
        self.node = Node(
            self.cache_dir,
            self._remote,
            FakeClock(),
            capacity_bytes=ROOM_BYTES,
            files=self.files,
            vfs=self._vfs,
            memory_bytes=memory_bytes,
            policy=Policy(local_every=local_every),
        )
        return self.node

    def killed(self, *faults: FileFault) -> Node:
        self.node.die()
        return self.start(*faults)

    def power_cut(self) -> Node:
        self.node.die()
        shutil.rmtree(self.memory)
        return self.start()

    def levels(self) -> tuple[str, ...]:
        view, _ = self.node.checkpoints.step("run", 1)
        return view.levels

    def states(self) -> dict[str, tuple[ShardState, bool]]:
        return {shard.name: (shard.state, shard.in_memory) for shard in self.node.rows()}


@pytest.fixture
def life(tmp_path: Path, vfs: str) -> Iterator[Life]:
    life = Life(tmp_path, vfs)
    yield life
    life.node.close()


def put(node: Node, name: str = "a", data: bytes = DATA) -> str:
    return node.put(IDS, name, data, memory=True).level


def test_a_put_goes_to_memory_and_then_to_the_disk(life: Life) -> None:
    node = life.node
    assert put(node) == "memory"
    node.checkpoints.seal(IDS, None)
    assert life.levels() == ("memory",)
    assert (node.store.memory.used_bytes, node.store.space.used_bytes) == (len(DATA), 0)
    assert node.get("run", 1, "a") == DATA

    assert node.write_back.copy_next()
    assert not node.write_back.copy_next()

    assert life.levels() == ("local",)
    assert (node.store.memory.used_bytes, node.store.space.used_bytes) == (0, len(DATA))
    assert not any(path.is_file() for path in life.memory.rglob("*"))
    assert node.get("run", 1, "a") == DATA


def test_levels_are_asked_for_by_name(life: Life) -> None:
    steps = life.node.checkpoints
    put(life.node)
    steps.seal(IDS, None)
    assert [steps.latest("run", level) is not None for level in Level][:2] == [True, False]
    assert [len(steps.steps("run", level)) for level in (Level.MEMORY, Level.LOCAL)] == [1, 0]
    wanted = steps.level_reached("run", 1, "a", Level.LOCAL).look, Level.LOCAL
    assert wanted[0]() is None
    assert steps.level_reached("run", 1, None, Level.LOCAL).look() is None
    assert steps.level_reached("run", 1, None, Level.MEMORY).look() is not None

    assert life.node.write_back.copy_next()
    assert wanted[0]() is not None
    assert [len(steps.steps("run", level)) for level in (Level.MEMORY, Level.LOCAL)] == [1, 1]


def test_a_step_is_as_safe_as_the_least_of_its_shards(life: Life) -> None:
    assert life.node.put(IDS, "on-disk", MORE).level == "local"
    put(life.node)
    life.node.checkpoints.seal(IDS, None)
    assert life.levels() == ("memory",)


def test_a_put_without_room_in_memory_goes_to_the_disk_and_says_so(life: Life) -> None:
    life.node.store.memory.account(1_000_000 - len(DATA) + 1)
    assert put(life.node) == "local"


def test_a_put_goes_to_the_disk_if_memory_takes_no_file(life: Life) -> None:
    shutil.rmtree(life.memory)
    assert put(life.node) == "local"
    assert life.node.store.memory.used_bytes == 0


def test_small_shards_and_those_of_unknown_size_go_to_the_disk(life: Life) -> None:
    assert put(life.node, data=b"small") == "local"
    staged = life.node.ingest.begin(IDS, "b", None, 0.0, memory=True)
    assert isinstance(staged, Staged)
    assert staged.file_id.startswith("0")
    life.node.ingest.abort(staged)


def test_a_put_in_memory_cannot_grow(life: Life) -> None:
    staged = life.node.ingest.begin(IDS, "a", len(DATA), 0.0, memory=True)
    assert isinstance(staged, Staged)
    with pytest.raises(InvalidRequestError):
        life.node.ingest.extend(staged, 2 * len(DATA), 0.0)
    life.node.ingest.abort(staged)
    assert (life.node.store.memory.used_bytes, life.node.store.space.used_bytes) == (0, 0)


def test_the_same_bytes_put_again_are_not_said_to_be_safer(life: Life) -> None:
    put(life.node)
    assert life.node.put(IDS, "a", DATA).level == "memory"
    assert life.node.write_back.copy_next()
    assert put(life.node) == "local"
    assert life.node.store.memory.used_bytes == 0


def test_kill_loses_nothing_of_memory(life: Life) -> None:
    put(life.node)
    life.node.checkpoints.seal(IDS, None)
    node = life.killed()
    assert node.recovered.lost_shards == 0
    assert life.levels() == ("memory",)
    assert node.store.memory.used_bytes == len(DATA)
    assert node.write_back.copy_next()
    assert life.power_cut().get("run", 1, "a") == DATA
    assert life.levels() == ("local",)


def test_a_power_cut_takes_what_was_in_memory_only_and_the_node_says_so(life: Life) -> None:
    put(life.node)
    life.node.put(IDS, "on-disk", MORE)
    life.node.checkpoints.seal(IDS, None)

    node = life.power_cut()
    assert [shard.name for shard in node.recovered.forgotten] == ["a"]
    assert life.levels() == ()
    assert life.states()["a"] == (ShardState.QUARANTINED, False)
    assert node.checkpoints.latest("run", Level.MEMORY) is None
    assert (node.store.memory.used_bytes, node.store.space.used_bytes) == (0, len(MORE))
    with pytest.raises(IntegrityError):
        node.get("run", 1, "a")
    assert node.get("run", 1, "on-disk") == MORE
    again = SaveIds("run", 1, "again")
    node.put(again, "a", DATA)
    node.checkpoints.seal(again, None)
    assert life.levels() == ("local",)
    assert life.power_cut().recovered.lost_shards == 0


def test_what_is_durable_outlives_memory(life: Life) -> None:
    put(life.node)
    life.node.checkpoints.seal(IDS, None)
    life.node.drain.drain_all()
    life.node.drain.publish_all()
    assert "durable" in life.levels()
    node = life.power_cut()
    assert node.recovered.forgotten == ()
    assert life.states()["a"] == (ShardState.EVICTED, False)
    assert node.get("run", 1, "a") == DATA


@pytest.mark.parametrize("operation", ["create", "preallocate", "seal", "sync_name", "remove"])
def test_a_copy_may_fail_at_every_step(life: Life, operation: str) -> None:
    """Whatever fails, the shard is whole, and no more is said of it than is true."""
    put(life.node)
    life.node.checkpoints.seal(IDS, None)
    node = life.killed(refuse(operation, number=errno.EIO))  # type: ignore[arg-type]
    try:
        node.write_back.copy_next()
    except (BackpressureError, FencedError):
        assert life.levels() == ("memory",)
        assert life.states()["a"] == (ShardState.DIRTY, True)
    assert node.get("run", 1, "a") == DATA
    node = life.killed()
    while node.write_back.copy_next():
        pass
    assert life.power_cut().get("run", 1, "a") == DATA
    assert life.levels() == ("local",)


def test_a_copy_waits_for_room(life: Life) -> None:
    put(life.node)
    space = life.node.store.space
    space.account(ROOM_BYTES)
    life.node.write_back._make_room = lambda: None
    assert not life.node.write_back.copy_next()
    assert life.states()["a"] == (ShardState.DIRTY, True)
    space.release(ROOM_BYTES)
    assert life.node.write_back.copy_next()


def test_bytes_that_memory_damaged_do_not_become_a_sound_file(life: Life) -> None:
    put(life.node)
    (path,) = (path for path in life.memory.rglob("f*") if path.is_file())
    path.write_bytes(MORE)
    assert life.node.write_back.copy_next()
    assert life.states()["a"] == (ShardState.QUARANTINED, True)
    assert life.node.store.space.used_bytes == 0
    assert life.power_cut().store.memory.used_bytes == 0


def test_a_shard_that_is_replaced_is_not_copied(life: Life) -> None:
    put(life.node)
    put(life.node, data=MORE)
    while life.node.write_back.copy_next():
        pass
    assert life.node.get("run", 1, "a") == MORE
    assert (life.node.store.memory.used_bytes, life.node.store.space.used_bytes) == (0, len(MORE))


def test_a_store_without_memory_keeps_what_it_had_there(life: Life) -> None:
    put(life.node)
    life.node.die()
    node = life.start(memory_bytes=0)
    assert node.get("run", 1, "a") == DATA
    assert put(node, "b") == "local"
    assert node.write_back.copy_next()
    assert life.states()["a"] == (ShardState.DIRTY, False)


# --- steps that stay in memory -------------------------------------------------------------------


@pytest.fixture
def kept(life: Life) -> Node:
    """A node that copies every second step alone; three puts of this size fill half its memory."""
    life.node.die()
    return life.start(memory_bytes=5 * len(DATA), local_every=2)


def put_step(node: Node, step: int, data: bytes = DATA) -> None:
    ids = SaveIds("run", step, "save")
    node.put(ids, "a", data, memory=True)
    node.checkpoints.seal(ids, None)


def places(life: Life) -> dict[int, tuple[ShardState, bool]]:
    return {shard.step: (shard.state, shard.in_memory) for shard in life.node.rows()}


def copy_all(node: Node) -> None:
    while node.write_back.copy_next():
        pass


def test_only_steps_that_local_every_divides_are_copied(life: Life, kept: Node) -> None:
    for step in (1, 2):
        put_step(kept, step)
    copy_all(kept)
    assert places(life) == {1: (ShardState.DIRTY, True), 2: (ShardState.DIRTY, False)}
    assert kept.store.memory.used_bytes == len(DATA)


def test_half_full_memory_lets_the_oldest_step_go_to_the_disk(life: Life, kept: Node) -> None:
    for step in (1, 3, 5):
        put_step(kept, step)
    copy_all(kept)
    assert [at_memory for _, at_memory in places(life).values()] == [False, True, True]
    assert life.power_cut().get("run", 1, "a") == DATA


def test_a_durable_step_leaves_memory_without_touching_the_disk(life: Life, kept: Node) -> None:
    put_step(kept, 1)
    kept.drain.drain_all()
    kept.drain.publish_all()
    for step in (3, 5):
        put_step(kept, step)
    copy_all(kept)
    assert places(life)[1] == (ShardState.EVICTED, False)
    assert kept.store.space.used_bytes == 0
    assert kept.get("run", 1, "a") == DATA


def test_who_waits_for_local_has_the_step_copied(life: Life, kept: Node) -> None:
    put_step(kept, 1)
    copy_all(kept)
    wanted = kept.checkpoints.level_reached("run", 1, None, Level.LOCAL)
    assert wanted.look() is None
    copy_all(kept)
    assert wanted.look() is not None
    assert life.power_cut().get("run", 1, "a") == DATA


def test_a_start_copies_what_the_one_before_kept_in_memory(life: Life, kept: Node) -> None:
    put_step(kept, 1)
    life.node.die()
    node = life.start(local_every=2)
    copy_all(node)
    assert places(life) == {1: (ShardState.DIRTY, False)}
    assert node.get("run", 1, "a") == DATA


def test_what_left_memory_by_itself_is_forgotten(life: Life, kept: Node) -> None:
    for step in (1, 3):
        put_step(kept, step)
    kept.checkpoints.delete_step("run", 1)
    copy_all(kept)
    assert len(kept.store.kept_in_memory) == 1
    assert places(life)[3] == (ShardState.DIRTY, True)
