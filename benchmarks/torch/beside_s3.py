"""A save that uploads while training waits, beside ours, whose node drains to the same server.

The server is SeaweedFS, 35 ms away behind the proxy, on this machine. An object store elsewhere
would take no processor time from training; so while ours is measured, server and proxy give way to
it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import statistics
from pathlib import Path

import psutil
from cachetier_client import Client

from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle
from benchmarks.torch.blocking import blocked
from benchmarks.torch.names import OURS_ASYNC, OURS_LAZY, S3
from benchmarks.torch.places import RUN, Places
from benchmarks.torch.ranks import Ranks, ranks
from benchmarks.torch.sizes import Sizes, sizes_of
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs

LATENCY_SECONDS = 0.035
PATIENCE_SECONDS = 300.0
LAST_NICE = 19
OURS = (OURS_ASYNC, OURS_LAZY)
WORDS = {OURS_ASYNC: "CachetierWriter", OURS_LAZY: "CachetierWriter, LazyStager"}


def measure(bench: Bench) -> list[Result]:
    why = missing()
    with (
        seaweedfs(bench.directory / "s3") as server,
        S3Proxy(server.url, latency_seconds=LATENCY_SECONDS) as proxy,
        node(bench.directory / "cache", remote=server.behind(proxy.url)) as service,
        Client(service.url) as client,
    ):
        access = {**server.environment(), "AWS_ENDPOINT_URL": proxy.url}
        environment = {**access, "CACHETIER_URL": service.url}
        with ranks(sizes_of(bench), environment, bench.directory / "ranks.log") as job:
            theirs = [] if why else _uploads(bench, job, server.bucket)
            _give_way()
            added = _added(bench, sizes_of(bench), job, client)
    results = []
    for mode in OURS:
        what = f"training blocked by dcp.async_save: {WORDS[mode]} / s3torchconnector at 35 ms"
        if why:
            results.append(Result(what, None, "", at_most(0.1), (), why))
            continue
        usual = statistics.median(theirs)
        runs = tuple(ratios(added[mode], [usual] * len(added[mode])))
        results.append(Result(what, blocked(added[mode]) / usual, "", at_most(0.1), runs))
    if theirs:
        results.append(median_of("a save by s3torchconnector at 35 ms", theirs, "s"))
    for mode in OURS:
        what = f"training blocked while the node drains: {WORDS[mode]}"
        results.append(Result(what, blocked(added[mode]), "s", None, tuple(added[mode])))
    return results


def missing() -> str:
    """Return why s3torchconnector cannot be measured, if it cannot."""
    lacking = [
        name for name in ("s3torchconnector", "tenacity") if importlib.util.find_spec(name) is None
    ]
    return f"{' and '.join(lacking)} not installed: see requirements/bench.txt" if lacking else ""


def _uploads(bench: Bench, job: Ranks, bucket: str) -> list[float]:
    """Return how long saves by s3torchconnector take; the first one only warms up."""
    taken = []
    for number in range(sizes_of(bench).remote_saves + 1):
        taken.append(job.save(S3, f"s3://{bucket}/theirs/{number}/"))
        bench.say(f"{S3}: {taken[-1]:.2f} s")
    return taken[1:]


def _give_way() -> None:
    """Have SeaweedFS, and the threads of the proxy, run only where training leaves room."""
    servers = [each for each in psutil.Process().children(recursive=True) if each.name() == "weed"]
    if not servers:
        raise RuntimeError("there is no process of SeaweedFS to give way")
    ours = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    theirs = [thread.id for server in servers for thread in server.threads()]
    for thread in {*ours, *theirs} - {os.getpid()}:  # the main one starts what is measured
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, LAST_NICE)


def _added(bench: Bench, sizes: Sizes, job: Ranks, client: Client) -> dict[str, list[float]]:
    """Return by how much our saves make some steps longer, while what they saved is drained."""
    places = Places(bench.directory, client)
    added: dict[str, list[float]] = {mode: [] for mode in OURS}
    for number in range(sizes.remote_saves + 1):
        for mode in OURS:
            settle()
            alone = job.train(None, "", sizes.steps)
            place = places.next_for(mode)
            taken = job.train(mode, place, sizes.steps)
            client.wait(RUN, place.step or 0, "durable", timeout_seconds=PATIENCE_SECONDS)
            places.clear(place)
            if number:
                added[mode].append(taken - alone)
                bench.say(f"{mode}: {taken:.3f} s, alone {alone:.3f} s")
    return added
