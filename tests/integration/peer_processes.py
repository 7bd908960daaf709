"""Nodes as processes on loopback addresses of their own, before a store that is held to a rate.

``python -m tests.integration.peer_processes`` measures what one fetch is worth: see ``main``.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from cachetier_client import Client
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from cachetier.remote.call_policy import CallPolicy, Retries
from cachetier.testing.s3_endpoint import S3Endpoint, free_ports
from cachetier.testing.seaweed import seaweedfs
from tests.fakes.memory_store import MemoryObjectStore
from tests.integration.fallbacks import Node as Process
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)
TOKEN = "t" * 40
PIECE_BYTES = 64 << 10


class HeldStore:
    """Passes a store on at a rate for all connections together, and counts what it sent."""

    def __init__(self, upstream: str, bytes_per_second: float) -> None:
        parts = urlsplit(upstream)
        self._upstream = parts.hostname or "", parts.port or 80
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._open: list[socket.socket] = []
        self.sent_bytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
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
                far = socket.create_connection(self._upstream)
                self._open += [near, far]
                for ends in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, held: bool) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if held:
                    time.sleep(max(0.0, self._turn(len(data)) - time.monotonic()))
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


class PeerProcesses:
    """A published step of one shard, and ``count`` empty nodes that may be peers."""

    def __init__(self, scratch: Path, endpoint: S3Endpoint, count: int, data: bytes) -> None:
        self.data = data
        self._bucket = f"peers-{random.randrange(1 << 40):x}"
        endpoint.create_bucket(self._bucket)
        objects = MemoryObjectStore(minimum_part_bytes=1)
        capacity_bytes = 4 * len(data) + (64 << 20)
        saver = Node(scratch / "saver", objects, SystemClock(), capacity_bytes=capacity_bytes)
        saver.put(IDS, "a", data)
        saver.checkpoints.seal(IDS, 1)
        saver.drain.drain_all()
        saver.close()
        store = CallPolicy(endpoint.store(bucket=self._bucket), retries=Retries())
        for key, (info, body) in objects._objects.items():
            store.put(key, body, digest=digest_of(body), metadata=info.metadata)
        self._endpoint = endpoint
        self._count = count
        (port,) = free_ports(1)
        self._listed = [f"127.0.0.{number + 2}:{port}" for number in range(count)]
        self._trust = scratch / "trust"
        self._trust.write_text(TOKEN)

    @contextmanager
    def nodes(
        self, scratch: Path, store: HeldStore, number: int, *, peers: bool
    ) -> Iterator[list[Process]]:
        """Run ``number`` nodes with empty directories until the block ends."""
        made = [
            Process(
                scratch,
                f"n{each}",
                {
                    **self._endpoint.environment(),
                    "CACHETIER_REMOTE": f"s3://{self._bucket}/tier",
                    "CACHETIER_REMOTE_ENDPOINT": store.url,
                    "CACHETIER_REMOTE_ASSUME": "path",
                    "CACHETIER_CAPACITY": "8GB",
                    **(self._as_peer(each) if peers else {}),
                },
            )
            for each in range(number)
        ]
        try:
            with ThreadPoolExecutor(number) as threads:
                list(threads.map(Process.start, made))
            yield made
        except AssertionError:
            print((scratch / "n0.log").read_text()[-3000:])
            raise
        finally:
            for node in made:
                node.close()

    def _as_peer(self, number: int) -> dict[str, str]:
        listen, trust = self._listed[number], str(self._trust)
        table = json.dumps({"nodes": self._listed, "listen": listen, "trust": trust})
        return {"CACHETIER_PEERS": table}

    def right(self, node: Process) -> bool:
        """Return whether a node restores the very bytes; a node that was killed does not."""
        with Client(f"unix://{node.socket}", fallback="fail") as client:
            return bytes(client.get_shard("run", 1, "a", timeout_seconds=300)) == self.data


def main() -> None:
    """Print bytes from the bucket and time: one node alone, peers, and peers of which one dies."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--mb-per-second", type=float, default=60.0)
    options = parser.parse_args()
    data = random.Random(1).randbytes(1 << 20) * options.mib
    with (
        tempfile.TemporaryDirectory(prefix="ct-") as name,
        seaweedfs(Path(name) / "s3") as endpoint,
    ):
        lab = PeerProcesses(Path(name), endpoint, options.nodes, data)
        for what, number, killed in (
            ("alone", 1, False),
            ("peers", options.nodes, False),
            ("killed", options.nodes, True),
        ):
            store = HeldStore(endpoint.url, options.mb_per_second * 1e6)
            home = Path(name) / what
            home.mkdir()
            with lab.nodes(home, store, number, peers=number > 1) as nodes:
                time.sleep(2.0)  # they have found each other
                begun_at, before = time.monotonic(), store.sent_bytes
                with ThreadPoolExecutor(number) as threads:
                    asked = [threads.submit(lab.right, node) for node in nodes]
                    while killed and store.sent_bytes - before < len(data) / 2:
                        time.sleep(0.05)
                    if killed:
                        nodes[0].kill()
                    right = [each.exception() is None and each.result() for each in asked]
                seconds = time.monotonic() - begun_at
                share = (store.sent_bytes - before) / len(data)
                print(f"{what}: {share:.3f} of the size from the bucket, {seconds:.1f} s, {right}")
            store.close()


if __name__ == "__main__":
    main()
