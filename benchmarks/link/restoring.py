"""How fast ranks have a step back that only the bucket has, beside what users would pick.

Eight ranks, in processes of their own, want a shard each, into memory, of a node that never saw the
step: over a link whose every connection is slow, and one rank over loopback. Peers download the
same bytes to files, or, from loopback, into memory by ranged GETs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from cachetier_client import Client

from benchmarks import processes, raw
from benchmarks.drain.link import Shape
from benchmarks.drain.remote import RunningSink, put_held, seconds_until_durable, sink
from benchmarks.link.draining import WHERE
from benchmarks.link.peers import Moved, Peer, fastest, moved_by, peers
from benchmarks.link.sizes import SLOW, Sizes, sizes_of
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench, settle, touch_memory
from cachetier.testing.s3_endpoint import S3Endpoint

RUN = "restored"
LOCAL = "cold restore of one shard of 1 GiB from loopback into `out` / ranged GETs into memory"


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    with sink() as ours, sink() as theirs:
        for remote in (ours, theirs):
            remote.keep()
        slow = _over_slow_connections(bench, ours, theirs, peers(sizes.threads))
        ours.forget()
        theirs.forget()
        return slow + _over_loopback(bench, sizes, ours)


def _over_slow_connections(
    bench: Bench, ours: RunningSink, theirs: RunningSink, choices: Sequence[Peer]
) -> list[Result]:
    """Measure cold restores from ``ours`` beside the best of ``choices`` from ``theirs``."""
    sizes = sizes_of(bench)
    each = sizes.restored_bytes // sizes.shards
    publish(bench, ours.endpoint, [each] * sizes.shards, 1)
    paths = files(bench.directory / "files", each, sizes.shards)
    Peer("boto3", 16).move("put", paths, theirs.endpoint)
    for remote in (ours, theirs):
        remote.take_shape(SLOW)
    best = fastest(bench, lambda peer: peer.moved("get", paths, theirs.endpoint), choices)
    cold, other = [], []
    restore(bench, ours.endpoint, 1, each, sizes.shards, sizes.runs)  # warms up
    for number in range(sizes.runs):
        cold.append(restore(bench, ours.endpoint, 1, each, sizes.shards, number).seconds)
        other.append(best.move("get", paths, theirs.endpoint))
        bench.say(f"restored in {cold[-1]:.2f} s, {best} in {other[-1]:.2f} s")
    rates = [[sizes.restored_bytes / 1e6 / seconds for seconds in runs] for runs in (cold, other)]
    for remote in (ours, theirs):
        remote.take_shape(Shape())
    measured = f"cold restore by 8 ranks, {WHERE} / the best peer with the best threads"
    return [
        median_of(measured, ratios(other, cold), "", at_least(0.95), f"beside {best}"),
        median_of(f"cold restore by 8 ranks, {WHERE}", rates[0], "MB/s"),
        median_of(f"the best peer there: {best.name}", rates[1], "MB/s"),
    ]


def _over_loopback(bench: Bench, sizes: Sizes, remote: RunningSink) -> list[Result]:
    publish(bench, remote.endpoint, [sizes.local_bytes], 2)
    cold, ranged = [], []
    for number in range(sizes.runs):
        cold.append(restore(bench, remote.endpoint, 2, sizes.local_bytes, 1, number).seconds)
        ranged.append(_ranged(remote, sizes.local_bytes))
        bench.say(f"restored in {cold[-1]:.2f} s, ranged GETs in {ranged[-1]:.2f} s")
    rate = [sizes.local_bytes / 1e9 / seconds for seconds in cold]
    return [
        median_of(LOCAL, ratios(ranged, cold), "", at_least(0.85)),
        median_of("cold restore of one shard of 1 GiB from loopback", rate, "GB/s"),
    ]


def publish(bench: Bench, endpoint: S3Endpoint, sizes: list[int], step: int) -> None:
    """Have a step published whose shards have ``sizes``, by a node that then goes."""
    source = raw.random_buffer(sizes[0])
    cache = bench.directory / f"first-{step}"
    with node(cache, remote=endpoint) as service, Client(service.url) as client:
        put_held(client, RUN, step, repeat(source, len(sizes)))
        seconds_until_durable(client, RUN, step)


def restore(
    bench: Bench,
    endpoint: S3Endpoint,
    step: int,
    each: int,
    ranks: int,
    number: int,
    settings: Mapping[str, str] | None = None,
) -> Moved:
    """Return what it takes until every rank has its shard, of a node that knows nothing."""
    cache = bench.directory / f"cold-{step}-{number}"
    with (
        node(cache, remote=endpoint, settings=settings) as service,
        waiting_ranks(service.url, step, each, range(ranks)) as started,
    ):
        settle()
        touch_memory(2 * each * ranks)  # for the copy on the disk, and for what ranks have
        pids = [service.pid, *(rank.pid for rank in started)]
        used, began = processes.Used(pids), time.perf_counter()
        for rank in started:
            begin(rank)
        for rank in started:
            assert rank.stdout is not None
            float(rank.stdout.readline())
        moved = moved_by(service, used, time.perf_counter() - began)
    shutil.rmtree(cache)  # or the next would get memory that nobody has touched, which is slower
    return moved


@contextmanager
def waiting_ranks(
    url: str, step: int, each: int, shards: Sequence[int]
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a rank for each of ``shards``; it waits for ``begin``."""
    command = [sys.executable, "-m", "benchmarks.link.rank", url, RUN, str(step)]
    started = [
        subprocess.Popen(
            [*command, f"shard-{number}", str(each)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in shards
    ]
    try:
        for rank in started:
            assert rank.stdout is not None
            if rank.stdout.readline() != "ready\n":
                raise RuntimeError("a rank did not start")
        yield started
    finally:
        for rank in started:
            rank.communicate()


def begin(rank: subprocess.Popen[str]) -> None:
    assert rank.stdin is not None
    rank.stdin.write("\n")
    rank.stdin.flush()


def _ranged(remote: RunningSink, size_bytes: int) -> float:
    """Return how long the best client takes to have the object in memory, with no check."""
    command = [sys.executable, "-m", "benchmarks.link.ranged", remote.endpoint.url]
    keys = remote.endpoint.store().list(f"bench/{RUN}/").keys
    (key,) = (key for key in keys if key.endswith("/shard-0"))
    touch_memory(2 * size_bytes)
    done = subprocess.run(
        [*command, remote.endpoint.bucket, key, str(size_bytes)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def files(folder: Path, each: int, count: int) -> list[Path]:
    folder.mkdir()
    data = raw.random_buffer(each)
    paths = [folder / f"file-{number}" for number in range(count)]
    for path in paths:
        path.write_bytes(data)
    return paths
