"""What is trained and saved: square layers under FSDP2 with AdamW, on the processor."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SEED = 7


class Training:
    """A model whose state is the same in every run; one process group of all ranks."""

    def __init__(self, width: int, layers: int, rows: int) -> None:
        torch.manual_seed(SEED)
        blocks = [
            nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(layers)
        ]
        self.model = nn.Sequential(*blocks)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in blocks:  # gathered once in a step: most of it is gloo's time as it is
            fully_shard(block, mesh=mesh, reshard_after_forward=False)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batch = torch.randn(rows, width)

    def step(self) -> None:
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return what is saved: references to what training goes on to change."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a nest of dicts, as this rank has them."""
    if isinstance(value, dict):
        return [tensor for key in value for tensor in tensors_of(value[key])]
    if not isinstance(value, torch.Tensor):
        return []
    return [value.to_local() if hasattr(value, "to_local") else value]
