"""What training feels of ``cachetier adopt``: step times of two busy ranks, with it and without.

In turns the ranks run alone, and while a watcher copies steps that a trainer has just saved and the
drain sends on what is sealed, as it goes on a node. The trainer's own writing costs nothing here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier_client import Client

from benchmarks.drain.payload import weights
from benchmarks.drain.remote import sink
from benchmarks.drain.sizes import sizes_of
from benchmarks.drain.training import busy_ranks
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import ROOT, Bench, settle

RUN, MODEL, MARKER = "watched", "model.bin", "done"
STEPS_AHEAD = 8
PATIENCE_SECONDS = 120.0


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    watched = bench.directory / "watched"
    watched.mkdir()
    source = bench.directory / MODEL
    source.write_bytes(weights(sizes.adopted_bytes))
    alone, beside, rates = list[float](), list[float](), list[float]()
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint) as service,
        Client(service.url, run=RUN) as client,
        busy_ranks(remote) as train,
        _watching(watched, service.url, bench.directory / "watch.log"),
    ):
        trainer = _Trainer(watched, source, client)
        for _ in range(sizes.training_rounds):
            settle()
            alone.append(statistics.median(train(sizes.training_seconds, None)[0]))
            with trainer.saving():
                before = trainer.adopted
                beside.append(statistics.median(train(sizes.training_seconds, None)[0]))
                moved = trainer.adopted - before
            rates.append(moved * sizes.adopted_bytes / 1e6 / sizes.training_seconds)
            bench.say(f"{1e3 * alone[-1]:.1f} ms alone, {1e3 * beside[-1]:.1f} beside a watch")
            _ended(client, trainer.saved)
    what = "training step, 2 busy ranks: beside a watch that adopts, and its drain / alone, median"
    return [
        median_of(what, ratios(beside, alone), "", at_most(1.05)),
        median_of("the rate at which it adopts meanwhile", rates, "MB/s"),
    ]


class _Trainer:
    """Saves steps into the watched folder, so that the watch always has some before it.

    All files are links to one, so that saving costs neither time nor disk.
    """

    def __init__(self, watched: Path, source: Path, client: Client) -> None:
        self._watched = watched
        self._source = source
        self._client = client
        self.saved = 0

    @property
    def adopted(self) -> int:
        return _adopted(self._client)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Keep ``STEPS_AHEAD`` steps before the watch, once it has adopted the first of them."""
        enough, first = threading.Event(), self.adopted
        thread = threading.Thread(target=self._save_until, args=(enough,), name="trainer")
        thread.start()
        try:
            over_at = time.monotonic() + PATIENCE_SECONDS
            while self.adopted == first:
                if time.monotonic() > over_at:
                    raise TimeoutError("the watch does not begin: see watch.log")
                time.sleep(0.05)
            yield
        finally:
            enough.set()
            thread.join()

    def _save_until(self, enough: threading.Event) -> None:
        while not enough.wait(0.05):
            for _ in range(STEPS_AHEAD - (self.saved - self.adopted)):
                self.saved += 1
                folder = self._watched / f"step-{self.saved}"
                folder.mkdir()
                (folder / MODEL).hardlink_to(self._source)
                (folder / MARKER).touch()


def _adopted(client: Client) -> int:
    """Return how many steps are whole on the node."""
    return len(client.steps(RUN, level="local"))


def _ended(client: Client, steps: int) -> None:
    """Wait until ``steps`` are adopted and drained, so that the next round begins at rest.

    Raises:
        TimeoutError: They are not.
    """
    over_at = time.monotonic() + PATIENCE_SECONDS
    while _adopted(client) < steps:
        if time.monotonic() > over_at:
            raise TimeoutError("the watch does not go on: see watch.log")
        time.sleep(0.2)
    client.flush(RUN, timeout_seconds=PATIENCE_SECONDS)


@contextmanager
def _watching(folder: Path, url: str, log: Path) -> Iterator[None]:
    """Watch a folder from a process and a session of its own, as beside a launcher."""
    command = [sys.executable, "-m", "cachetier", "adopt", str(folder), RUN]
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
