"""One rank: ``rank.py WIDTH LAYERS ROWS RING_BYTES``, and torch's variables in the environment.

Does what it is told, one line of JSON each, and answers with one line: see ``ranks.py``. Starts
each time with the other ranks, by a barrier, and says how many seconds it took itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from cachetier_client.torch.reader import CachetierReader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from benchmarks import processes
from benchmarks.torch.modes import Modes
from benchmarks.torch.names import OURS
from benchmarks.torch.training import Training, tensors_of


class Rank:
    """A rank and what it can be told to do."""

    def __init__(self, width: int, layers: int, rows: int, ring_bytes: int) -> None:
        self._training = Training(width, layers, rows)
        for _ in range(2):  # AdamW has its moments after the first
            self._training.step()
        self._modes = Modes(self._training, ring_bytes)

    def save(self, mode: str, where: str) -> float:
        """Save once, to the end."""
        state = self._training.state()
        began = _begun()
        self._modes.begin(mode, state, where)
        self._modes.finish()
        return time.perf_counter() - began

    def train(self, mode: str | None, where: str, steps: int) -> float:
        """Train some steps, the first of them right after a save has begun, if ``mode`` says so."""
        began = _begun()
        state = self._training.state()
        if mode is not None:
            self._modes.begin(mode, state, where)
        for _ in range(steps):
            self._training.step()
        seconds = time.perf_counter() - began
        self._modes.finish()
        return seconds

    def load(self, mode: str, where: str) -> float:
        """Load into the tensors that are there; make sure that it has."""
        state = self._training.state()
        tensors = tensors_of(state)
        saved = [tensor.clone() for tensor in tensors]
        for tensor in tensors:
            tensor.detach().zero_()
        reader = CachetierReader(where) if mode == OURS else FileSystemReader(where)
        began = _begun()
        load(state, storage_reader=reader)
        seconds = time.perf_counter() - began
        if not all(map(_equal, tensors_of(state), saved)):
            raise RuntimeError(f"{mode}: what was loaded is not what was saved")
        return seconds

    def peak(self, mode: str, where: str) -> int:
        """Save once; return by how many bytes resident memory rose meanwhile, at most."""
        state = self._training.state()
        _begun()
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        before = processes.resident_bytes(os.getpid())
        self._modes.begin(mode, state, where)
        self._modes.finish()
        return processes.peak_bytes(os.getpid()) - before

    def resident(self) -> int:
        return processes.resident_bytes(os.getpid())

    def state_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in tensors_of(self._training.state()))

    def close(self) -> None:
        self._modes.close()


def _begun() -> float:
    dist.barrier()
    return time.perf_counter()


def _equal(one: Any, other: Any) -> bool:
    return bool(one.equal(other))


def main(sizes: list[int], commands: Any, answers: Any) -> None:
    dist.init_process_group("gloo")
    rank = Rank(*sizes)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in commands:
        command = json.loads(line)
        do: Callable[..., Any] = getattr(rank, command.pop("do"))
        print(json.dumps(do(**command)), file=answers, flush=True)
    rank.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what torch prints is no answer
    main([int(text) for text in sys.argv[1:]], sys.stdin, answers)
