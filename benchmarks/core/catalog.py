"""A catalog of a million shards, beside an empty one: puts, and start-up."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from cachetier_client import Client

from benchmarks.core.filler import fill
from benchmarks.core.small import put_many
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle


def measure(bench: Bench) -> list[Result]:
    full = bench.directory / "full"
    with node(full):
        pass  # the service makes its own catalog
    fill(full, bench.sizes.catalog_shards)
    settle()
    bench.say(f"{bench.sizes.catalog_shards:,} shards in the catalog")
    return _starts(bench) + _puts(bench)


def _starts(bench: Bench) -> list[Result]:
    seconds: dict[str, list[float]] = {"full": [], "empty": []}
    for _ in range(bench.sizes.starts):
        for name, taken in seconds.items():
            _forget_pages(bench.directory / name / "catalog.db")
            with node(bench.directory / name) as service:
                taken.append(service.start_seconds)
        bench.say(f"start: full {seconds['full'][-1]:.2f} s, empty {seconds['empty'][-1]:.2f} s")
    return [
        median_of(
            "start-up with 1,000,000 shards in the catalog", seconds["full"], "s", at_most(5)
        ),
        median_of("start-up with an empty catalog", seconds["empty"], "s"),
    ]


def _forget_pages(path: Path) -> None:
    """Have the kernel drop the file from its page cache, as after a restart of the node."""
    if path.exists():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _puts(bench: Bench) -> list[Result]:
    """Put into both, in turns, each through a service of its own."""
    p50: dict[str, list[float]] = {"full": [], "empty": []}
    sizes = bench.sizes
    with (
        node(bench.directory / "full") as full,
        node(bench.directory / "empty") as empty,
        Client(full.url) as to_full,
        Client(empty.url) as to_empty,
    ):
        clients = {"full": to_full, "empty": to_empty}
        for client in clients.values():
            put_many(client, 0, sizes.warm_up_puts)
        for number in range(1, sizes.small_rounds + 1):
            for name, client in clients.items():
                p50[name].append(statistics.median(put_many(client, number, sizes.small_puts)))
            bench.say(
                f"put: full {p50['full'][-1] * 1e3:.3f} ms, empty {p50['empty'][-1] * 1e3:.3f}"
            )
    return [
        median_of(
            "put_shard 4 KiB, p50 with 1,000,000 shards in the catalog / with none",
            ratios(p50["full"], p50["empty"]),
            "times",
            at_most(1.5),
        )
    ]
