"""What a lazy save costs training on a GPU, and how fast its bytes come to the host.

Measured only where there is a GPU: one rank, a state of weights and AdamW's moments on the device.
A stall is the wall time that a save adds to the steps that follow it, the device's work included.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from cachetier_client import Client
from cachetier_client.torch import CachetierWriter, LazyStager
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.measures import Result, at_least, at_most, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

LAYERS, QUICK_LAYERS = 24, 2
WIDTH = 4096  # 1.6 GB of weights, and twice that of moments
ROWS = 8192
STEPS = 5
ROUNDS, QUICK_ROUNDS = 5, 1
RING_BYTES = 1 << 30
SECONDS = 300.0
LEAST_SECONDS = 0.0001

Begin = Callable[[dict[str, Any], int], Any]


def measure(bench: Bench, rounds: int = ROUNDS) -> list[Result]:
    if not torch.cuda.is_available():
        return []
    training = Training(QUICK_LAYERS if bench.quick else LAYERS)
    rounds = QUICK_ROUNDS if bench.quick else rounds
    with (
        node(bench.directory / "cache") as service,
        Client(service.url) as client,
        LazyStager(training.optimizer, ring_bytes=RING_BYTES) as stager,
    ):
        writer = CachetierWriter(client=client, stager=stager)

        def lazily(state: dict[str, Any], step: int) -> Any:
            address = f"cachetier://bench/{step}"
            return async_save(state, checkpoint_id=address, storage_writer=writer)

        def usually(state: dict[str, Any], step: int) -> Any:
            path = str(bench.directory / f"files-{step}")
            return async_save(state, storage_writer=FileSystemWriter(path))

        lazy, usual = [], []
        for number in range(rounds + 1):
            pair = training.stall(usually, number), training.stall(lazily, number)
            shutil.rmtree(bench.directory / f"files-{number}")
            if number:  # the first only warms up
                usual.append(pair[0])
                lazy.append(pair[1])
        speeds = [_speeds(training, stager, client, 1000 + number) for number in range(rounds)]
    return [
        median_of(
            "GPU: stall of a save, LazyStager / dcp.async_save, default stager",
            ratios(lazy, usual),
            "",
            at_most(0.1),
        ),
        median_of("GPU: stall of a save, LazyStager", lazy, "s"),
        median_of("GPU: stall of a save, dcp.async_save, default stager", usual, "s"),
        median_of(
            "GPU: device to ring / one pinned copy",
            [ours / plain for ours, plain in speeds],
            "times",
            at_least(0.8),
        ),
        median_of("GPU: device to ring", [ours for ours, _ in speeds], "GB/s"),
    ]


class Training:
    """Square layers with AdamW, on the device."""

    def __init__(self, layers: int) -> None:
        blocks = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)]
        self.model = nn.Sequential(*blocks).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batch = torch.randn(ROWS, WIDTH, device="cuda")
        self.steps(2)

    def steps(self, count: int) -> float:
        """Train so many steps, and return how long that took."""
        began = time.perf_counter()
        for _ in range(count):
            self.model(self._batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def state(self) -> dict[str, Any]:
        moments = self.optimizer.state_dict()["state"]
        return {"model": self.model.state_dict(), "optimizer": moments}

    def stall(self, begin: Begin, step: int) -> float:
        """Return by how much a save makes some steps longer."""
        settle()
        alone = self.steps(STEPS)
        began = time.perf_counter()
        saved = begin(self.state(), step)
        self.steps(STEPS)
        seconds = time.perf_counter() - began
        upload = saved if isinstance(saved, Future) else saved.upload_completion
        upload.result(SECONDS)
        return max(LEAST_SECONDS, seconds - (alone + self.steps(STEPS)) / 2)


def _speeds(
    training: Training, stager: LazyStager, client: Client, step: int
) -> tuple[float, float]:
    """Return GB/s of a lazy save of less than the ring, until all is copied, and of one copy."""
    tensors: dict[str, torch.Tensor] = {}
    size_bytes = 0
    for name, tensor in training.model.state_dict().items():
        if size_bytes + tensor.nbytes < RING_BYTES // 2:
            tensors[name] = tensor
            size_bytes += tensor.nbytes
    torch.cuda.synchronize()
    began = time.perf_counter()
    save = stager.save(client, "speed", tensors, run="bench", step=step, rank=0, world_size=1)
    save.copied(SECONDS)
    torch.cuda.synchronize()
    ours = size_bytes / (time.perf_counter() - began) / 1e9
    save.result(SECONDS)
    source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    torch.cuda.synchronize()
    began = time.perf_counter()
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return ours, size_bytes / (time.perf_counter() - began) / 1e9
