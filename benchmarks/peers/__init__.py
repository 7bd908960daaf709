"""The table of peers: one fetch before a store held to a rate, and a copy at a neighbour."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from statistics import median
from urllib.parse import unquote

from benchmarks.drain.remote import Place
from benchmarks.link.far import far_host, why_not
from benchmarks.measures import Result, at_least, at_most, median_of, ratios
from benchmarks.raw import write_and_sync
from benchmarks.scratch import Bench
from cachetier.testing.seaweed import seaweedfs
from examples.peers.cluster import RUN, SECONDS, STEP, Cluster, Network, restored

NODES = 8
MIB, QUICK_MIB = 2048, 16
RATE, FAST_RATE = 60e6, 150e6
SHARDS = 8
COPIED_MIB = 64
COPIES = 9
BESIDE, AWAY = "the same bytes go to S3", "S3 away"
KNOWN_SECONDS = 3.0  # they have found each other
NOTES = "/.cachetier/unflushed"


@contextmanager
def _cluster(bench: Bench, rate: float) -> Iterator[tuple[Cluster, int, int]]:
    """Lend a cluster with a published step, its size, and how many nodes restore it."""
    mib, nodes = (QUICK_MIB, 2) if bench.quick else (MIB, NODES)
    each_bytes = (mib << 20) // SHARDS
    with seaweedfs(bench.directory / "s3") as endpoint:
        cluster = Cluster(bench.directory, endpoint, nodes, rate)
        cluster.save(  # no block twice: it would be copied inside the bucket
            {f"rank-{rank}": os.urandom(each_bytes) for rank in range(SHARDS)}
        )
        yield cluster, SHARDS * each_bytes, nodes
        cluster.store.close()


def measure_one_fetch(bench: Bench) -> list[Result]:
    """Restore on many nodes at once, beside one alone; and once more while one of them dies."""
    with _cluster(bench, RATE) as (cluster, size_bytes, count):
        with cluster.nodes(1, peers=False) as nodes:
            alone_seconds = restored(nodes)
        bench.say(f"alone: {alone_seconds:.1f} s")
        share, seconds, lists = _together(cluster, count, size_bytes)
        bench.say(f"{count} nodes: {seconds:.1f} s, {share:.3f} of the size from the bucket")
        killed_share, killed_seconds, _ = _together(cluster, count, size_bytes, killed=True)
        bench.say(f"one killed: {killed_seconds:.1f} s, {killed_share:.3f} of the size")
    others = sum(NOTES not in unquote(each) for each in lists)
    extra, later = max(0.0, killed_share - share), max(0.0, killed_seconds - seconds)
    killed = "peers: a fetcher is killed: extra"
    return [
        median_of("peers: bytes from the bucket / size", [share], "", at_most(1.1)),
        median_of("peers: time / one node alone", [seconds / alone_seconds], "", at_most(1.5)),
        median_of("peers: requests that list, but for notes", [others], "", at_most(0)),
        median_of(f"{killed} bytes / size", [extra], "", at_most(0.05)),
        median_of(f"{killed} time", [later], "s", at_most(3.0)),
    ]


def measure_disks(bench: Bench) -> list[Result]:
    """Restore on an empty node from its peers' disks, and from the store."""
    with _cluster(bench, FAST_RATE) as (cluster, _size_bytes, count):
        with cluster.nodes(1, peers=False) as nodes:
            store_seconds = restored(nodes)
        with cluster.nodes(count, peers=True) as (empty, *others):
            time.sleep(KNOWN_SECONDS)
            restored(others)
            seconds = restored([empty])
    bench.say(f"from the store {store_seconds:.1f} s, from peers {seconds:.1f} s")
    ratio = [seconds / store_seconds]
    return [median_of("peers: from peers' disks / from the store", ratio, "", at_most(0.3))]


