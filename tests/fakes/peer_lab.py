"""Nodes of one cluster in one process: they share a bucket, and a network that a test can break."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds

from cachetier.errors import CachetierError, TransientError
from cachetier.peers.answers import Bytes, PeerAnswers
from cachetier.remote.base import Into, ObjectStore, deliver, room_of
from cachetier.remote.bucket import Bucket
from cachetier.remote.neighbours.client import WantedBlocks
from cachetier.remote.neighbours.membership import ranked
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from cachetier.restore.fill import Room
from cachetier.restore.one_fetch import OneFetch, PeerNode
from cachetier.restore.pace import RestorePace
from cachetier.restore.restore import Restore
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node
from tests.stateful.reading import bytes_of_opened

IDS = SaveIds("run", 1, "save", 0, 1)


class CountedStore(WrappedObjectStore):
    """Counts calls and the bytes of ranges; ``before`` is called with each range that is read."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self._counting = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.read_bytes = 0
        self.before: Callable[[str, int], None] = lambda _key, _start: None

    def _around(
        self, operation: Operation, size_bytes: int, call: Callable[[], Answer], /
    ) -> Answer:
        with self._counting:
            self.calls[operation] += 1
        return call()

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        self.before(key, start)
        with self._counting:
            self.calls["read_into"] += 1
            self.read_bytes += room_of(into)
        self._store.read_into(key, start, into, etag)


@dataclass(frozen=True)
class WrongClock:
    """A clock whose wall time is off by ``seconds``."""

    clock: Clock
    seconds: float

    def now(self) -> float:
        return self.clock.now() + self.seconds

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


@dataclass
class LabPeer:
    """A node as another one sees it; ``broken`` is raised by each call, ``spoil`` changes bytes."""

    node: LabNode
    domain: str = ""
    broken: Callable[[], None] = lambda: None
    spoil: Callable[[bytes], bytes] = bytes
    asked: Counter[str] = field(default_factory=Counter)
    failures: list[CachetierError] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.node.name

    def read_blocks(self, wanted: WantedBlocks, into: Into) -> None:
        self._ask("held blocks" if wanted.held else "blocks")
        found = self.node.answers.blocks(wanted)
        deliver((self._sent(block) for block in found if block is not None), into)

    def held_shards(self, run: str, step: int, save_id: str) -> Collection[str]:
        self._ask("held")
        return self.node.answers.held_shards(run, step, save_id)

    def document(self, key: str, digest: int) -> bytes:
        self._ask("document")
        found = self.node.answers.document(key, digest)
        return b"".join(self._sent(body) for body in found if body is not None)

    def _sent(self, block: Bytes) -> bytes:
        self.broken()
        return self.spoil(bytes(block))

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        self.broken()


class LabNode:
    """A node without doors, and the others as its ``peers``."""

    def __init__(self, cache_dir: Path, remote: ObjectStore, clock: Clock, vfs: str) -> None:
        self.name = cache_dir.name
        self.domain = ""
        self.peers: list[LabPeer] = []
        self.failed_peers: list[tuple[str, str]] = []
        self.objects = CountedStore(remote)
        self.node = Node(cache_dir, self.objects, clock, vfs=vfs)
        self.node.restore.close()
        bucket = Bucket(self.objects, Layout("tier"))
        pace = RestorePace(clock)
        self.one_fetch = OneFetch(self, self.objects, pace)
        bucket.document = self.one_fetch.document
        room = Room(lambda: None)
        self.restore = Restore(
            self.node.store,
            bucket,
            clock,
            remote=REMOTE,
            room=room,
            one_fetch=self.one_fetch,
            pace=pace,
        )
        self.answers = PeerAnswers(self.node.store, self.restore, self.one_fetch, bucket.layout)

    def answering(self) -> Sequence[LabPeer]:
        return self.peers

    def failed(self, peer: PeerNode, error: CachetierError) -> None:
        self.failed_peers.append((peer.name, error.code))

    def get(self, name: str, timeout_seconds: float = 60.0) -> bytes:
        return bytes_of_opened(self.restore.open("run", 1, name, timeout_seconds))

    def close(self) -> None:
        self.answers.close()
        self.restore.close()
        self.node.close()


class PeerLab:
    """A bucket with one published step, and ``count`` empty nodes that know each other.

    No two of their clocks are less than an hour apart.
    """

    def __init__(self, scratch: Path, clock: Clock, vfs: str, count: int = 4) -> None:
        self.remote = MemoryObjectStore(minimum_part_bytes=1)
        self.nodes = [
            LabNode(
                scratch / f"node-{number}", self.remote, WrongClock(clock, 3600.0 * number), vfs
            )
            for number in range(count)
        ]
        for node in self.nodes:
            node.peers = [LabPeer(each) for each in self.nodes if each is not node]

    def publish(self, saver: Node, shards: dict[str, bytes]) -> None:
        for name, data in shards.items():
            saver.put(IDS, name, data)
        saver.checkpoints.seal(IDS, 1)
        saver.drain.drain_all()

    def as_seen_by(self, reader: LabNode, name: str) -> LabPeer:
        return next(each for each in reader.peers if each.name == name)

    def seen(self, name: str) -> list[LabPeer]:
        """Return one node as all others see it."""
        return [peer for node in self.nodes for peer in node.peers if peer.name == name]

    def fetcher_and_others(self, shard: str = "a") -> tuple[LabNode, list[LabNode]]:
        """Return the node that fetches the first range of a shard, and the others."""
        first, *rest = ranked(f"run/1/save/{shard}/0", [node.name for node in self.nodes])
        nodes = {node.name: node for node in self.nodes}
        return nodes[first], [nodes[name] for name in rest]

    def kill(self, name: str) -> None:
        """Answer nobody any more."""

        def gone() -> None:
            raise TransientError(f"{name} does not answer")

        for peer in self.seen(name):
            peer.broken = gone

    def restore_all(self, name: str, nodes: Sequence[LabNode] | None = None) -> list[bytes]:
        """Have ``nodes`` restore a shard at the same time."""
        together = self.nodes if nodes is None else nodes
        with ThreadPoolExecutor(len(together)) as threads:
            return list(threads.map(lambda node: node.get(name), together))

    @property
    def read_bytes(self) -> int:
        return sum(node.objects.read_bytes for node in self.nodes)

    def calls(self, operation: Operation) -> int:
        return sum(node.objects.calls[operation] for node in self.nodes)

    def close(self) -> None:
        for node in self.nodes:
            node.close()
