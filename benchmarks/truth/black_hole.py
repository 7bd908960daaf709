"""Local calls while connections to S3 hang, beside the same calls while it answers.

A proxy stands between the node and SeaweedFS. In turns it passes everything on, and swallows it.
What is known of the steps is stale before either side is measured, and the first second after that
does not count: then a caller may wait for the bucket in vain.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from cachetier_client import Client

from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench
from cachetier.restore.knowledge import FRESH_SECONDS
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs
from cachetier.testing.troubles import ALWAYS, Fault, Trouble

RUN, STEPS, BODY = "truth", 5, b"x" * 4096
SKIPPED_SECONDS = 1.0
HOLE = Fault(Trouble.STALL, None, ALWAYS)


def measure(bench: Bench) -> list[Result]:
    """Compare the p99 of a local get, of ls and of latest(local)."""
    rounds, seconds = (2, 0.5) if bench.quick else (4, 2.0)
    with (
        seaweedfs(bench.directory / "s3") as server,
        S3Proxy(server.url) as proxy,
        node(bench.directory / "cache", remote=server.behind(proxy.url)) as service,
        Client(service.url, run=RUN) as client,
    ):
        for step in range(STEPS):
            with client.checkpoint(RUN, step, rank=0, world_size=1) as checkpoint:
                checkpoint.put(BODY, "shard")
            client.wait(RUN, step)
        calls: dict[str, Callable[[], object]] = {
            "get_shard 4 KiB, local": lambda: client.get_shard(RUN, STEPS - 1, "shard"),
            "ls of 5 steps": lambda: client.steps(RUN),
            "latest(local)": lambda: client.latest(RUN, "local"),
        }
        found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
        for number in range(rounds):
            for hangs in (False, True) if number % 2 else (True, False):
                proxy.troubles.clear()
                if hangs:
                    proxy.troubles.add(HOLE)
                time.sleep(FRESH_SECONDS)  # nothing is fresh any more
                for name, call in calls.items():
                    _p99(call, SKIPPED_SECONDS)
                    found[name][hangs].append(_p99(call, seconds))
                proxy.troubles.clear()
                _until_it_answers(client)
            bench.say(
                ", ".join(f"{name} {hole[-1] * 1e3:.2f} ms" for name, (_, hole) in found.items())
            )
    results = []
    for name, (answers, hole) in found.items():
        title = f"{name}, S3 black-holed: p99 / p99 while it answers"
        results.append(median_of(title, ratios(hole, answers), "times", at_most(1.1)))
        results.append(median_of(f"{name}: p99", [each * 1e3 for each in answers], "ms"))
    return results


def _p99(call: Callable[[], object], seconds: float) -> float:
    taken, ends_at = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < ends_at or len(taken) < 2:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.quantiles(taken, n=100)[98]


def _until_it_answers(client: Client) -> None:
    """Return once the node has heard of S3 again."""
    since = time.time()
    while not (client.step(RUN, STEPS - 1).checked_at or 0.0) > since:
        time.sleep(0.2)
