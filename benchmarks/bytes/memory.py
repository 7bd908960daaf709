"""The most memory that the drain process ever holds, however shards are compressed or composed."""

from __future__ import annotations

import json

from cachetier_client import Client

from benchmarks import processes
from benchmarks.bytes.payloads import filled, gaussian_bf16
from benchmarks.bytes.sizes import sizes_of
from benchmarks.bytes.stamped import change, stamp
from benchmarks.drain.remote import put_held, seconds_until_durable, sink
from benchmarks.measures import Result, at_most
from benchmarks.node import Node, node
from benchmarks.scratch import Bench

RUN = "memory"
MODES = ("zstd:1", "auto", "planes:1", "off")
RULES = json.dumps({f"{mode.replace(':', '-')}.*": mode for mode in MODES})
SMALL_BYTES = 100_000


def measure(bench: Bench) -> list[Result]:
    """Drain a large shard and many small ones in each mode, then once more, a little changed."""
    sizes = sizes_of(bench)
    body = filled(gaussian_bf16(), sizes.memory_bytes)
    settings = {"compression": RULES, "pack": "true", "remote_assume": "checksum"}
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint, settings=settings) as service,
        Client(service.url) as client,
    ):
        peak = 0.0
        for mode in MODES:
            run = f"{mode.replace(':', '-')}.memory"
            for step in (1, 2):
                change(body, 0.1, seed=step)
                client.put_shard(
                    body, run=run, step=step, name="large", rank=0, world_size=1, element_size=2
                )
                small = (stamp(body[:SMALL_BYTES], f"{n}") for n in range(sizes.small_shards))
                put_held(client, run, step, small)
                seconds = seconds_until_durable(client, run, step)
                rate = sizes.memory_bytes / 1e9 / seconds
                peak = _peak(service)
                bench.say(f"{mode}, step {step}: {rate:.2f} GB/s, peak {peak:.0f} MiB so far")
            for step in (1, 2):
                client.delete_step(run, step)
    what = (
        "drain, peak memory with shards of 2 GiB and small ones: zstd, auto, planes, packs, copies"
    )
    return [Result(what, peak, "MiB", at_most(384), (peak,))]


def _peak(service: Node) -> float:
    return max(processes.peak_bytes(pid) for pid in service.drain_pids()) / 2**20
