"""A small FSDP2 model with AdamW whose state every rank count must agree on, bit for bit."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from cachetier_client.io.buffers import bytes_of
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Training:
    """A model of ``layers`` square layers with batch norm between, its optimizer, and its steps."""

    def __init__(self, width: int = 128, layers: int = 3, seed: int = 0) -> None:
        torch.manual_seed(seed)
        blocks = [
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
            for _ in range(layers)
        ]
        self.model = nn.Sequential(*blocks, nn.Linear(width, 7))
        self.width = width
        if dist.is_initialized():
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for block in blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, seed: int) -> None:
        """Train once on a batch that is the same on every rank."""
        generator = torch.Generator().manual_seed(seed)
        batch = torch.randn(16, self.width, generator=generator)
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return what is saved: references to what training goes on to change."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def digest_of_state(state: Any) -> str:
    """Return a digest of all values, whole tensors put together from their ranks; collective."""
    import hashlib

    digest = hashlib.sha256()
    for path, value in sorted(_leaves(state), key=lambda leaf: leaf[0]):
        digest.update(path.encode())
        if isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            digest.update(str((whole.dtype, tuple(whole.shape))).encode())
            digest.update(bytes_of(whole.detach().cpu().contiguous()))
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()


def _leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in _leaves(value[key], f"{path}/{key}")]
    if isinstance(value, list | tuple):
        return [leaf for at, each in enumerate(value) for leaf in _leaves(each, f"{path}/{at}")]
    return [(path, value)]
