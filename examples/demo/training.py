"""One start of the training job under torchrun, followed through what its ranks write down."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from examples.demo import cores
from examples.demo.events import Event, Follower
from examples.demo.narrate import Narrator
from examples.demo.processes import Child
from examples.demo.record import RANKS, SAVE_EVERY, STEPS, Record

DEADLINE_SECONDS = 180.0
LOOK_SECONDS = 0.005  # short, so that a kill comes right after the save it aims at
NEWS_STEPS = 4


class Training:
    """Runs ``examples.demo.train`` on two ranks and tells what they do, as they do it."""

    def __init__(
        self,
        name: str,
        work_dir: Path,
        narrator: Narrator,
        *,
        environment: dict[str, str],
        arguments: tuple[str, ...],
    ) -> None:
        self.record = Record()
        folder = work_dir / "events" / name
        self._narrator = narrator
        self._follower = Follower(folder, RANKS)
        self._began_at = time.monotonic()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(RANKS), "-m", "examples.demo.train"]
        command += ["--steps", str(STEPS), "--save-every", str(SAVE_EVERY)]
        self.child = Child(
            f"training ({name})",
            [*command, "--events", str(folder), *arguments],
            log=work_dir / "logs" / f"{name}.log",
            environment=environment,
        )

    def finish(self) -> Record:
        """Follow the job to its last step; return its record."""
        self._follow(self.record.finished)
        while self.child.exit_status is None:
            self._narrator.waiting_for("the ranks to end")
            time.sleep(0.05)
        if self.child.exit_status != 0:
            raise self.child.failed("failed")
        return self.record

    def until_saved(self, step: int) -> Record:
        """Follow the job until all ranks have had their acknowledgement for a step."""
        self._follow(lambda: self.record.saved(step))
        return self.record

    def catch_up(self) -> Record:
        """Read what was written until now, after a kill, say; return the record."""
        for rank, event in self._follower.new():
            self.record.events[rank].append(event)
            if event["kind"] == "ready":  # to start, it may use all there is
                self.child.keep_to(cores.of_training(cores.available()))
            self._tell(rank, event)
        return self.record

    def _follow(self, done: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + DEADLINE_SECONDS
        while True:
            ended = self.child.exit_status is not None
            self.catch_up()
            if done():
                return
            if ended:
                raise self.child.failed("ended early")
            if time.monotonic() > give_up_at:
                raise self.child.failed(f"not there after {DEADLINE_SECONDS:g} s")
            self._narrator.waiting_for("the next steps" if self.record.of("ready") else "torch")
            time.sleep(LOOK_SECONDS)

    def _tell(self, rank: int, event: Event) -> None:
        """Say what is news: what rank 0 does, and that all ranks have saved."""
        kind, step = event["kind"], event.get("step", 0)
        if kind == "saved" and self.record.saved(step):
            saved = f"saved {self.record.size_bytes(step) / 1e6:.0f} MB"
            seconds = self.record.call_seconds(step)
            self._narrator.say(f"step {step:>3}  {saved} in {seconds * 1000:.0f} ms")
        elif kind == "step" and (step % NEWS_STEPS == 0 or step == STEPS):
            loss = self.record.mean_loss(step, NEWS_STEPS)
            if loss is not None:
                self._narrator.say(f"step {step:>3}  loss {loss:.2f}")
        elif kind == "restored" and rank == 0:
            seconds = event["at"] - event["began_at"]
            level = f'latest_common_step(level="{event["level"]}")'
            self._narrator.say(f"restored step {step} from {level} in {seconds * 1000:.0f} ms")
        elif kind == "ready" and rank == 0:
            seconds = event["at"] - self._began_at
            size = f"{event['parameters'] / 1e6:.1f} million parameters"
            self._narrator.say(f"{RANKS} ranks ready after {seconds:.1f} s: {size}, at step {step}")
