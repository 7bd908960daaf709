"""The table of peers: what one fetch is worth where the store is held to a rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import unquote

from benchmarks.measures import Result, at_most, median_of
from benchmarks.scratch import Bench
from cachetier.testing.seaweed import seaweedfs
from examples.peers.cluster import Cluster, restored

NODES = 8
MIB, QUICK_MIB = 2048, 16
RATE, FAST_RATE = 60e6, 150e6
SHARDS = 8
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


BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "peers_one_fetch": measure_one_fetch,
    "peers_disks": measure_disks,
}
