"""The most memory that the drain process ever holds, with shards of every size on their way."""

from __future__ import annotations

from itertools import chain, repeat

from cachetier_client import Client

from benchmarks import processes
from benchmarks.drain.payload import weights
from benchmarks.drain.remote import put_held, seconds_until_durable, sink
from benchmarks.drain.sizes import sizes_of
from benchmarks.measures import Result, at_most
from benchmarks.node import node
from benchmarks.scratch import Bench

RUN = "memory"
SETTINGS = {"compression": "zstd:1"}


def measure(bench: Bench) -> list[Result]:
    """Drain a shard of 2 GiB, beside four of an eighth of that and many small ones."""
    largest = weights(sizes_of(bench).memory_shard_bytes)
    bodies = chain(
        [largest], repeat(largest[: len(largest) // 8], 4), repeat(largest[: 1 << 20], 64)
    )
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint, settings=SETTINGS) as service,
        Client(service.url) as client,
    ):
        size_bytes = put_held(client, RUN, 1, bodies)
        seconds = seconds_until_durable(client, RUN, 1)
        peak = max(processes.peak_bytes(pid) for pid in service.drain_pids()) / 2**20
        sent = remote.counts().bytes / size_bytes
        bench.say(f"{size_bytes / 1e9 / seconds:.2f} GB/s, {sent:.3f} of the bytes sent")
    what = "drain, peak memory with a shard of 2 GiB and others, zstd:1"
    return [
        Result(what, peak, "MiB", at_most(384), (peak,)),
        Result(
            "drain of the same, idle machine",
            size_bytes / 1e9 / seconds,
            "GB/s",
            None,
            (size_bytes / 1e9 / seconds,),
        ),
    ]
