"""Large shards over the socket, beside what the same disk gives to plain system calls.

Each round puts and gets one shard through the real client and service, then writes and reads the
same bytes without them, all on one filesystem; what a round wrote is deleted and written out before
the next. The shard comes from random memory that starts 64 bytes after a page's start, as
a tensor's does; the direct baselines get memory in large pages, as fast as disks take it.
"""

from __future__ import annotations

import time
from pathlib import Path

from cachetier_client import Client

from benchmarks import raw
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

RUN = "large"


def measure(bench: Bench) -> list[Result]:
    size_bytes = bench.sizes.large_bytes
    rounds = Rounds(bench.directory, size_bytes)
    with node(bench.directory / "cache") as service, Client(service.url) as client:
        for number in range(-1, bench.sizes.large_runs):  # the first one only warms up
            rounds.play(client, number + 1, keep=number >= 0)
            bench.say(rounds.last())
    return rounds.results(size_bytes)


class Rounds:
    """Rounds of put, direct write, buffered write, get and direct read, and their seconds."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self._plain = directory / "plain"
        self._size_bytes = size_bytes
        self._seconds: dict[str, list[float]] = {}
        self._last: dict[str, float] = {}

    def play(self, client: Client, step: int, *, keep: bool) -> None:
        """Play one round; its seconds count if ``keep``."""
        self._take_memory()
        writes = {
            "put": lambda: self._put(client, step),
            "direct write": lambda: raw.write_direct(self._plain, self._aligned),
        }
        reads = {
            "get": lambda: self._get(client, step),
            "direct read": lambda: raw.read_direct(self._plain, self._aligned),
        }
        self._last = {}
        for pair in (writes, reads):
            for name in sorted(pair, reverse=step % 2 == 0):  # who goes first has the idler disk
                self._last[name] = pair[name]()
        self._forget(client, step)
        self._last["write and fsync"] = raw.write_and_sync(self._plain, self._source)
        self._forget(client, None)
        if keep:
            for name, seconds in self._last.items():
                self._seconds.setdefault(name, []).append(seconds)

    def _take_memory(self) -> None:
        """Take fresh memory: on a virtual machine some of it is twice as fast as other."""
        self._source = raw.random_buffer(self._size_bytes)
        self._into = raw.random_buffer(self._size_bytes)
        self._aligned = raw.aligned_buffer(self._size_bytes)

    def last(self) -> str:
        return ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._last.items())

    def results(self, size_bytes: int) -> list[Result]:
        put, get = self._seconds["put"], self._seconds["get"]
        write, read = self._seconds["direct write"], self._seconds["direct read"]
        synced = self._seconds["write and fsync"]
        rate = "GB/s"
        return [
            median_of(
                "put_shard 1 GiB, ack local / raw O_DIRECT write",
                ratios(write, put),
                "",
                at_least(0.93),
            ),
            median_of(
                "put_shard 1 GiB, ack local / one write + fsync",
                ratios(synced, put),
                "times",
                at_least(1.3),
            ),
            median_of(
                "get_shard 1 GiB, local, verified / raw O_DIRECT read",
                ratios(read, get),
                "",
                at_least(0.93),
            ),
            *(
                median_of(name, [size_bytes / 1e9 / seconds for seconds in runs], rate)
                for name, runs in (
                    ("put_shard 1 GiB", put),
                    ("raw O_DIRECT write of 1 GiB", write),
                    ("get_shard 1 GiB", get),
                    ("raw O_DIRECT read of 1 GiB", read),
                )
            ),
        ]

    def _put(self, client: Client, step: int) -> float:
        began = time.perf_counter()
        client.put_shard(self._source, run=RUN, step=step, name="shard", rank=0, world_size=1)
        return time.perf_counter() - began

    def _get(self, client: Client, step: int) -> float:
        self._into[:8] = b"\0" * 8
        began = time.perf_counter()
        client.get_shard(RUN, step, "shard", out=self._into)
        seconds = time.perf_counter() - began
        if self._into[:8] != self._source[:8]:
            raise RuntimeError("get_shard returned other bytes than were put")
        return seconds

    def _forget(self, client: Client, step: int | None) -> None:
        if step is not None:
            client.delete_step(RUN, step)
        self._plain.unlink()
        settle()
