"""What a compressed shard costs when it comes back: whole, and a part of it.

The remote is a sink that keeps bytes in memory and gives them back as fast as loopback takes them.
Each time by a node that never saw the shard.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier_client import Client

from benchmarks.bytes.payloads import filled, gaussian_bf16
from benchmarks.bytes.sizes import sizes_of
from benchmarks.bytes.stamped import stamp
from benchmarks.drain.remote import PATIENCE_SECONDS, RunningSink, sink
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

MODES = ("off", "zstd:1", "planes:1")
RULES = json.dumps({f"{mode.replace(':', '-')}.*": mode for mode in MODES})
WARM_UP_RUN = "off.warm-up"
NAME = "shard"
ELEMENT_SIZE = 2


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    body = filled(gaussian_bf16(), sizes.restored_bytes)
    with sink() as remote:
        remote.keep()
        _store(bench.directory / "cache", remote, body)
        place = bench.directory / "elsewhere"
        seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(sizes.restores + 1):
            for mode in MODES if number % 2 else reversed(MODES):
                taken = _restored(place, remote, mode, body)
                if number:  # the first one only warms up
                    seconds[mode].append(taken)
        bench.say(", ".join(f"{mode}: {found[-1]:.2f} s" for mode, found in seconds.items()))
        fetched = _fetched_for_a_range(place, remote, sizes.range_bytes)
        bench.say(f"{fetched:.2f} MiB fetched for a range of 1 MiB")
    whole = "restore of a compressed 1 GiB shard from a fast local remote / of the same raw: time"
    part = "range read of 1 MiB from the middle of a 1 GiB compressed object: fetched"
    raw_rates = [sizes.restored_bytes / 1e9 / each for each in seconds["off"]]
    return [
        median_of(whole, ratios(seconds["zstd:1"], seconds["off"]), "", at_most(1.3)),
        median_of(f"{whole}, planes", ratios(seconds["planes:1"], seconds["off"]), ""),
        median_of("restore of the same raw", raw_rates, "GB/s"),
        Result(part, fetched, "MiB", at_most(12), (fetched,)),
    ]


def _store(cache_dir: Path, remote: RunningSink, body: memoryview) -> None:
    """Have ``body`` in the remote in each mode, and a small shard."""
    settings = {"compression": RULES}
    with (
        node(cache_dir, remote=remote.endpoint, settings=settings) as service,
        Client(service.url) as client,
    ):
        for run, view in ((WARM_UP_RUN, body[: 1 << 20]), *((_run(mode), body) for mode in MODES)):
            with client.checkpoint(run, 1, rank=0, world_size=1) as checkpoint:
                checkpoint.put(stamp(view, run), NAME, element_size=ELEMENT_SIZE)
            client.wait(run, 1, "durable", timeout_seconds=PATIENCE_SECONDS)
    shutil.rmtree(cache_dir)


@contextmanager
def _fresh(place: Path, remote: RunningSink) -> Iterator[Client]:
    """Lend a node that knows no shard but a small one; its connections are there by that."""
    settle()
    with node(place, remote=remote.endpoint) as service, Client(service.url) as client:
        client.get_shard(WARM_UP_RUN, 1, NAME)
        yield client
    shutil.rmtree(place)


def _restored(place: Path, remote: RunningSink, mode: str, out: memoryview) -> float:
    with _fresh(place, remote) as client:
        began = time.perf_counter()
        client.get_shard(_run(mode), 1, NAME, out=out)
        return time.perf_counter() - began


def _run(mode: str) -> str:
    return f"{mode.replace(':', '-')}.restored"


def _fetched_for_a_range(place: Path, remote: RunningSink, size_bytes: int) -> float:
    """Read from the middle of the compressed shard; return the MiB that left the remote for it."""
    with _fresh(place, remote) as client:
        before = remote.counts().read_bytes
        with client.open_shard(_run("zstd:1"), 1, NAME, "rb") as reader:
            reader.seek((reader.size_bytes - size_bytes) // 2)
            if len(reader.read(size_bytes)) != size_bytes:
                raise RuntimeError("the range came back short")
        return (remote.counts().read_bytes - before) / 2**20
