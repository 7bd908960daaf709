"""What the service takes from training: processor seconds and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from cachetier_client import Client

from benchmarks import processes, raw
from benchmarks.measures import Result, at_most, median_of
from benchmarks.node import node
from benchmarks.scratch import Bench, settle
from cachetier.testing.seaweed import seaweedfs

DRAIN_PATIENCE_SECONDS = 300.0
CARRIERS = 4
SAMPLE_SECONDS = 0.25


def measure_cpu(bench: Bench) -> list[Result]:
    """Processor seconds of ``serve`` alone; nobody listens at the remote, so nothing is drained."""
    source = raw.random_buffer(bench.sizes.large_bytes)
    gibibytes = len(source) / 2**30
    used = []
    with node(bench.directory / "cache") as service, Client(service.url) as client:
        for number in range(bench.sizes.large_runs + 1):
            before = processes.cpu_seconds(service.pid)
            client.put_shard(source, run="cpu", step=number, name="shard", rank=0, world_size=1)
            spent = (processes.cpu_seconds(service.pid) - before) / gibibytes
            client.delete_step("cpu", number)
            settle()
            bench.say(f"{spent:.3f} s per GiB")
            if number:  # the first one only warms up
                used.append(spent)
    return [median_of("service CPU per GiB put through the socket", used, "s", at_most(0.05))]


def measure_memory(bench: Bench) -> list[Result]:
    """Peak memory of all processes, while shards come in and until a real S3 server has them."""
    source = raw.random_buffer(bench.sizes.large_bytes)
    puts = bench.sizes.concurrent_puts
    remote_dir = bench.directory / "remote"
    with (
        seaweedfs(remote_dir) as remote,
        node(
            bench.directory / "cache", remote=remote, settings={"carriers": str(CARRIERS)}
        ) as service,
        Client(service.url) as client,
    ):
        with _sampled(service.pid) as sums:
            _save(client, 1, source, 1)
            _wait_until_taken(remote_dir, bench.sizes.large_bytes // 16)  # the drain is running
            _save(client, 2, source, puts)
            bench.say(f"{puts} shards put")
            _wait_until_taken(remote_dir, (1 + puts) * bench.sizes.large_bytes)
            bench.say("the remote has taken all of them")
        serve = processes.peak_bytes(service.pid)
        drain = max(processes.peak_bytes(pid) for pid in service.drain_pids())
    what = f"with {puts} concurrent 1 GiB puts, a full drain and four carriers"
    return [
        Result(f"{name} {what}", peak / 2**20, "MiB", at_most(limit), (peak / 2**20,))
        for name, peak, limit in (
            ("serve, peak memory", serve, 256),
            ("drain, or one of its carriers, peak memory", drain, 256),
            ("all processes of the node, most memory (PSS)", max(sums), 512),
        )
    ]


@contextmanager
def _sampled(pid: int) -> Iterator[list[int]]:
    """Yield the memory of a process and all it started, now and again until the block ends."""
    sums: list[int] = []
    over = threading.Event()

    def sample() -> None:
        while True:
            total = 0
            for each in (pid, *processes.children_of(pid)):
                with suppress(OSError):  # it has ended
                    total += processes.proportional_bytes(each)
            sums.append(total)
            if over.wait(SAMPLE_SECONDS):
                return

    with ThreadPoolExecutor(1) as thread:
        sampling = thread.submit(sample)
        try:
            yield sums
        finally:
            over.set()
    sampling.result()


def _save(client: Client, step: int, source: memoryview, count: int) -> None:
    """Save a checkpoint of ``count`` shards put at once; one buffer serves all of them."""
    with (
        client.checkpoint("memory", step, rank=0, world_size=1) as checkpoint,
        ThreadPoolExecutor(count) as threads,
    ):
        puts = [threads.submit(checkpoint.put, source, f"shard-{n}") for n in range(count)]
        for put in puts:
            put.result()


def _wait_until_taken(remote_dir: Path, size_bytes: int) -> None:
    """Return once the remote keeps ``size_bytes`` of ours on its disk."""
    give_up_at = time.monotonic() + DRAIN_PATIENCE_SECONDS
    while _kept_bytes(remote_dir) < size_bytes:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"the remote has not taken {size_bytes} bytes in time")
        time.sleep(0.2)


def _kept_bytes(remote_dir: Path) -> int:
    return sum(path.stat().st_size for path in remote_dir.glob("**/*.dat"))
