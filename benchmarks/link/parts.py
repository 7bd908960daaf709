"""How fast a rank has less of a step than its large shards: a range of one, and many small ones.

One rank asks a node that never saw the step, over a link whose every connection is slow: for a part
of a shard that stays remote, for small shards out of packs all at once, and for those one by one.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from itertools import repeat

from cachetier_client import Client

from benchmarks import raw
from benchmarks.drain.remote import RunningSink, put_held, seconds_until_durable, sink
from benchmarks.link.draining import WHERE
from benchmarks.link.sizes import SLOW, Sizes, sizes_of
from benchmarks.measures import Result, median_of
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

RUN = "parts"
SMALL_BYTES = 256 << 10
PATIENCE_SECONDS = 600.0


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    with sink() as remote:
        remote.keep()
        _drained(bench, remote, 1, sizes.local_bytes, 1)
        _drained(bench, remote, 2, SMALL_BYTES, sizes.small_shards)
        remote.take_shape(SLOW)
        return [
            _measured(bench, remote, sizes, what, read)
            for what, read in (
                (f"{sizes.part_bytes >> 20} MiB of a shard that stays remote", _part),
                (f"{sizes.small_shards} shards of 256 KiB in packs, at once", _together),
                (f"{sizes.small_shards} shards of 256 KiB in packs, one by one", _one_by_one),
            )
        ]


def _drained(bench: Bench, remote: RunningSink, step: int, each: int, count: int) -> None:
    cache = bench.directory / f"first-{step}"
    packing = {"pack": "on"}
    with (
        node(cache, remote=remote.endpoint, settings=packing) as service,
        Client(service.url) as client,
    ):
        put_held(client, RUN, step, repeat(raw.random_buffer(each), count))
        seconds_until_durable(client, RUN, step)
    shutil.rmtree(cache)


def _measured(
    bench: Bench, remote: RunningSink, sizes: Sizes, what: str, read: Callable[[Client, Sizes], int]
) -> Result:
    rates = []
    for number in range(sizes.runs):
        cache = bench.directory / f"cold-{number}"
        with (
            node(cache, remote=remote.endpoint) as service,
            Client(service.url) as client,
        ):
            client.status()
            settle()
            began = time.perf_counter()
            size_bytes = read(client, sizes)
            rates.append(size_bytes / 1e6 / (time.perf_counter() - began))
        shutil.rmtree(cache)
    bench.say(f"{what}: {', '.join(f'{rate:.0f}' for rate in rates)} MB/s")
    return median_of(f"cold restore of {what}, {WHERE}", rates, "MB/s")


def _part(client: Client, sizes: Sizes) -> int:
    into = bytearray(sizes.part_bytes)
    wanted = {"shard-0": [(sizes.local_bytes // 2, into)]}
    client.read_ranges(RUN, 1, wanted, timeout_seconds=PATIENCE_SECONDS)
    return len(into)


def _together(client: Client, sizes: Sizes) -> int:
    names = [f"shard-{number}" for number in range(sizes.small_shards)]
    into = {name: [(0, bytearray(SMALL_BYTES))] for name in names}
    client.read_ranges(RUN, 2, into, timeout_seconds=PATIENCE_SECONDS)
    return SMALL_BYTES * sizes.small_shards


def _one_by_one(client: Client, sizes: Sizes) -> int:
    for number in range(sizes.small_shards):
        client.get_shard(RUN, 2, f"shard-{number}")
    return SMALL_BYTES * sizes.small_shards
