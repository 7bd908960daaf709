"""What training feels of ``cachetier watch``: step times of two busy ranks, with it and without.

In turns the ranks run alone, and while a watcher copies steps that a trainer has just saved and the
drain sends on what is sealed, as it goes on a node. The trainer's own writing is over by then.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier_client import Client

from benchmarks.drain.payload import weights
from benchmarks.drain.remote import sink
from benchmarks.drain.sizes import Sizes, sizes_of
from benchmarks.drain.training import busy_ranks
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench, settle

RUN, MODEL, MARKER = "watched", "model.bin", "done"
PATIENCE_SECONDS = 120.0


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    ready, watched = bench.directory / "ready", bench.directory / "watched"
    ready.mkdir()
    watched.mkdir()
    source = weights(sizes.adopted_bytes)
    alone, beside, rates = list[float](), list[float](), list[float]()
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint) as service,
        Client(service.url, run=RUN) as client,
        busy_ranks(remote) as train,
        _watching(watched, service.url, bench.directory / "watch.log"),
    ):
        for number in range(sizes.training_rounds):
            steps = _saved(ready, source, sizes, number)
            settle()
            alone.append(statistics.median(train(sizes.training_seconds, None)[0]))
            for step in steps:
                step.rename(watched / step.name)
            while not _adopted(client, steps[:1]):
                time.sleep(0.05)
            before = _adopted(client, steps)
            beside.append(statistics.median(train(sizes.training_seconds, None)[0]))
            moved = _adopted(client, steps) - before
            rates.append(moved * sizes.adopted_bytes / 1e6 / sizes.training_seconds)
            bench.say(f"{1e3 * alone[-1]:.1f} ms alone, {1e3 * beside[-1]:.1f} beside a watch")
            if before + moved == len(steps):
                raise RuntimeError("the watch was done before training was: give it more steps")
            _ended(client, steps)
    what = "training step, 2 busy ranks: beside a watch that adopts, and its drain / alone, median"
    return [
        median_of(what, ratios(beside, alone), "", at_most(1.05)),
        median_of("the rate at which it adopts meanwhile", rates, "MB/s"),
    ]


def _saved(ready: Path, source: memoryview, sizes: Sizes, number: int) -> list[Path]:
    """Save some steps where nobody watches yet."""
    steps = []
    for each in range(sizes.adopted_steps):
        folder = ready / f"step-{number * sizes.adopted_steps + each + 1}"
        folder.mkdir()
        (folder / MODEL).write_bytes(source)
        (folder / MARKER).touch()
        steps.append(folder)
    return steps


def _adopted(client: Client, steps: list[Path]) -> int:
    """Return how many of the steps are whole on the node."""
    numbers = {int(step.name.partition("-")[2]) for step in steps}
    return sum(each.step in numbers for each in client.steps(RUN, level="local"))


def _ended(client: Client, steps: list[Path]) -> None:
    """Wait until all are adopted and drained, so that the next round begins at rest.

    Raises:
        TimeoutError: They are not.
    """
    over_at = time.monotonic() + PATIENCE_SECONDS
    while _adopted(client, steps) < len(steps):
        if time.monotonic() > over_at:
            raise TimeoutError("the watch does not go on: see watch.log")
        time.sleep(0.2)
    client.flush(RUN, timeout_seconds=PATIENCE_SECONDS)


@contextmanager
def _watching(folder: Path, url: str, log: Path) -> Iterator[None]:
    """Watch a folder from a process and a session of its own, as beside a launcher."""
    command = [sys.executable, "-m", "cachetier", "watch", str(folder), "--run", RUN]
    command += ["--rank", "0", "--world-size", "1", "--marker", MARKER, "--url", url]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()
