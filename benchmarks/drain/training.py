"""What training feels of the drain: step times of two busy ranks, with it and without.

The ranks keep every core busy, each in a session of its own, as under a launcher; so is the drain.
In turns they run alone, beside a drain at full speed that compresses with zstd:1, and with a naive
background thread in each rank that compresses and uploads whole files at level 1. The sink stands
for another machine; on this one it costs little, as it copies nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

from cachetier_client import Client

from benchmarks.drain.payload import weights
from benchmarks.drain.remote import (
    RunningSink,
    none_went_early,
    put_held,
    seconds_until_durable,
    sink,
)
from benchmarks.drain.sizes import Sizes, sizes_of
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench, settle

RUN = "training"
RANKS = 2
SETTINGS = {"compression": "zstd:1"}
SHARD_BYTES = 8 << 20
ALONE, DRAINED, NAIVE = "alone", "beside the drain", "with naive threads"


@dataclass(slots=True)
class _Turns:
    """The figures of each way of training, a value for each round."""

    medians: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def add(self, steps: list[float], moved_bytes: int, seconds: float) -> None:
        self.medians.append(statistics.median(steps))
        self.p99s.append(statistics.quantiles(steps, n=100, method="inclusive")[-1])
        self.rates.append(moved_bytes / 1e6 / seconds)

    def summary(self) -> str:
        median, p99 = 1e3 * self.medians[-1], 1e3 * self.p99s[-1]
        return f"{median:.1f} ms, p99 {p99:.1f} ms, {self.rates[-1]:.0f} MB/s"


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    turns = {name: _Turns() for name in (ALONE, DRAINED, NAIVE)}
    source = weights(SHARD_BYTES)
    file = bench.directory / "plain"
    file.write_bytes(source)
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint, settings=SETTINGS) as service,
        Client(service.url) as client,
        busy_ranks(remote) as train,
    ):
        sent_share = _sent_share(client, remote, source)
        for number in range(1, sizes.training_rounds + 1):
            ways: dict[str, Callable[[int], tuple[list[float], int]]] = {
                ALONE: lambda _step: train(sizes.training_seconds, None),
                DRAINED: lambda step: _beside_drain(client, remote, train, source, sizes, step),
                NAIVE: lambda _step: train(sizes.training_seconds, file),
            }
            for name in sorted(ways, reverse=number % 2 == 1):
                steps, moved_bytes = ways[name](number)
                if name == DRAINED:
                    moved_bytes = int(moved_bytes / sent_share)
                turns[name].add(steps, moved_bytes, sizes.training_seconds)
                bench.say(f"{name}: {turns[name].summary()}")
    return _results(turns)


def _results(turns: dict[str, _Turns]) -> list[Result]:
    alone, drained, naive = turns[ALONE], turns[DRAINED], turns[NAIVE]
    what = "training step, 2 busy ranks: {} / alone, {}"
    ours, theirs = "with a draining zstd:1", "with naive zstd threads"
    return [
        median_of(
            what.format(ours, "median"), ratios(drained.medians, alone.medians), "", at_most(1.05)
        ),
        median_of(what.format(ours, "p99"), ratios(drained.p99s, alone.p99s), ""),
        median_of("the drain's own rate meanwhile", drained.rates, "MB/s"),
        median_of(what.format(theirs, "median"), ratios(naive.medians, alone.medians), ""),
        median_of(what.format(theirs, "p99"), ratios(naive.p99s, alone.p99s), ""),
        median_of("the naive threads' own rate meanwhile", naive.rates, "MB/s"),
        median_of(
            "training step alone, median", [1e3 * seconds for seconds in alone.medians], "ms"
        ),
    ]


Train = Callable[[float, Path | None], tuple[list[float], int]]


def _beside_drain(
    client: Client,
    remote: RunningSink,
    train: Train,
    source: memoryview,
    sizes: Sizes,
    step: int,
) -> tuple[list[float], int]:
    """Train amid a drain that has more than enough to do; return also the bytes it sent."""
    remote.forget()
    put_held(client, RUN, step, repeat(source, sizes.training_shards))
    settle()
    none_went_early(remote)
    client.seal(RUN, step, rank=0, world_size=1)
    while not remote.counts().accepted:
        time.sleep(0.01)
    train(sizes.training_lead_in_seconds, None)
    before = remote.counts()
    steps, _ = train(sizes.training_seconds, None)
    after = remote.counts()
    if after.accepted == sizes.training_shards:
        raise RuntimeError("the drain was done before training was: give it more shards")
    client.delete_step(RUN, step)
    while client.status()["drain"]["in_flight"]:
        time.sleep(0.05)
    return steps, after.bytes - before.bytes


def _sent_share(client: Client, remote: RunningSink, source: memoryview) -> float:
    """Drain a shard with nobody in the way; return how much of its size was sent."""
    put_held(client, RUN, 0, repeat(source, 1))
    seconds_until_durable(client, RUN, 0)
    return remote.counts().bytes / len(source)


@contextmanager
def busy_ranks(remote: RunningSink) -> Iterator[Train]:
    """Start the ranks; yield what lets all of them train for some seconds, at once."""
    cores = len(os.sched_getaffinity(0))
    each = str(max(1, cores // RANKS))
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), each)
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.drain.rank",
                remote.endpoint.url,
                remote.endpoint.bucket,
            ],
            cwd=ROOT,
            env={**os.environ, **threads},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(RANKS)
    ]

    def train(seconds: float, naive: Path | None) -> tuple[list[float], int]:
        command = json.dumps({"seconds": seconds, "naive": str(naive) if naive else None})
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(command + "\n")
            rank.stdin.flush()
        answers = [json.loads(_line(rank)) for rank in ranks]
        return [step for steps, _ in answers for step in steps], sum(moved for _, moved in answers)

    try:
        for rank in ranks:
            _line(rank)  # ready
        yield train
    finally:
        for rank in ranks:
            rank.communicate()


def _line(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline()
