"""Many small shards of one rank, packed: how many requests carry them, and bring them back?"""

from __future__ import annotations

import random

from cachetier_client import Client

from benchmarks.bytes.sizes import sizes_of
from benchmarks.drain.remote import put_held, seconds_until_durable, sink
from benchmarks.measures import Result, at_most
from benchmarks.node import node
from benchmarks.scratch import Bench

RUN = "small"
MOST_BYTES = 300 << 10


def measure(bench: Bench) -> list[Result]:
    """Drain a step of small shards, then read each of them on a node that never saw them."""
    drawn = random.Random(13)
    count = sizes_of(bench).small_shards
    bodies = [drawn.randbytes(drawn.randrange(1, MOST_BYTES)) for _ in range(count)]
    with sink() as remote:
        remote.keep()
        with (
            node(
                bench.directory / "here", remote=remote.endpoint, settings={"pack": "true"}
            ) as service,
            Client(service.url) as client,
        ):
            put_held(client, RUN, 0, iter([memoryview(b"first")]))  # a store claims its bucket once
            seconds_until_durable(client, RUN, 0)
            put_held(client, RUN, 1, map(memoryview, bodies))
            before = remote.counts().requests
            seconds_until_durable(client, RUN, 1)
            drained = remote.counts().requests - before
        with (
            node(bench.directory / "elsewhere", remote=remote.endpoint) as service,
            Client(service.url) as client,
        ):
            before = remote.counts().requests
            for number, body in enumerate(bodies):
                if client.get_shard(RUN, 1, f"shard-{number}") != body:
                    raise RuntimeError(f"shard-{number} came back with other bytes")
            restored = remote.counts().requests - before
    bench.say(f"{drained} requests to drain {count} shards, {restored} to restore them")
    what = f"{count} small shards of one rank, packed: requests to"
    return [
        Result(f"{what} drain and publish them", drained, "requests", at_most(8), (drained,)),
        Result(f"{what} restore all of them", restored, "requests", at_most(8), (restored,)),
    ]
