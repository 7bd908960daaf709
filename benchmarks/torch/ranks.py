"""The ranks from the outside: started once, told what to do together, asked how long it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.scratch import ROOT
from benchmarks.torch.sizes import Sizes
from cachetier.testing.s3_endpoint import free_ports

WORLD_SIZE = 2
END_SECONDS = 60.0


class Ranks:
    """Two ranks of one job, each a process with one thread for its products."""

    def __init__(self, sizes: Sizes, environment: Mapping[str, str], log: Path) -> None:
        amounts = (sizes.width, sizes.layers, sizes.rows, sizes.ring_bytes)
        command = [sys.executable, "-m", "benchmarks.torch.rank", *map(str, amounts)]
        common = {
            **os.environ,
            **environment,
            "WORLD_SIZE": str(WORLD_SIZE),
            "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(1)[0]),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        with log.open("ab") as output:
            self._processes = [
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                )
                for rank in range(WORLD_SIZE)
            ]
        self._answers()  # they are ready

    def save(self, mode: str, where: object) -> float:
        """Return how long a whole save takes the rank that takes longest."""
        return float(max(self._command("save", mode=mode, where=str(where))))

    def train(self, mode: str | None, where: object, steps: int) -> float:
        """Return how long ``steps`` take, with or without a save that is begun before."""
        return float(max(self._command("train", mode=mode, where=str(where), steps=steps)))

    def load(self, mode: str, where: object) -> float:
        """Return how long a load takes the rank that takes longest."""
        return float(max(self._command("load", mode=mode, where=str(where))))

    def peak(self, mode: str, where: object) -> int:
        """Return by how much a save raises resident memory, at most."""
        return int(max(self._command("peak", mode=mode, where=str(where))))

    def resident(self) -> int:
        """Return the resident memory of all ranks."""
        return int(sum(self._command("resident")))

    def state_bytes(self) -> int:
        """Return how much one rank saves."""
        return int(max(self._command("state_bytes")))

    def end(self) -> None:
        """Let them end by themselves; kill whoever does not."""
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.close()
            for process in self._processes:
                process.wait(END_SECONDS)
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()

    def _command(self, do: str, **command: Any) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[Any]:
        lines = []
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"rank {rank} has ended; its log is below")
            lines.append(json.loads(line))
        return lines


@contextmanager
def ranks(sizes: Sizes, environment: Mapping[str, str], log: Path) -> Iterator[Ranks]:
    """Run two ranks until the block ends."""
    started = Ranks(sizes, environment, log)
    try:
        yield started
    finally:
        started.end()
