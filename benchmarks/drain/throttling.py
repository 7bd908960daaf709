"""A store that throttles: how much of what it allows the drain uses, and what it makes it refuse.

The sink admits so many parts a second and answers the others with 503 ``SlowDown``; after a pause
it admits a second's worth at once, as the fault proxy does. Each shard is one part, so that parts
and shards are the same number; as on S3, HEADs are not of this bucket. The same load then comes
from direct writers, in turns with ours.

What is judged happens while at least 64 shards wait: from the seal, or for what is steady from a
third of the parts on, until 64 are left.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from cachetier_client import Client

from benchmarks import raw
from benchmarks.drain.remote import (
    Counts,
    RunningSink,
    none_went_early,
    seconds_until_durable,
    sink,
)
from benchmarks.drain.sizes import Sizes, sizes_of
from benchmarks.measures import Result, at_least, at_most, median_of
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench

RUN = "throttled"
LOOK_SECONDS = 0.1
STEADY_FROM = 1 / 3  # of the parts


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one load went; ``puts`` are the seconds that each shard's writer waited."""

    counts: Counts
    failures: int
    puts: list[float]

    @property
    def rejected_percent(self) -> float:
        return _percent(self.counts.rejected, self.counts.accepted)

    @property
    def put_seconds(self) -> float:
        """The 99th of a hundred."""
        return statistics.quantiles(self.puts, n=100, method="inclusive")[-1]

    def summary(self) -> str:
        return (
            f"{self.failures} failed, {self.rejected_percent:.1f} % refused, p99 of a put "
            f"{self.put_seconds:.2f} s, at the store {self.counts.p99_seconds:.2f} s"
        )


@dataclass(frozen=True, slots=True)
class Drained:
    """What the drain made of the bucket: ``goodput`` of what it allowed, burst and all."""

    outcome: Outcome
    goodput: float
    steady_percent: float


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    ours, theirs = [], []
    for number in range(sizes.bucket_runs):
        directory = bench.directory / f"cache-{number}"  # a fresh drain knows nothing of the rate
        with (
            sink() as remote,
            node(directory, remote=remote.endpoint) as service,
            Client(service.url) as client,
        ):
            drained = _drained(client, remote, sizes)
            bench.say(
                f"drain: {drained.goodput:.3f} of the bucket, {drained.steady_percent:.1f} % "
                f"refused once steady; {drained.outcome.summary()}"
            )
            ours.append(drained)
            theirs.append(_written_directly(remote, sizes))
            bench.say(f"direct: {theirs[-1].summary()}")
    return _results(sizes, ours, theirs)


COMPARED: tuple[tuple[str, str, Callable[[Outcome], float]], ...] = (
    ("shards failed", "shards", lambda outcome: outcome.failures),
    ("rejected", "%", lambda outcome: outcome.rejected_percent),
    ("p99 of a put, as its rank waits", "s", lambda outcome: outcome.put_seconds),
    ("p99 of a part, first try to accepted", "s", lambda outcome: outcome.counts.p99_seconds),
)


def _results(sizes: Sizes, ours: list[Drained], theirs: list[Outcome]) -> list[Result]:
    bucket = f"under a bucket of {sizes.parts_a_second} parts/s"
    goodput = [each.goodput for each in ours]
    steady = [each.steady_percent for each in ours]
    results = [
        median_of(f"drain {bucket}: goodput / what it allows", goodput, "", at_least(0.95)),
        median_of(f"drain {bucket}: rejected in steady state", steady, "%", at_most(5)),
    ]
    for what, unit, figure in COMPARED:
        direct = median_of(
            f"{sizes.writers} direct boto3 writers {bucket}: {what}",
            list(map(figure, theirs)),
            unit,
        )
        assert direct.value is not None
        mine = [figure(each.outcome) for each in ours]
        limit = at_most(float(f"{direct.value:.3g}"))  # theirs is our bar
        results += [median_of(f"drain {bucket}: {what}", mine, unit, limit), direct]
    return results


def _percent(rejected: int, accepted: int) -> float:
    return 100 * rejected / max(1, rejected + accepted)


# --- the drain -----------------------------------------------------------------------------------


def _drained(client: Client, remote: RunningSink, sizes: Sizes) -> Drained:
    puts = _put_at_once(client, sizes)
    none_went_early(remote)
    remote.throttle(sizes.parts_a_second)
    with _Watch(remote) as watch:
        seconds_until_durable(client, RUN, 1)
    parts = sizes.writers * sizes.parts_of_a_writer
    begun, steady, end = (
        next(counts for counts in watch.seen if counts.accepted >= least)
        for least in (0, STEADY_FROM * parts, parts - sizes.writers)
    )
    rate = sizes.parts_a_second
    return Drained(
        Outcome(watch.seen[-1], failures=0, puts=puts),
        end.accepted / (rate * (end.at - begun.at) + rate),
        _percent(end.rejected - steady.rejected, end.accepted - steady.accepted),
    )


def _put_at_once(client: Client, sizes: Sizes) -> list[float]:
    """Put a step's shards from as many threads as there are writers, unsealed."""
    body = raw.random_buffer(sizes.part_bytes)

    def put(rank: int) -> list[float]:
        taken = []
        for number in range(sizes.parts_of_a_writer):
            began = time.perf_counter()
            name = f"rank-{rank}/shard-{number}"
            client.put_shard(body, run=RUN, step=1, name=name, rank=0, world_size=1)
            taken.append(time.perf_counter() - began)
        return taken

    with ThreadPoolExecutor(sizes.writers) as ranks:
        return [seconds for taken in ranks.map(put, range(sizes.writers)) for seconds in taken]


class _Watch:
    """Looks at the sink's counts again and again, on a thread, until its block ends."""

    def __init__(self, remote: RunningSink) -> None:
        self.seen = [remote.counts()]
        self._remote = remote
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.seen.append(self._remote.counts())

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.seen.append(self._remote.counts())


# --- direct writers ------------------------------------------------------------------------------


def _written_directly(remote: RunningSink, sizes: Sizes) -> Outcome:
    load = (sizes.writers, sizes.parts_of_a_writer, sizes.part_bytes)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.drain.writers",
            remote.endpoint.url,
            remote.endpoint.bucket,
            *(str(each) for each in load),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()  # ready
    remote.forget()
    remote.throttle(sizes.parts_a_second)
    answer, _ = process.communicate("go\n")
    failures, puts = json.loads(answer)
    return Outcome(remote.counts(), failures, puts)
