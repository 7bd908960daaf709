"""Nodes as processes on loopback addresses of their own, before a store that is held to a rate."""

from __future__ import annotations

import json
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cachetier_client import Client
from rich.console import Console

from cachetier.testing.s3_endpoint import S3Endpoint
from examples.demo.narrate import Narrator
from examples.demo.processes import Child
from examples.demo.servers import environment, wait_until

TOKEN = "t" * 40
RUN, STEP = "run", 1
PIECE_BYTES = 64 << 10
SECONDS = 600.0
LISTS = re.compile(rb"GET (\S*list-type=\S*) ")


def port_of_all() -> int:
    """Return a port for every node: none that the kernel gives to who connects from one of them."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.2", port)):
            return port


class HeldStore:
    """Passes a store on at a rate for all connections together.

    ``sent_bytes`` counts what it sent, ``lists`` has the addresses of requests that list.
    """

    def __init__(self, upstream: str, bytes_per_second: float, host: str = "127.0.0.1") -> None:
        parts = urlsplit(upstream)
        self._upstream = parts.hostname or "", parts.port or 80
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._open: list[socket.socket] = []
        self.sent_bytes = 0
        self.lists: list[str] = []
        self._listener = socket.create_server((host, 0), backlog=512)
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._upstream)
                except OSError:  # the store is away
                    near.close()
                    continue
                self._open += [near, far]
                for ends in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, held: bool) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if held:
                    time.sleep(max(0.0, self._turn(len(data)) - time.monotonic()))
                else:
                    self.lists += [each.decode() for each in LISTS.findall(data)]
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _turn(self, size_bytes: int) -> float:
        """Return when so many bytes may go."""
        with self._lock:
            self.sent_bytes += size_bytes
            self._free_at = max(self._free_at, time.monotonic()) + size_bytes / self._rate
            return self._free_at


class Node:
    """A service as a process of its own; its directory outlives it."""

    def __init__(
        self, name: str, home: Path, variables: Mapping[str, str], prefix: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.cache_dir = home / name
        self.store_id = ""
        self._prefix = prefix
        self._log = home / f"{name}.log"
        self._place = tempfile.TemporaryDirectory(prefix="ct-")  # a socket's path must be short
        self._socket = Path(self._place.name) / "s"
        self._variables = {
            **environment(),
            **variables,
            "CACHETIER_CACHE_DIR": str(self.cache_dir),
            "CACHETIER_SOCKET": str(self._socket),
            "CACHETIER_HTTP": "",
        }
        self.child: Child | None = None

    def start(self, narrator: Narrator) -> None:
        """Start it, also once more, and return once it answers."""
        command = [*self._prefix, sys.executable, "-m", "cachetier", "serve"]
        self.child = Child(self.name, command, log=self._log, environment=self._variables)
        wait_until(self._answers, self.child, narrator, f"{self.name} to start")
        self.store_id = self.status()["store_id"]

    def _answers(self) -> bool:
        with suppress(Exception):
            self.status()
            return True
        return False

    def client(self) -> Client:
        """Return a client of it."""
        return Client(f"unix://{self._socket}", fallback="fail")

    def status(self) -> dict[str, Any]:
        """Return its status object."""
        with self.client() as client:
            found: dict[str, Any] = client.status()
            return found

    def restore(self) -> None:
        """Bring the step to its disk, every block verified."""
        with self.client() as client:
            left = client.restore_step(RUN, STEP, timeout_seconds=SECONDS)
            assert not left.shards, f"{left.shards} shards did not come"

    def has(self, shards: Mapping[str, bytes]) -> bool:
        """Return whether it gives back the very bytes."""
        with self.client() as client:
            return all(
                bytes(client.get_shard(RUN, STEP, name, timeout_seconds=SECONDS)) == body
                for name, body in shards.items()
            )

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.child is not None
        self.child.kill()

    def lose(self) -> None:
        """End it, and remove its cache."""
        if self.child is not None:
            self.child.stop()
        shutil.rmtree(self.cache_dir, ignore_errors=True)

    def close(self) -> None:
        """Lose it for good."""
        self.lose()
        self._place.cleanup()


class Network:
    """Where nodes and the store are: here on loopback, a node at an address of its own."""

    store_host = "127.0.0.1"

    def listen(self, number: int) -> str:
        """Return the address of a node."""
        return f"127.0.0.{number + 2}"

    def prefix(self, _number: int) -> Sequence[str]:
        """Return what starts a program on the host of a node."""
        return ()


class Cluster:
    """A bucket with a published step, and nodes of which each may know all others."""

    def __init__(
        self,
        scratch: Path,
        endpoint: S3Endpoint,
        count: int,
        rate: float,
        narrator: Narrator | None = None,
        network: Network | None = None,
    ) -> None:
        self._network = network or Network()
        self.store = HeldStore(endpoint.url, rate, self._network.store_host)
        self._scratch = scratch
        self._endpoint = endpoint
        self._narrator = narrator or Narrator(Console(quiet=True))
        self._homes = 0
        port = port_of_all()
        self._listed = [f"{self._network.listen(number)}:{port}" for number in range(count)]
        self._trust = scratch / "trust"
        self._trust.write_text(TOKEN)

    def save(self, shards: Mapping[str, bytes]) -> None:
        """Publish a step of these shards, by a node that is gone then."""
        with self.nodes(1, peers=False) as (node,), node.client() as client:
            for name, body in shards.items():
                client.put_shard(body, run=RUN, step=STEP, name=name)
            client.seal(RUN, STEP)
            client.wait(RUN, STEP, timeout_seconds=SECONDS)

    @contextmanager
    def killing(self, victim: Node, size_bytes: int) -> Iterator[None]:
        """Restore on other nodes inside; ``victim`` does too, and is killed half-way."""
        half_way, over = self.store.sent_bytes + size_bytes // 2, threading.Event()

        def kill() -> None:
            while self.store.sent_bytes < half_way and not over.wait(0.02):
                pass
            victim.kill()

        with ThreadPoolExecutor(2) as threads:
            threads.submit(victim.restore)  # it fails, as it should
            killed = threads.submit(kill)
            try:
                yield
            finally:
                over.set()
                killed.result()

    @contextmanager
    def nodes(
        self, count: int, *, peers: bool, copies: int = 0, **others: str
    ) -> Iterator[list[Node]]:
        """Run so many nodes with empty directories until the block ends.

        With ``copies`` each keeps as many of its shards at its peers until the bucket has them.
        ``others`` are variables of the nodes.
        """
        self._homes += 1
        home = self._scratch / f"{self._homes}"
        home.mkdir()
        nodes = [self._node(number, home, peers, copies, others) for number in range(count)]
        try:
            with ThreadPoolExecutor(count) as threads:
                list(threads.map(lambda node: node.start(self._narrator), nodes))
            yield nodes
        finally:
            for node in nodes:
                node.close()

    def _node(
        self, number: int, home: Path, peers: bool, copies: int, others: Mapping[str, str]
    ) -> Node:
        listed = {
            "nodes": self._listed,
            "listen": f"http://{self._listed[number]}",  # in clear, as the network is private
            "trust": str(self._trust),
            "copies": copies,
        }
        variables = {
            **self._endpoint.environment(),
            "CACHETIER_REMOTE": f"s3://{self._endpoint.bucket}/peers",
            "CACHETIER_REMOTE_ENDPOINT": self.store.url,
            "CACHETIER_REMOTE_ASSUME": "path",
            "CACHETIER_CAPACITY": "8GB",
            **({"CACHETIER_PEERS": json.dumps(listed)} if peers else {}),
            **others,
        }
        return Node(f"node{number + 1}", home, variables, self._network.prefix(number))


def restored(nodes: Sequence[Node]) -> float:
    """Have all nodes restore the step at once; return the seconds until the last one has it."""
    began_at = time.monotonic()
    with ThreadPoolExecutor(len(nodes)) as threads:
        list(threads.map(Node.restore, nodes))
    return time.monotonic() - began_at
