"""A thousand nodes restore one step: the bucket is asked as if they were one, and lists nothing.

The nodes decide by the real code; one asks after the other, and all threads are the caller's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cachetier_client.bucket_format.layout import Layout

from cachetier.errors import CachetierError, TransientError
from cachetier.local.catalog import saves, shards
from cachetier.remote.base import Into, ObjectStore, deliver
from cachetier.remote.bucket import Bucket
from cachetier.remote.neighbours.client import WantedBlocks
from cachetier.restore import one_fetch
from cachetier.restore.one_fetch import OneFetch, PeerNode
from cachetier.restore.pace import RestorePace
from tests.fakes.fake_clock import FakeClock
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.peer_lab import IDS, CountedStore
from tests.stateful.node import Node

NODES = 1000
SHARDS = {f"w{number}": random.Random(number).randbytes(10_000) for number in range(2)}
SIZE_BYTES = sum(map(len, SHARDS.values()))
RUN, STEP = IDS.run, IDS.step


class Inline:
    """A pool whose calls are done before it returns."""

    def __init__(self, _threads: int, **_named: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(call(*arguments))
        except CachetierError as error:
            done.set_exception(error)
        return done

    def map(self, call: Callable[..., Any], asked: Iterable[Any]) -> Iterator[Any]:
        return map(call, asked)

    def shutdown(self, **_named: object) -> None:
        pass


class SmallNode:
    """A node as itself, and as its peers see it."""

    domain = ""

    def __init__(self, number: int, objects: ObjectStore, world: World) -> None:
        self.name = f"store-{number}"
        self.objects = objects
        self.world = world
        self.one_fetch = OneFetch(self, objects, RestorePace(FakeClock()))
        self.unknown: set[str] = set()  # which nodes it has not heard of
        self.is_dead = False

    def answering(self) -> Sequence[SmallNode]:
        return [e for e in self.world.nodes if e is not self and e.name not in self.unknown]

    def failed(self, peer: PeerNode, error: CachetierError) -> None:
        assert isinstance(error, TransientError)
        self.unknown.add(peer.name)

    def restore(self) -> dict[str, bytearray]:
        bucket = Bucket(self.objects, Layout("tier"))
        bucket.document = self.one_fetch.document
        assert bucket.published(RUN, STEP) is not None
        found = {}
        for shard, source in self.world.shards:
            route = self.one_fetch.route(shard)
            assert route is not None
            (wanted,) = source.ranges()
            found[shard.name] = route.block(source, wanted)
        return found

    # --- as a peer -------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self.is_dead:
            raise TransientError(f"{self.name} does not answer")

    def read_blocks(self, wanted: WantedBlocks, into: Into) -> None:
        self._ask()
        shard, source = next(e for e in self.world.shards if e[0].name == wanted.name)
        of_range = source.blocks(wanted.first_block, wanted.count)
        block = self.one_fetch.flights.of(shard, source, of_range).block(0, 0.0)
        assert block is not None
        deliver(iter([block]), into)

    def held_shards(self, _run: str, _step: int, _save_id: str) -> Collection[str]:
        self._ask()
        return ()

    def document(self, key: str, digest: int) -> bytes:
        self._ask()
        return self.one_fetch.own_document(key, digest).result()


class World:
    """A bucket with one step, and many nodes that know each other."""

    def __init__(self, scratch: Path, vfs: str) -> None:
        remote = MemoryObjectStore(minimum_part_bytes=1)
        saver = Node(scratch / "saver", remote, FakeClock(), vfs=vfs)
        for name, data in SHARDS.items():
            saver.put(IDS, name, data)
        saver.checkpoints.seal(IDS, 1)
        saver.drain.drain_all()
        self.objects = CountedStore(remote)
        save = saver.store.read(saves.shown_save, RUN, STEP)
        assert save is not None
        found = saver.store.read(shards.shards_of, save.number)
        copies = [(each, saver.restore.sources.of(each)[0]) for each in found]
        self.shards = [(each, replace(copy, objects=self.objects)) for each, copy in copies]
        saver.close()
        self.nodes = [SmallNode(number, self.objects, self) for number in range(NODES)]


@pytest.fixture
def world(tmp_path: Path, vfs: str, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(one_fetch, "ThreadPoolExecutor", Inline)
    return World(tmp_path, vfs)


@pytest.mark.slow
def test_a_thousand_nodes_cost_the_bucket_one_restore(world: World) -> None:
    some = random.Random(40)
    for node in some.sample(world.nodes, 10):
        node.is_dead = True
    young = {node.name for node in some.sample(world.nodes, 10)}  # half of all have an old list
    for node in some.sample(world.nodes, NODES // 2):
        node.unknown = young - {node.name}
    alive = [node for node in world.nodes if not node.is_dead]
    for node in alive:
        assert node.restore() == SHARDS
    assert world.objects.read_bytes <= 1.1 * SIZE_BYTES
    calls = world.objects.calls
    assert calls["list"] == calls["list_uploads"] == 0
    assert calls["get"] <= 2  # the manifest, and once more if an old list has its reader
    assert calls["head"] == len(alive)  # no peer says what is published
