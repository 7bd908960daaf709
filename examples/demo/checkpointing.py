"""Save one rank's part of a training job to cachetier, and restore it: copy this.

A part is three shards. Anyone can read them from the bucket with ``json`` and ``numpy.fromfile``:

    rank-<r>/weights      this rank's piece of every parameter, one after the other, float32
    rank-<r>/optimizer    the same for AdamW's step, exp_avg and exp_avg_sq
    rank-<r>/state.json   where each tensor lies, the data order, the random number generator
"""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

import torch
import torch.distributed as dist
from cachetier_client import Client
from cachetier_client.torch import latest_common_step
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from examples.demo.text import Windows

Level = Literal["local", "durable"]


class Part:
    """One rank's part of a checkpoint, with buffers allocated once and used for every save."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.AdamW, windows: Windows) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.windows = windows
        self.tensors = {"weights": _weights(model), "optimizer": _moments(model, optimizer)}
        self.buffers = {
            shard: torch.empty(sum(tensor.numel() for tensor in tensors.values()))
            for shard, tensors in self.tensors.items()
        }

    def pack(self) -> dict[str, Tensor | bytes]:
        """Copy everything that changes into the buffers; return the shards, ready to be put."""
        for shard, tensors in self.tensors.items():
            torch.cat([each.flatten() for each in tensors.values()], out=self.buffers[shard])
        return {**self.buffers, "state.json": json.dumps(self._state()).encode()}

    def unpack(self, state: dict[str, Any]) -> None:
        """Copy the buffers, which a restore has filled, back into the training job."""
        for shard, tensors in self.tensors.items():
            sizes = [each.numel() for each in tensors.values()]
            pieces = torch.split(self.buffers[shard], sizes)
            for tensor, piece in zip(tensors.values(), pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))
        self.windows.go_to(**state["data_order"])
        random = bytearray(base64.b64decode(state["random"]))
        torch.set_rng_state(torch.frombuffer(random, dtype=torch.uint8))

    def _state(self) -> dict[str, Any]:
        return {
            "data_order": {"epoch": self.windows.epoch, "taken": self.windows.taken},
            "random": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
            "tensors": {
                shard: [[name, list(each.shape)] for name, each in tensors.items()]
                for shard, tensors in self.tensors.items()
            },
        }


def save(client: Client, run: str, step: int, part: Part) -> int:
    """Make this rank's part of a step safe on this node; return its bytes. S3 comes later."""
    size_bytes = 0
    with client.checkpoint(run, step, rank=part.rank, world_size=part.world_size) as checkpoint:
        for shard, data in part.pack().items():
            size_bytes += checkpoint.put(data, f"rank-{part.rank}/{shard}").size_bytes
    return size_bytes


def restore(client: Client, run: str, level: Level, part: Part) -> int:
    """Bring back the newest step restorable at ``level``; return it, or 0 if there is none."""
    step = latest_common_step(run, level=level, client=client, strict=True) or 0
    if step:
        for shard, buffer in part.buffers.items():
            client.get_shard(run, step, f"rank-{part.rank}/{shard}", out=buffer)
        state = client.get_shard(run, step, f"rank-{part.rank}/state.json")
        part.unpack(json.loads(bytes(state)))
    return step


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: _local(parameter) for name, parameter in model.named_parameters()}


def _moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": _local(optimizer.state[parameter][key])
        for name, parameter in model.named_parameters()
        for key in ("step", "exp_avg", "exp_avg_sq")
    }


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's piece of a tensor; it shares the tensor's memory."""
    whole = tensor.detach()
    return whole.to_local() if isinstance(whole, DTensor) else whole