def _together(
    cluster: Cluster, count: int, size_bytes: int, *, killed: bool = False
) -> tuple[float, float, list[str]]:
    """Restore on all nodes at once; return bytes from the bucket / size, seconds, and lists."""
    store = cluster.store
    with cluster.nodes(count, peers=True) as nodes:
        time.sleep(KNOWN_SECONDS)
        before, listed = store.sent_bytes, len(store.lists)
        with cluster.killing(nodes[0], size_bytes) if killed else nullcontext():
            seconds = restored(nodes[1:] if killed else nodes)
        return (store.sent_bytes - before) / size_bytes, seconds, store.lists[listed:]


class _OneMillisecond(Network):
    """The owner here, and its neighbour on another host."""

    def __init__(self, far: Place) -> None:
        self._far = far
        self.store_host = far.host.rpartition(".")[0] + ".1"

    def listen(self, number: int) -> str:
        return self._far.host if number else self.store_host

    def prefix(self, number: int) -> Sequence[str]:
        return self._far.enter if number else ()


def measure_copies(bench: Bench) -> list[Result]:
    """Put with a copy at a neighbour 1 ms away, and bare writes here and there side by side."""
    if missing := why_not():
        bench.say(f"not measured: {missing}")
        return []
    body = os.urandom((QUICK_MIB if bench.quick else COPIED_MIB) << 20)
    with ExitStack() as stack:
        far = stack.enter_context(far_host(bench.directory, 1.0))
        endpoint = stack.enter_context(seaweedfs(bench.directory / "s3"))
        cluster = Cluster(bench.directory, endpoint, 2, RATE, network=_OneMillisecond(far))
        stack.callback(cluster.store.close)
        owner, _ = stack.enter_context(cluster.nodes(2, peers=True, copies=1))
        client = stack.enter_context(owner.client())
        bare = stack.enter_context(_bare_server(far, bench.directory / "there"))
        time.sleep(KNOWN_SECONDS)
        rounds = 3 if bench.quick else COPIES
        steps = iter(range(STEP + 1, STEP + 1 + 2 * rounds))

        def measured(when: str) -> Result:
            ours, bares = [], []
            for step in islice(steps, rounds):
                began_at = time.monotonic()
                client.put_shard(body, run=RUN, step=step, name="x", ack="replicated")
                ours.append(time.monotonic() - began_at)
                client.seal(RUN, step)
                if when == BESIDE:
                    client.wait(RUN, step, timeout_seconds=SECONDS)
                bares.append(_bare_copies(bare, bench.directory / "here", body))
            bench.say(f"{when}: replicated {median(ours):.3f} s, bare {median(bares):.3f} s")
            title = f"peers: put of {len(body) >> 20} MiB at replicated, 1 ms away, {when}"
            return median_of(f"{title}: bare writes / ours", ratios(bares, ours), "", at_least(0.8))

        beside = measured(BESIDE)
        cluster.store.close()
        return [beside, measured(AWAY)]


@contextmanager
def _bare_server(far: Place, file: Path) -> Iterator[tuple[str, int]]:
    """Run the least that can keep a copy on the far host; lends where it is."""
    program = str(Path(__file__).with_name("bare_server.py"))
    command = [*far.enter, sys.executable, program, far.host, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield far.host, int(server.stdout.readline())
        finally:
            server.kill()


def _bare_copies(where: tuple[str, int], here: Path, body: bytes) -> float:
    """Write a file here and PUT it there, both synced, side by side; return the seconds."""
    began_at = time.monotonic()
    with ThreadPoolExecutor(1) as other:
        local = other.submit(write_and_sync, here, memoryview(body))
        connection = http.client.HTTPConnection(*where)
        connection.request("PUT", "/x", body)
        connection.getresponse().read()
        local.result()
    seconds = time.monotonic() - began_at
    connection.close()
    here.unlink()
    return seconds


BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "peers_one_fetch": measure_one_fetch,
    "peers_disks": measure_disks,
    "peers_copies": measure_copies,
}
