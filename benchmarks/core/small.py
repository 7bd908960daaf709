"""Small shards: one client beside a plain synced append, and many clients beside one and a floor.

The floor is what the same 16 threads would do if a put were nothing but its request and its share
of a sync: as fast as requests that do nothing are answered, and then as fast as the catalog commits
puts sixteen at a time while nothing else runs.

Measured once the service has taken enough puts for SQLite's log to have its lasting size: until
then, each commit makes the log grow, and pays the filesystem for that.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier_client import Client
from cachetier_client.bucket_format.stored import Content
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of

from benchmarks import raw
from benchmarks.measures import Result, at_least, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench, settle
from cachetier.local.recovery import open_store

BODY = os.urandom(4096)
PROCESSES, THREADS = 2, 8
CAPACITY_BYTES = 10 << 30


def put_many(client: Client, step: int, count: int, body: bytes = BODY) -> list[float]:
    """Put ``count`` small shards one after the other; return the seconds of each."""
    return [put_one(client, step, number, body) for number in range(count)]


def put_one(client: Client, step: int, number: int, body: bytes = BODY) -> float:
    began = time.perf_counter()
    client.put_shard(body, run="small", step=step, name=f"shard-{number}", rank=0, world_size=1)
    return time.perf_counter() - began


def measure(bench: Bench) -> list[Result]:
    """Compare the median put with the median append of as many bytes, in turns."""
    sizes = bench.sizes
    puts, appends = [], []
    with node(bench.directory / "cache") as service, Client(service.url) as client:
        put_many(client, 0, sizes.warm_up_puts)
        with _appended(bench.directory / "appended") as descriptor:
            for number in range(1, sizes.small_rounds + 1):
                puts.append(statistics.median(put_many(client, number, sizes.small_puts)))
                taken = [raw.append_and_sync(descriptor, BODY) for _ in range(sizes.small_puts)]
                appends.append(statistics.median(taken))
                bench.say(f"put {puts[-1] * 1e3:.3f} ms, append {appends[-1] * 1e3:.3f} ms")
    return [
        median_of(
            "put_shard 4 KiB, ack local: p50 / p50 of one append + fdatasync",
            ratios(puts, appends),
            "times",
            at_most(1.8),
        ),
        median_of("put_shard 4 KiB, p50", [seconds * 1e3 for seconds in puts], "ms"),
    ]


def measure_group_commit(bench: Bench) -> list[Result]:
    """Compare puts a second from 16 threads of two processes with those of one thread."""
    one, many, floors = [], [], []
    with node(bench.directory / "cache") as service:
        with Client(service.url) as client:
            put_many(client, 0, bench.sizes.warm_up_puts)
        with _crew(service.url, 1, 1) as single, _crew(service.url, PROCESSES, THREADS) as crowd:
            for _ in range(bench.sizes.bursts):
                settle()
                one.append(_burst(single, "put", bench.sizes.burst_seconds))
                settle()
                many.append(_burst(crowd, "put", bench.sizes.burst_seconds))
                settle()
                requests = _burst(crowd, "empty", bench.sizes.burst_seconds)
                commits = _commits(bench.directory / "floor", bench.sizes.burst_seconds)
                floors.append(1 / (1 / requests + 1 / commits))
                bench.say(
                    f"one thread {one[-1]:.0f} puts/s, sixteen {many[-1]:.0f}; "
                    f"{requests:.0f} empty requests/s, {commits:.0f} commits/s"
                )
    return [
        median_of(
            "4 KiB puts from 16 threads of 2 processes / from one thread",
            ratios(many, one),
            "times",
            at_least(4),
        ),
        median_of(
            "4 KiB puts from 16 threads / the floor: empty requests, then commits of 16",
            ratios(many, floors),
            "times",
            at_least(0.8),
        ),
        median_of("4 KiB puts from 16 threads of 2 processes", many, "puts/s"),
        median_of("4 KiB puts from one thread", one, "puts/s"),
    ]


@contextmanager
def _appended(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _crew(url: str, processes: int, threads: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that put small shards from several threads each, when told to."""
    crew = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.core.putter", url, str(threads)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for member in crew:
            _answer(member)
        yield crew
    finally:
        for member in crew:
            member.communicate()


def _commits(directory: Path, seconds: float) -> float:
    """Commit puts sixteen at a time to a catalog of their own; return puts a second."""
    directory.mkdir(exist_ok=True)
    store = open_store(directory, CAPACITY_BYTES, SystemClock()).store
    content = Content(len(BODY), digest_of(BODY), (digest_of(BODY),))
    ids = SaveIds("floor", time.time_ns() >> 30, secrets.token_hex(8))
    try:
        store.space.account(CAPACITY_BYTES)
        began, count = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            names = [f"s{count + number}" for number in range(PROCESSES * THREADS)]
            begun = [store.commit_inline(ids, name, content, BODY) for name in names]
            count += sum(not commit().repeated for commit in begun)
        return count / (time.perf_counter() - began)
    finally:
        store.close()


def _burst(crew: list[subprocess.Popen[str]], call: str, seconds: float) -> float:
    """Have the crew make calls for ``seconds``, all at once; return calls a second."""
    for member in crew:
        assert member.stdin is not None
        member.stdin.write(f"{call} {seconds}\n")
        member.stdin.flush()
    return sum(float(_answer(member)) for member in crew)


def _answer(member: subprocess.Popen[str]) -> float:
    assert member.stdout is not None
    answer: float = json.loads(member.stdout.readline())
    return answer
