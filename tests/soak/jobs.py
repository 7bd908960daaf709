"""The jobs of the soak: ranks as processes, started again when one of them dies."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.history import History
from tests.soak.nodes import Node
from tests.soak.ranks import Orders

END_SECONDS = 60.0


@dataclass
class Job:
    """One run: its ranks by the node they are on. ``lone``: each saves whole steps by itself."""

    run: str
    places: tuple[str, ...]
    rate: float
    lone: bool = False
    starts: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)


class Jobs:
    """Starts and ends the ranks of one round. Thread-safe."""

    def __init__(
        self, nodes: Mapping[str, Node], events: Path, seed: str, history: History
    ) -> None:
        self._nodes = nodes
        self._events = events
        self._seed = seed
        self._history = history
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
            self._launch(job, 1)

    def kill_one(self, dice: random.Random) -> bool:
        """SIGKILL a rank; its launcher ends the others, and starts the job again."""
        with self._lock:
            if self._stopped:
                return False
            job = dice.choice([job for job in self._jobs if not job.lone])
            dice.choice(job.processes).kill()
            self._end(job, signal.SIGKILL)
            self._launch(job, max(1, self._last_whole_step(job.run) + dice.choice((0, 1))))
            return True

    def stop(self) -> None:
        """Let every rank end the call it is in, and end."""
        with self._lock:
            self._stopped = True
            for job in self._jobs:
                self._end(job, signal.SIGTERM)

    def _last_whole_step(self, run: str) -> int:
        steps = self._history.update()
        whole = [n for (of, n), step in steps.items() if of == run and step.whole_saves]
        return max(whole, default=0)

    def _launch(self, job: Job, first_step: int) -> None:
        job.starts += 1
        for number, place in enumerate(job.places):
            save = f"start-{job.starts}" + (f"-by-{number}" if job.lone else "")
            orders = Orders(
                url=self._nodes[place].url,
                node=place,
                events=str(self._events / f"{job.run}-{job.starts}-{number}.events"),
                seed=self._seed,
                run=job.run,
                save=save,
                rank=0 if job.lone else number,
                world=1 if job.lone else len(job.places),
                first_step=first_step,
                rate=job.rate,
            )
            command = [sys.executable, "-m", "tests.soak.ranks", orders.as_argument()]
            with (self._events / "ranks.log").open("ab") as log:
                job.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _end(self, job: Job, number: signal.Signals) -> None:
        for process in job.processes:
            process.send_signal(number)
        for process in job.processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        job.processes.clear()
