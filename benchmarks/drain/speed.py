"""How fast the drain empties a node, beside a bare boto3 loop over the same files.

The shards wait, committed and unsealed; the seal lets them go, and the clock stops when the step
is published: every object looked at again with HEAD, every digest compared. The bare loop reads the
same data files and checks nothing.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

from cachetier_client import Client

from benchmarks import raw
from benchmarks.drain.remote import (
    RunningSink,
    none_went_early,
    put_held,
    seconds_until_durable,
    sink,
)
from benchmarks.drain.sizes import Sizes, sizes_of
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench, settle
from cachetier.doctor.rawdisk import THREADS

RUN = "speed"
MEASURE = "drain of 4 GiB raw to a local sink / a bare boto3 upload_part loop with the best threads"


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    cache_dir = bench.directory / "cache"
    source = raw.random_buffer(sizes.speed_shard_bytes)
    size_bytes = sizes.speed_shards * sizes.speed_shard_bytes
    with (
        sink() as remote,
        node(cache_dir, remote=remote.endpoint) as service,
        Client(service.url) as client,
        _bare_loop(remote) as loop,
    ):
        _drained(client, remote, source, sizes, 0)  # warms up, and leaves files for the next
        threads = _best_threads(bench, loop, _data_files(cache_dir), sizes.threads)
        drained, bare = [], []
        for number in range(1, sizes.speed_runs + 1):
            client.delete_step(RUN, number - 1)
            settle()
            drained.append(_drained(client, remote, source, sizes, number))
            bare.append(_looped(loop, _data_files(cache_dir), threads))
            bench.say(f"drain {drained[-1]:.2f}, bare loop {bare[-1]:.2f}")
        ceiling = _ceiling(remote, source, size_bytes)
    rates = [[size_bytes / 1e9 / seconds for seconds in runs] for runs in (drained, bare)]
    return [
        median_of(MEASURE, ratios(bare, drained), "", at_least(0.95)),
        median_of("drain of 4 GiB raw to a local sink", rates[0], "GB/s"),
        median_of(f"bare boto3 upload_part loop, {threads} threads", rates[1], "GB/s"),
        ceiling,
    ]


def _drained(
    client: Client, remote: RunningSink, source: memoryview, sizes: Sizes, step: int
) -> float:
    remote.forget()
    put_held(client, RUN, step, repeat(source, sizes.speed_shards))
    settle()
    none_went_early(remote)
    return seconds_until_durable(client, RUN, step)


def _best_threads(
    bench: Bench, loop: subprocess.Popen[str], files: list[str], choices: tuple[int, ...]
) -> int:
    """Return the number of threads with which the bare loop is fastest here."""
    seconds = {threads: _looped(loop, files, threads) for threads in choices}
    shown = ", ".join(f"{threads}: {taken:.2f}" for threads, taken in seconds.items())
    bench.say(f"bare loop, seconds by threads: {shown}")
    return min(seconds, key=lambda threads: seconds[threads])


def _data_files(cache_dir: Path) -> list[str]:
    return sorted(str(path) for path in (cache_dir / "data").glob("*/*"))


@contextmanager
def _bare_loop(remote: RunningSink) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.drain.bare_loop",
            remote.endpoint.url,
            remote.endpoint.bucket,
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.communicate()


def _looped(loop: subprocess.Popen[str], files: list[str], threads: int) -> float:
    assert loop.stdin is not None
    assert loop.stdout is not None
    loop.stdin.write(json.dumps({"files": files, "threads": threads}) + "\n")
    loop.stdin.flush()
    return float(loop.stdout.readline())


def _ceiling(remote: RunningSink, source: memoryview, size_bytes: int) -> Result:
    """How fast the sink itself is, asked by plain sockets from memory: nothing must be near it."""
    times = max(1, size_bytes // len(source) // THREADS)
    path = f"/{remote.endpoint.bucket}/ceiling"
    head = f"PUT {path} HTTP/1.1\r\nHost: sink\r\nContent-Length: {len(source)}\r\n\r\n".encode()

    def push(_: int) -> None:
        address = ("127.0.0.1", int(remote.endpoint.url.rpartition(":")[2]))
        with socket.create_connection(address) as connection:
            for _ in range(times):
                connection.sendall(head)
                connection.sendall(source)
                connection.recv(1 << 16)

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(push, range(THREADS)))
    rate = THREADS * times * len(source) / 1e9 / (time.perf_counter() - began)
    return Result("what the sink swallows from plain sockets", rate, "GB/s", None, (rate,))
