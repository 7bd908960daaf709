"""A node with all that peers are to each other, without processes, sockets and threads.

Keeper, membership, neighbours, finisher and both drains are those of the service. A call of a peer
is made in the caller's thread, through ``Network``, where it can be lost or late. ``KeptDisk``
knows what a power cut would leave of the copies.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cachetier_client.bucket_format.layout import Layout

from cachetier.errors import CachetierError, TransientError
from cachetier.local.catalog import connection, copies, parts
from cachetier.model.names import PEERS_NAME
from cachetier.peers import keeper as keeping
from cachetier.peers.door import OPERATIONS
from cachetier.peers.finishing import Finisher
from cachetier.peers.keeper import FOLDER, KeptObjects
from cachetier.peers.kept_saves import KeptSaves
from cachetier.remote.base import Body, Into, deliver
from cachetier.remote.bucket import Bucket, Remote
from cachetier.remote.neighbours.client import HttpPeer
from cachetier.remote.neighbours.membership import Membership, NodeIdentity
from cachetier.remote.neighbours.store import NeighbourStore
from cachetier.remote.stall_guard import StallWatch
from cachetier.restore.replica_choice import Replicas
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.late_store import LateStore
from tests.fakes.memory_store import bytes_of
from tests.stateful.node import Node
from tests.stateful.real_drain import InCaller, RealDrain

FINISH_AFTER_SECONDS = 600.0
ROOM_BYTES = 64 << 20
CHANGING = frozenset(OPERATIONS) - {"head", "listed", "list_parts", "list_uploads"}


class Network:
    """Who reaches whom, and what becomes of the next call that changes something at a peer."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.cut: set[frozenset[int]] = set()
        self.machines: dict[int, Machine] = {}
        self.met: Counter[str] = Counter()
        self._plan = ""
        self._late: list[Callable[[], object]] = []

    def plan(self, what: str) -> None:
        """Let the next change be ``late``, or its answer be ``lost``."""
        self._plan = what

    def heal(self) -> None:
        self.cut.clear()
        self._plan = ""

    def deliver(self) -> None:
        """Let all calls arrive that were late."""
        late, self._late = self._late, []
        for call in late:
            with suppress(CachetierError):
                call()
                self.met["calls of peers that came late"] += 1

    def reached(self, caller: int, number: int) -> Machine:
        """Return a node that answers; raises TransientError."""
        if frozenset((caller, number)) in self.cut or number not in self.machines:
            raise TransientError(f"node {number} does not answer")
        return self.machines[number]

    def call(self, caller: int, number: int, operation: str, change: Callable[[], bytes]) -> bytes:
        self.reached(caller, number)
        plan, self._plan = (self._plan, "") if operation in CHANGING else ("", self._plan)
        if plan == "late":
            self._late.append(change)
            raise TransientError(f"{operation} is late")
        answer = change()
        if plan == "lost":
            self.met["answers of peers that were lost"] += 1
            raise TransientError(f"the answer of {operation} is lost")
        return answer


class LocalPeer(HttpPeer):
    """Another node, asked as over HTTP: its calls and answers are JSON."""

    def __init__(self, network: Network, caller: int, number: int, where: tuple[str, int]) -> None:
        super().__init__(f"node-{number}", where, {})
        self._network = network
        self._caller = caller
        self._number = number

    def hello(self) -> dict[str, Any]:
        return asdict(self._network.reached(self._caller, self._number).membership.own)

    def keeper(
        self, operation: str, arguments: Mapping[str, Any], body: Body | None = None
    ) -> bytes:
        sent, types = json.dumps(arguments), OPERATIONS[operation]
        content = bytes_of(body) if body is not None else b""

        def change() -> bytes:
            machine = self._network.reached(self._number, self._number)
            found = {name: msgspec.convert(v, types[name]) for name, v in json.loads(sent).items()}
            if "body" in types:
                found["body"] = content
            answer = getattr(machine.keeper, operation)(**found)
            return msgspec.json.encode(list(answer) if isinstance(answer, Iterator) else answer)

        return self._network.call(self._caller, self._number, operation, change)

    def knows(self, run: str, step: int, save_id: str, rank: int) -> bool:
        store = self._network.reached(self._caller, self._number).node.store
        return store.read(parts.knows, run, step, save_id, rank)

    def read_kept(self, arguments: Mapping[str, Any], into: Into) -> None:
        machine = self._network.reached(self._caller, self._number)
        deliver(machine.keeper.pieces(**arguments), into)


