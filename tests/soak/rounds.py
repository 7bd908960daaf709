"""One round of the soak: load under faults, then calm, then the judge, then the old steps go."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cachetier_client.errors import CachetierClientError, NotFoundError

from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from tests.fakes.loop_disk import Disk, LoopDisk, can_mount
from tests.soak import faults
from tests.soak.attendant import Operator
from tests.soak.bucket import BareBucket
from tests.soak.faults import World
from tests.soak.history import History, Steps
from tests.soak.jobs import Job, Jobs
from tests.soak.judge import Judge
from tests.soak.nodes import Figures, Node

MEGABYTE = 1_000_000
SETTLE_SECONDS = 240.0
RATE = 1.5 * MEGABYTE  # of each rank
KEPT_STEPS = 2  # of each round, for the end
READ_ELSEWHERE = 20


@dataclass
class Tally:
    """What the rounds add up to."""

    rounds: int = 0
    acked_bytes: int = 0
    read_bytes: int = 0
    crashes: int = 0
    crashes_with_dirty: int = 0
    steps: int = 0
    settle_seconds: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, int] = field(default_factory=dict)
    figures: list[Figures] = field(default_factory=list)

    def add(self, history: History, world: World, read_bytes: int) -> None:
        self.rounds += 1
        self.acked_bytes += history.acked_bytes
        self.read_bytes += read_bytes
        self.steps += len(history.steps)
        self.crashes += world.crashes
        self.crashes_with_dirty += world.crashes_with_dirty
        for total, more in ((self.calls, history.counts), (self.faults, world.fired)):
            for name, number in more.items():
                total[name] = total.get(name, 0) + number


class BrokenPromiseError(Exception):
    """The judge found something; the message lists it."""


class Soak:
    """Nodes, a bucket behind a proxy, and rounds of load and faults.

    Args:
        top: An empty directory; holds everything.
        endpoint: The S3 server.
        proxy: Before it.
        seed: What happens, but for the time that things take.
    """

    def __init__(self, top: Path, endpoint: S3Endpoint, proxy: S3Proxy, seed: int) -> None:
        self.tally = Tally()
        self.skipped: list[str] = [] if can_mount() else sorted(faults.OWN_DISK)
        self._top = top
        self._seed = seed
        self._proxy = proxy
        self._endpoint = endpoint.behind(proxy.url)
        self._bucket = BareBucket(endpoint.store())
        self._kept: dict[str, list[int]] = {}
        self._past_runs: list[str] = []
        self._forgotten: list[str] = []
        self._kept_history: Steps = {}
        self._log_offsets: dict[Path, int] = {}
        small = None if self.skipped else 640 * MEGABYTE
        self.nodes = {
            "a": self._node("a", small, capacity="400MB", pack="on"),
            "b": self._node("b", None, 120.0, capacity="300MB", compression="zstd:1"),
            # Never harmed itself: its memory and its descriptors tell.
            "c": self._node("c", None, capacity="400MB", when_full="write_through"),
        }
        self.steady = self.nodes["c"]

    def _node(
        self, name: str, image_bytes: int | None, clock_offset: float = 0.0, **settings: str
    ) -> Node:
        home = self._top / name
        home.mkdir()
        disk = Disk(home) if image_bytes is None else LoopDisk(home, image_bytes)
        return Node(name, home, disk, self._endpoint, settings, clock_offset)

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()

    # --- a round ---------------------------------------------------------------------------------

    def round(self, number: int, load_seconds: float) -> None:
        """Run one round.

        Raises:
            BrokenPromiseError: What the judge found.
        """
        dice = random.Random(f"{self._seed}/{number}")
        events = self._top / f"round-{number}"
        events.mkdir()
        history = History(events)
        jobs = Jobs(self.nodes, events, f"{self._seed}/{number}", history)
        harmed = {name: node for name, node in self.nodes.items() if node is not self.steady}
        world = World(harmed, self._proxy, jobs, history, self._bucket, dice)
        runs = [f"train-{number}", f"twins-{number}"]
        jobs.start(Job(runs[0], ("a", "b", "c"), RATE))
        jobs.start(Job(runs[1], ("a", "c"), RATE / 4, lone=True))
        operator = Operator(self.nodes, events, history, runs, random.Random(f"{self._seed}/op"))
        with operator:
            self._strike(world, number, load_seconds)
        jobs.stop()
        for excuse in world.excuses:
            history.excuse(*excuse)
        began = time.monotonic()
        judge = Judge(self._bucket, self.nodes)
        self._settle(judge, history.update())
        self.tally.settle_seconds = max(self.tally.settle_seconds, time.monotonic() - began)
        self._judge(judge, history, runs)
        self._clean_up(judge, history, runs)
        self.tally.add(history, world, judge.read_bytes)
        self.tally.troubles = {str(k): n for k, n in self._proxy.troubles.fired.items() if n}
        _raise(judge)
        shutil.rmtree(events)

    def _strike(self, world: World, number: int, seconds: float) -> None:
        """Let faults happen: those of S3 in a thread, those of nodes here."""
        ends_at = time.monotonic() + seconds
        s3 = threading.Thread(
            target=self._play, args=(world, faults.S3_FAULTS, number, ends_at), name="soak-s3"
        )
        s3.start()
        try:
            self._play(world, faults.NODE_FAULTS, number, ends_at)
        finally:
            s3.join()

    def _play(
        self,
        world: World,
        kinds: dict[str, Callable[[World], bool]],
        number: int,
        ends_at: float,
    ) -> None:
        """Take one fault after the other from a deck that each round begins somewhere else."""
        deck = [name for name in kinds if name not in self.skipped]
        random.Random(self._seed).shuffle(deck)
        at = number * 5
        while time.monotonic() < ends_at:
            time.sleep(world.dice.uniform(0.3, 2.0))
            name = deck[at % len(deck)]
            at += 1
            world.fired[name] += kinds[name](world)

    # --- calm ------------------------------------------------------------------------------------

    def _settle(self, judge: Judge, steps: Steps) -> None:
        """Wait until nothing is dirty and every whole step is published, or time is up."""
        give_up_at = time.monotonic() + SETTLE_SECONDS
        for node in self.nodes.values():
            with node.client() as client:
                try:
                    client.flush(timeout_seconds=max(1.0, give_up_at - time.monotonic()))
                except CachetierClientError as error:
                    judge.require(False, f"node {node.name} is not drained: {error}")
        waiting = {
            at: step
            for at, step in steps.items()
            if (step.whole_saves or step.deleted) and not step.excused
        }
        while waiting and time.monotonic() < give_up_at:
            for run, number in list(waiting):
                manifest = self._bucket.manifest(run, number)
                wanted = "deleted" if waiting[run, number].deleted else "published"
                if manifest is not None and manifest.state in (wanted, "deleted"):
                    del waiting[run, number]
            time.sleep(0.2)

    def _judge(self, judge: Judge, history: History, runs: list[str]) -> None:
        steps = history.update()
        judge.steps(steps)
        judge.acknowledged(steps)
        judge.reads(steps, history.reads)
        judge.strays(steps, runs)
        judge.logs(self._log_offsets)
        reader = self._node(f"reader-{self.tally.rounds}", None, capacity="200MB")
        try:
            reader.start()
            judge.elsewhere(reader, steps, READ_ELSEWHERE)
        finally:
            reader.close()
            shutil.rmtree(reader.home)
        with suppress(CachetierClientError):
            self.tally.figures.append(self.steady.figures())

    def _clean_up(self, judge: Judge, history: History, runs: list[str]) -> None:
        """Delete the steps of the round but for some that stay, and wait until they are gone."""
        if judge.failures:
            return  # they are needed to see what is wrong
        steps = history.update()
        self._keep(steps)
        for (run, number), step in steps.items():
            if step.forgotten:
                prefix = f"{self._bucket.layout.run_prefix(run)}{number}"
                self._forgotten += [f"{prefix}/", f"{prefix}~"]
        for run, number in steps:
            if number not in self._kept.get(run, ()):
                self._delete(run, number, saves=len(steps[run, number].saves))
        give_up_at = time.monotonic() + SETTLE_SECONDS
        self._past_runs += runs
        while True:
            last = Judge(self._bucket, self.nodes)
            for run in self._past_runs[-4:]:
                last.nothing_left(run, self._kept.get(run, ()), self._forgotten)
            last.uploads(self._forgotten)
            if not last.failures or time.monotonic() > give_up_at:
                break
            time.sleep(1)
        judge.failures += last.failures

    def _delete(self, run: str, number: int, *, saves: int) -> None:
        """Delete a step: through one node if it is one published save, else through each.

        What a save that lost its step left in the bucket is known to its nodes alone.
        """
        nodes = list(self.nodes.values())
        for node in nodes:
            with node.client() as client, suppress(CachetierClientError):
                client.unpin(run, number)
        published = saves == 1 and self._bucket.published(run, number) is not None
        for node in [nodes[number % len(nodes)]] if published else nodes:
            with node.client() as client, suppress(NotFoundError):
                client.delete_step(run, number)

    def _keep(self, steps: Steps) -> None:
        """Choose steps that stay until the end: small ones, as many rounds are to come."""
        found: dict[str, list[int]] = {}
        for (run, number), step in steps.items():
            size = sum(put.size for save in step.saves.values() for put in save.puts())
            one = len(step.saves) == 1 and step.whole_saves and not step.maybe_deleted
            if one and not step.excused and size < 10 * MEGABYTE:
                found.setdefault(run, []).append(number)
        for run, numbers in found.items():
            self._kept[run] = numbers[:KEPT_STEPS]
            self._kept_history |= {(run, n): steps[run, n] for n in self._kept[run]}

    # --- the end ---------------------------------------------------------------------------------

    def end(self) -> None:
        """Take every node away, and judge from the bucket alone.

        Raises:
            BrokenPromiseError: What the judge found.
        """
        for node in self.nodes.values():
            node.stop()
            shutil.rmtree(node.cache_dir)
        judge = Judge(self._bucket, {})
        judge.steps(self._kept_history)
        for run in self._past_runs:
            judge.nothing_left(run, self._kept.get(run, ()), self._forgotten)
        judge.uploads(self._forgotten)
        self.tally.read_bytes += judge.read_bytes
        _raise(judge)


def _raise(judge: Judge) -> None:
    if judge.failures:
        raise BrokenPromiseError("\n".join(judge.failures[:50]))
