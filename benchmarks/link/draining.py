"""How fast the drain empties a node where every connection is slow, beside what users would pick.

The sink lets 8 MB/s through each connection and answers 35 ms late. Nobody gains by a fast link:
who has more requests under way is faster, until the processor is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path

from cachetier_client import Client

from benchmarks import raw
from benchmarks.drain.link import Shape
from benchmarks.drain.payload import weights
from benchmarks.drain.remote import (
    RunningSink,
    none_went_early,
    put_held,
    seconds_until_durable,
    sink,
)
from benchmarks.link.peers import Moved, Peer, fastest, peers
from benchmarks.link.sizes import SLOW, Sizes, sizes_of
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

RUN = "link"
WHERE = "8 MB/s a connection, 35 ms"
COMPRESSED = f"drain with zstd:1, {WHERE} / plain"


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    with sink() as remote:
        results, ours = _plain(bench, remote, peers(sizes.threads))
        packed = _compressed(bench, remote, sizes)
    return [*results, median_of(COMPRESSED, ratios(ours, packed), "", at_least(0.9))]


def _plain(
    bench: Bench, remote: RunningSink, choices: Sequence[Peer]
) -> tuple[list[Result], list[float]]:
    """Measure the drain of plain bytes beside the best of ``choices``; return its seconds too."""
    sizes, cache_dir = sizes_of(bench), bench.directory / "cache"
    source = raw.random_buffer(sizes.drained_bytes // sizes.shards)
    with (
        node(cache_dir, remote=remote.endpoint) as service,
        Client(service.url) as client,
    ):
        remote.take_shape(SLOW)
        _drained(client, remote, source, sizes, 0)  # and leaves files for the peers
        files = _named(cache_dir, bench.directory / "to-put")

        def put(peer: Peer) -> Moved:
            remote.forget()
            return peer.moved("put", files, remote.endpoint)

        best, ours, theirs = fastest(bench, put, choices), [], []
        for number in range(1, sizes.runs + 1):
            client.delete_step(RUN, number - 1)
            ours.append(_drained(client, remote, source, sizes, number))
            theirs.append(put(best).seconds)
            bench.say(f"drain {ours[-1]:.2f} s, {best} {theirs[-1]:.2f} s")
    rates = [[sizes.drained_bytes / 1e6 / seconds for seconds in runs] for runs in (ours, theirs)]
    measured = f"drain, {WHERE} / the best peer with the best threads"
    return [
        median_of(measured, ratios(theirs, ours), "", at_least(0.95), f"beside {best}"),
        median_of(f"drain, {WHERE}", rates[0], "MB/s"),
        median_of(f"the best peer there: {best.name}", rates[1], "MB/s"),
    ], ours


def _compressed(bench: Bench, remote: RunningSink, sizes: Sizes) -> list[float]:
    """Return the seconds of runs with weights, compressed: as many raw bytes."""
    source = weights(sizes.drained_bytes // sizes.shards)
    cache_dir, settings = bench.directory / "compressed", {"compression": "zstd:1"}
    with (
        node(cache_dir, remote=remote.endpoint, settings=settings) as service,
        Client(service.url) as client,
    ):
        seconds = []
        for number in range(sizes.runs + 1):
            seconds.append(_drained(client, remote, source, sizes, number))
            sent = remote.counts().bytes / sizes.drained_bytes
            bench.say(f"zstd:1 {seconds[-1]:.2f} s, {sent:.3f} of the bytes sent")
            client.delete_step(RUN, number)
        return seconds[1:]  # the first one warms up


def _drained(
    client: Client, remote: RunningSink, source: memoryview, sizes: Sizes, step: int
) -> float:
    remote.take_shape(Shape())
    remote.forget()
    put_held(client, RUN, step, repeat(source, sizes.shards))
    settle()
    none_went_early(remote)
    remote.take_shape(SLOW)
    return seconds_until_durable(client, RUN, step)


def _named(cache_dir: Path, folder: Path) -> list[Path]:
    """Copy the data files into a folder of their own, as peers take folders."""
    folder.mkdir()
    found = []
    for number, path in enumerate(sorted((cache_dir / "data").glob("*/*"))):
        copy = folder / f"file-{number}"
        copy.hardlink_to(path)
        found.append(copy)
    return found
