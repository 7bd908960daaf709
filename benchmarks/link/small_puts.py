"""Small puts on a node that restores, beside the same puts when it does nothing else.

The store holds the restore to a rate, so that it lasts for many puts; a rank of its own waits for
it. What the two share is the node: ``serve`` answers the puts while its carriers fetch.
"""

from __future__ import annotations

import select
import statistics
import subprocess

from cachetier_client import Client

from benchmarks.core.small import put_one
from benchmarks.drain.link import Shape
from benchmarks.drain.remote import sink
from benchmarks.link import restoring
from benchmarks.link.sizes import sizes_of
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

STORE_RATE = 200e6
WHAT = "put_shard 4 KiB, p50, beside a restore that the store holds to 200 MB/s"


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    with sink() as remote:
        remote.keep()
        restoring.publish(bench, remote.endpoint, [sizes.local_bytes] * sizes.runs, 1)
        remote.take_shape(Shape(), STORE_RATE)
        with (
            node(bench.directory / "cold", remote=remote.endpoint) as service,
            Client(service.url) as client,
        ):
            alone, beside = [], []
            for number in range(bench.sizes.warm_up_puts):
                put_one(client, 0, number)
            for shard in range(sizes.runs):
                settle()
                puts = [put_one(client, 1 + shard, n) for n in range(bench.sizes.small_puts)]
                alone.append(statistics.median(puts))
                ranks = restoring.waiting_ranks(service.url, 1, sizes.local_bytes, [shard])
                with ranks as (rank,):
                    settle()
                    restoring.begin(rank)
                    puts = _puts_until_restored(client, 1 + sizes.runs + shard, rank)
                beside.append(statistics.median(puts))
                bench.say(
                    f"alone {alone[-1] * 1e3:.3f} ms, beside {beside[-1] * 1e3:.3f} ms, "
                    f"{len(puts)} puts, the longest {max(puts) * 1e3:.1f} ms"
                )
    return [
        median_of(f"{WHAT} / alone", ratios(beside, alone), "times", at_most(1.3)),
        median_of(WHAT, [seconds * 1e3 for seconds in beside], "ms"),
    ]


def _puts_until_restored(client: Client, step: int, rank: subprocess.Popen[str]) -> list[float]:
    """Put one after the other until the rank has its shard; return the seconds of each."""
    assert rank.stdout is not None
    puts = [put_one(client, step, 0)]
    while not select.select([rank.stdout], [], [], 0)[0]:
        puts.append(put_one(client, step, len(puts)))
    if not rank.stdout.readline():
        raise RuntimeError("the rank has no shard: what it said is above")
    return puts