class KeptDisk:
    """What is synced of the directories of copies."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[str, dict[str, int]] = {}  # by directory

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Note each sync of this process, until the block ends; nothing is really synced."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._synced)
            yield

    def _synced(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if f"/{FOLDER}/" not in path:
            return
        if os.path.isdir(path):
            self._names[path] = {each.name: each.inode() for each in os.scandir(path)}
        else:
            self._contents[os.stat(path).st_ino] = Path(path).read_bytes()

    def cut_power(self, home: Path) -> None:
        """Leave what is synced of the copies below ``home``."""
        for each in ("records", "files"):
            folder = home / FOLDER / each
            names = self._names.get(str(folder), {})
            left = {name: self._contents.get(inode) for name, inode in names.items()}
            shutil.rmtree(folder)
            folder.mkdir(mode=0o700)
            for name, content in left.items():
                (folder / name).write_bytes(content or b"")
        self.trust(home)

    def trust(self, home: Path) -> None:
        """Take what is there for synced."""
        for each in (home / FOLDER).glob("*/*"):
            self._contents[each.stat().st_ino] = each.read_bytes()
        for folder in (home / FOLDER).iterdir():
            self._names[str(folder)] = {each.name: each.inode() for each in os.scandir(folder)}


class Machine:
    """One node; its directory is there already, or made."""

    def __init__(
        self,
        home: Path,
        number: int,
        network: Network,
        bucket: LateStore,
        clock: FakeClock,
        vfs: str,
    ) -> None:
        self.home = home
        self.number = number
        self.link = FaultyObjectStore(bucket)  # to the bucket
        self._network = network
        self._clock = clock
        self.neighbours = NeighbourStore(
            lambda: self.membership,
            network.copies,
            StallWatch(start=lambda _look: None),
            clock.monotonic,
        )
        self.neighbours._threads = InCaller()  # type: ignore[assignment]  # no luck in it
        peers = Bucket(self.neighbours, Layout())
        with pytest.MonkeyPatch.context() as patch:  # ids decide who keeps what
            named = SimpleNamespace(token_hex=lambda _bytes: f"{number + 1:016x}")
            patch.setattr(connection, "secrets", named)
            replicas = Replicas([Remote(PEERS_NAME, peers)])
            home.mkdir(mode=0o700, exist_ok=True)
            self.node = Node(home, self.link, clock, vfs=vfs, replicas=replicas)
        store = self.node.store
        store.write(copies.configure_replicas, {PEERS_NAME: False})
        self.node.restore.knowledge._threads = InCaller()  # type: ignore[assignment]
        self.membership = self._membership(store.store_id)
        self.copies = RealDrain(store, peers, clock, remote=PEERS_NAME)
        self.keeper = KeptObjects(home, ROOM_BYTES, clock)
        finisher = Finisher(
            *(self.keeper, peers, self.node.ingest, self.node.checkpoints, self.membership),
            FINISH_AFTER_SECONDS,
            clock,
        )
        kept = self.keeper, finisher
        self.saves = KeptSaves(store, *kept, self.node.bucket, lambda: None, clock)
        network.machines[number] = self

    def _membership(self, store_id: str) -> Membership:
        def open_peer(host: str, address: str, port: int) -> HttpPeer:
            number = int(host.removeprefix("node-"))
            return LocalPeer(self._network, self.number, number, (address, port))

        listed = [f"node-{number}:1" for number in range(3)]
        own = NodeIdentity(store_id, "bucket")
        made = Membership(listed, own, open_peer, self._clock, lambda host: [host])
        made._asking = InCaller()  # type: ignore[assignment]
        return made

    def close(self) -> None:
        """End in good order."""
        self._leave()
        self.node.close()

    def die(self) -> None:
        """End as a killed process does."""
        self._leave()
        self.node.die()

    def _leave(self) -> None:
        self._network.machines.pop(self.number, None)
        self.copies.close()


@contextmanager
def small_uploads() -> Iterator[None]:
    """Let keepers take parts of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "MINIMUM_PART_BYTES", 1)
        yield
