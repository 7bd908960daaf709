"""Power is cut, and processes are killed, at every step of puts to memory and of their way down.

A power cut leaves of the disk what the strictest reading of POSIX leaves, and nothing of memory; a
kill leaves both as they are.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from cachetier_client.identity.names import SaveIds
from cachetier_client.results import Receipt

from cachetier.errors import CachetierError
from cachetier.ingest import ingest
from cachetier.local.catalog import shards
from cachetier.local.files.data_files import MEMORY_NAME
from cachetier.local.store import Staged, Store
from cachetier.model.levels import Level
from cachetier.model.shard import Shard
from tests.crash.sweep import repeatable
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.power_loss import DATA_ONLY, NAMES_ONLY, PROCESS_ONLY, WORST, Fate, Image, Survivor
from tests.fakes.strict_disk import StrictDisk
from tests.stateful.node import Node
from tests.stateful.unsynced import unsynced

IDS = SaveIds("run", 1, "save")
SHARDS = {"a": bytes(range(256)) * 300, "b": bytes(range(255, -1, -1)) * 300, "c": b"small"}
ROOM_BYTES = 64 << 20
FATES = {"worst": WORST, "names": NAMES_ONLY, "data": DATA_ONLY, "kill": PROCESS_ONLY}
ONE_WAY = {"worst": WORST}


@dataclass(frozen=True, slots=True)
class Moment:
    """All that there is before a step: disk and memory, and what was said until then."""

    image: Image
    memory: Mapping[Path, bytes]
    said: Mapping[str, str]
    step: str


class Life:
    """Puts, a seal, copies to the disk, and a put of the same bytes again."""

    def __init__(self, top: Path) -> None:
        self._cache, self.memory = top / "disk" / "cache", top / "shm"
        self._cache.mkdir(parents=True, mode=0o700)
        self.memory.mkdir()
        (self._cache / MEMORY_NAME).write_text(f"{self.memory}\n")
        self.disk = StrictDisk(top / "disk")
        self.said: dict[str, str] = {}
        self.moments: list[Moment] = []
        self._node: Node

    def live(self) -> list[Moment]:
        with self.disk.recording(), repeatable(1):
            node = opened(self._cache, self.disk.vfs)
            self._node = node
            self.disk.on_step = self._remember
            for name, data in SHARDS.items():
                self._say(name, node.put(IDS, name, data, memory=True).level)
            node.checkpoints.seal(IDS, None)
            self._say("step", *self._levels())
            while node.write_back.copy_next():
                for name in SHARDS:
                    if node.checkpoints.level_reached("run", 1, name, Level.LOCAL).look():
                        self._say(name, "local")
            self._say("step", *self._levels())
            self._say("a", node.put(IDS, "a", SHARDS["a"], memory=True).level)
            self._remember()
            self.disk.on_step = lambda: None
            node.die()
        return self.moments

    def _levels(self) -> tuple[str, ...]:
        view, _ = self._node.checkpoints.step("run", 1)
        return view.levels

    def _say(self, what: str, level: str) -> None:
        self.said = {**self.said, what: level}

    def _remember(self) -> None:
        if "step" in self.said:  # somebody may ask at any instant
            self._say("step", *self._levels())
        files = (path for path in self.memory.rglob("*") if path.is_file())
        memory = {path: path.read_bytes() for path in files}
        step = self.disk.trace[-1] if self.disk.trace else "the beginning"
        self.moments.append(Moment(self.disk.image(), memory, self.said, step))


def opened(cache: Path, vfs: str) -> Node:
    remote = MemoryObjectStore(minimum_part_bytes=1)
    what = cache, remote, FakeClock()
    return Node(*what, vfs=vfs, capacity_bytes=ROOM_BYTES, memory_bytes=ROOM_BYTES)


def judge(node: Node, said: Mapping[str, str], enough: tuple[str, ...]) -> None:
    """Hold a node to what was said at the levels that are ``enough`` to live through this."""
    for name, data in SHARDS.items():
        if said.get(name) in enough:
            assert node.get("run", 1, name) == data, f"{name} was {said[name]} and is lost"
    try:
        view, _ = node.checkpoints.step("run", 1)
    except CachetierError:
        assert "step" not in said
        return
    if said.get("step") in enough:
        assert view.levels, f"the step was {said['step']}, and is {view.state}"
    if view.levels:
        for name, data in SHARDS.items():
            assert node.get("run", 1, name) == data, f"{name} is lost, its step {view.levels}"


def sweep(top: Path, ways: Mapping[str, Fate] = FATES) -> int:
    """Live, end the life at each of its steps in each way, and judge; return how many were."""
    life = Life(top)
    moments = life.live()
    judged = set()
    with unsynced() as vfs:
        for moment in moments:
            for way, fate in ways.items():
                survivor = moment.image.survivor(fate)
                memory = tuple(moment.memory) if way == "kill" else None
                case = survivor.identity, memory, tuple(moment.said.items())
                if case in judged:
                    continue
                judged.add(case)
                arena = fresh(top, life, survivor)
                enough = ("memory", "local") if way == "kill" else ("local",)
                if way == "kill":
                    for path, data in moment.memory.items():
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_bytes(data)
                node = opened(arena / "cache", vfs)
                try:
                    judge(node, moment.said, enough)
                except (AssertionError, CachetierError) as error:
                    raise AssertionError(f"{way} after {moment.step}: {error}") from error
                finally:
                    node.die()
    return len(judged)


def fresh(top: Path, life: Life, survivor: Survivor) -> Path:
    """Return the disk that is left, with nothing in memory."""
    arena = top / "arena"
    shutil.rmtree(life.memory)
    life.memory.mkdir()
    arena.mkdir(exist_ok=True)
    survivor.write_to(arena)
    return arena


def test_what_was_said_holds_wherever_power_or_processes_go(tmp_path: Path) -> None:
    assert sweep(tmp_path) > 50


def test_a_row_that_moves_before_its_copy_is_synced_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Store.restored

    def too_early(
        self: Store,
        staged: Staged,
        shard: Shard,
        attach: Callable[[apsw.Connection, int, str], Shard] = shards.attach,
    ) -> None:
        before = self.write(attach, shard.version, staged.file_id)
        real(self, staged, shard, lambda _sql, _version, _file_id: before)

    monkeypatch.setattr(Store, "restored", too_early)
    with pytest.raises(AssertionError, match="the step was local"):
        sweep(tmp_path, ONE_WAY)


def test_a_receipt_that_says_local_of_memory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Any = ingest._receipt_of

    def too_much(shard: Shard, level: Level | None = None) -> Receipt:
        return real(shard, level or Level.LOCAL)  # type: ignore[no-any-return]

    monkeypatch.setattr(ingest, "_receipt_of", too_much)
    with pytest.raises(AssertionError, match="shard a is damaged"):
        sweep(tmp_path, ONE_WAY)


def test_a_step_that_is_shown_as_local_while_in_memory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shards.summary_of

    def blind(sql: apsw.Connection, number: int) -> Any:
        found = real(sql, number)
        return type(found)(*(getattr(found, name) for name in found.__slots__[:-1]))

    monkeypatch.setattr(shards, "summary_of", blind)
    with pytest.raises(AssertionError, match="the step was local"):
        sweep(tmp_path, ONE_WAY)
