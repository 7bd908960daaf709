"""The demo from its first server to its last comparison, part by part."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from typing import Any

import psutil
from cachetier_client import Client, NotDurableError

from examples.demo import cores, report
from examples.demo.bucket import Bucket
from examples.demo.measure import Flights, costs, same_losses, same_weights, step_seconds
from examples.demo.narrate import Narrator
from examples.demo.outcome import Kill, NodeLoss, Outcome
from examples.demo.record import RANKS, SAVES, STEPS, Record
from examples.demo.servers import BUCKET, LATENCY_MS, PREFIX, FarS3, Service
from examples.demo.training import Training
from examples.demo.verdict import VoidError

RUN = "bytes"
DIRECT = "direct"
KILL_AFTER_STEP = SAVES[2]
NEWEST_STEP = SAVES[-1]
DURABLE_SECONDS = 120.0
ORPHAN_SECONDS = 5.0
UPLOAD_SECONDS = 1.0


class Story:
    """Tells the story once; every process it starts is ended when ``stack`` is."""

    def __init__(self, work_dir: Path, narrator: Narrator, stack: ExitStack) -> None:
        self._work_dir = work_dir
        self._narrator = narrator
        self._stack = stack
        self.outcome = Outcome()

    def tell(self) -> None:
        """Go through all parts; ``outcome`` fills up on the way."""
        self._start_servers()
        self._reference()
        self._direct()
        killed = self._kill_in_mid_drain()
        resumed = self._resume_on_the_node(killed.newest_saved())
        self._wait_until_durable()
        flights = self._flights()
        for record in (killed, resumed):
            self.outcome.saves += costs(record, self.outcome.reference, flights)
        self._lose_the_node()
        self._compare_with_direct()

    def _start_servers(self) -> None:
        self._narrator.phase("Start an S3 server far away, and cachetier on this node")
        self._note_load()
        self._far = FarS3(self._work_dir, self._narrator)
        self._stack.callback(self._far.stop)
        self._bucket = Bucket(BUCKET, self._far.environment)
        self._narrator.say(f"SeaweedFS is up, {LATENCY_MS} ms behind {self._far.url}")
        self._service = Service(self._work_dir, self._far)
        self._stack.callback(self._service.stop)
        self._service.start(self._narrator)
        self._client = Client(self._service.url)
        self._stack.callback(self._client.close)
        self._narrator.say(f"cachetier serve is up at {self._service.url}")

    def _note_load(self) -> None:
        self.outcome.load_before = os.getloadavg()[0]
        if self.outcome.load_before > report.BUSY_LOAD:
            self._narrator.say(
                f"[yellow]this machine is busy (load {self.outcome.load_before:.1f}): "
                "times will be rough[/]"
            )

    def _reference(self) -> None:
        self._narrator.phase("Train without saving: the reference")
        training = self._training("reference", "--save", "none")
        self.outcome.reference = training.finish()
        seconds = step_seconds(self.outcome.reference)
        self._narrator.say(f"{STEPS} steps, {seconds * 1000:.0f} ms each")

    def _direct(self) -> None:
        self._narrator.phase("Train, saving with boto3 straight to S3: what cachetier must beat")
        training = self._training("direct", "--save", "direct", "--direct-to", f"{BUCKET}/{DIRECT}")
        record = training.finish()
        flights = {step: record.acknowledged_at(step) for step in SAVES}  # there when they return
        self.outcome.direct = costs(record, self.outcome.reference, flights)
        self._compare_ends("saving straight to S3", record)

    def _kill_in_mid_drain(self) -> Record:
        self._narrator.phase("Train, saving through cachetier; kill everything in mid-drain")
        self._far.keep_to(cores.of_others(cores.available()))
        training = self._training("killed", "--save", "cachetier")
        training.until_saved(KILL_AFTER_STEP)
        status = self._status_in_mid_drain()
        trainers, service = training.child, self._service.child
        assert service is not None
        drain = psutil.Process(status["drain"]["pid"])
        ranks = [process.pid for process in trainers.family()]
        psutil.Process(service.pid).kill()  # the service alone: its drain must die with it
        trainers.kill()
        self._narrator.say(f"[bold]kill -9[/] of {len(ranks)} trainer processes and the service")
        record = training.catch_up()
        _, alive = psutil.wait_procs([drain], timeout=ORPHAN_SECONDS)
        service.kill()
        self.outcome.compare("the drain died with the service", not alive)
        self._note_kill(status, ranks, record)
        return record

    def _status_in_mid_drain(self) -> dict[str, Any]:
        """Return the status once an upload is under way, or if none will be."""
        give_up_at = time.monotonic() + UPLOAD_SECONDS
        while True:
            status = self._client.status()
            waits = status["dirty_bytes"] and not status["drain"]["uploading"]
            if not waits or time.monotonic() > give_up_at:
                return status
            time.sleep(0.002)

    def _note_kill(self, status: dict[str, Any], ranks: list[int], record: Record) -> None:
        """Write down what was at stake, judged by the bucket: void unless something was."""
        time.sleep(0.5)  # what was on its way through the proxy still arrives
        step = record.newest_saved()
        only_here = self._only_here(step)
        if not only_here or not status["dirty_bytes"]:
            raise VoidError(f"step {step} was in the bucket before the kill: nothing was at stake")
        self.outcome.kill = Kill(
            step=step,
            trainers=ranks,
            service=status["pid"],
            drain=status["drain"]["pid"],
            dirty_bytes=status["dirty_bytes"],
            dirty_shards=status["dirty_shards"],
            pending_steps=[each["step"] for each in status["pending"]],
            only_here=only_here,
            steps_again=max(record.ends()) - step,
        )
        self._narrator.say(
            f"{status['dirty_shards']} acknowledged shards, "
            f"{status['dirty_bytes'] / 1e6:.0f} MB, were on this disk and not yet in S3"
        )

    def _resume_on_the_node(self, saved: int) -> Record:
        self._narrator.phase("Start again on the same disk, resume by latest_common_step")
        self._service.start(self._narrator)
        status = self._client.status()
        self._narrator.say(f"recovered with {status['dirty_bytes'] / 1e6:.0f} MB still to drain")
        training = self._training("resumed", "--save", "cachetier", "--resume", "local")
        record = training.finish()
        resumed_from = record.of("restored")[0]["step"]
        self.outcome.compare(
            f"the newest acknowledged step, {saved}, came back", resumed_from >= saved
        )
        self._compare_ends("killed, resumed on the node", record)
        return record

    def _wait_until_durable(self) -> None:
        self._narrator.phase("Wait until every checkpoint is durable")
        give_up_at = time.monotonic() + DURABLE_SECONDS
        while (
            dirty_bytes := self._client.status()["dirty_bytes"]
        ) and time.monotonic() < give_up_at:
            self._narrator.say(f"{dirty_bytes / 1e6:.0f} MB to go")
            with suppress(NotDurableError):
                self._client.flush(RUN, timeout_seconds=1.0)
        self._client.wait(RUN, NEWEST_STEP, level="durable", timeout_seconds=60.0)
        self.outcome.steps = {each.step: each for each in self._client.steps(RUN)}
        durable = [s for s, each in self.outcome.steps.items() if "durable" in each.levels]
        self.outcome.compare("every acknowledged checkpoint is durable", durable == list(SAVES))
        self._narrator.say(f"in S3, whole and published: steps {', '.join(map(str, durable))}")

    def _flights(self) -> Flights:
        """Return when each checkpoint had left the node, on the clock of the ranks' events."""
        epoch = time.time() - time.monotonic()
        return {s: (each.published_at or inf) - epoch for s, each in self.outcome.steps.items()}

    def _lose_the_node(self) -> None:
        self._narrator.phase("Lose the node: delete the cache, start on an empty disk")
        assert self._service.child is not None
        self._service.child.kill()
        files = [path for path in self._service.cache_dir.rglob("*") if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        shutil.rmtree(self._service.cache_dir)
        self._narrator.say(f"deleted {len(files)} files, {size_bytes / 1e6:.0f} MB")
        self._service.start(self._narrator)
        empty = self._client.latest(RUN, level="local") is None
        self.outcome.compare("the new disk knew nothing of the run", empty)
        record = self._training("moved", "--save", "cachetier", "--resume", "durable").finish()
        restored = record.of("restored")[0]
        self.outcome.compare(
            f"the newest durable step, {NEWEST_STEP}, came back", restored["step"] == NEWEST_STEP
        )
        self.outcome.node_loss = NodeLoss(
            len(files), size_bytes, restored["step"], restored["at"] - restored["began_at"]
        )
        self._compare_ends("node lost, restored from S3", record)

    def _compare_with_direct(self) -> None:
        shards = [
            f"{step}/rank-{rank}/{shard}"
            for step in SAVES
            for rank in range(RANKS)
            for shard in ("weights", "optimizer", "state.json")
        ]
        direct = self._bucket.digests(f"{DIRECT}/{shard}" for shard in shards)
        drained = self._bucket.digests(f"{PREFIX}/{RUN}/{shard}" for shard in shards)
        self.outcome.compare("S3 holds the same bytes as the direct saves", direct == drained)

    def _training(self, name: str, *arguments: str) -> Training:
        environment = self._far.environment | {"CACHETIER_URL": self._service.url}
        training = Training(
            name,
            self._work_dir,
            self._narrator,
            environment=environment,
            arguments=("--run-name", RUN, *arguments),
        )
        self._stack.callback(training.child.stop)
        return training

    def _compare_ends(self, what: str, record: Record) -> None:
        same = same_weights(record, self.outcome.reference)
        losses = same_losses(record, self.outcome.reference)
        self.outcome.compare(
            f"{what}: weights, optimizer and every loss bit for bit", same and losses
        )
        verdict = "[green]bitwise equal[/]" if same and losses else "[bold red]different[/]"
        self._narrator.say(f"weights, optimizer and losses against the reference: {verdict}")

    def _only_here(self, step: int) -> list[str]:
        """Name the shards of a step that all ranks saw acknowledged and the bucket has not."""
        prefix = f"{PREFIX}/{RUN}/{step}/"
        there = self._bucket.keys(prefix)
        names = [
            f"rank-{rank}/{shard}"
            for rank in range(RANKS)
            for shard in ("weights", "optimizer", "state.json")
        ]
        return [name for name in names if prefix + name not in there]
