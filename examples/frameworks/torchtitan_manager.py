"""torchtitan's own CheckpointManager, unmodified, with its folder in cachetier; FSDP2 on CPU.

    export CACHETIER_URL=... CACHETIER_STEP_NAME=step-{step}
    torchrun --nproc-per-node 2 examples/frameworks/torchtitan_manager.py cachetier://my-run

With torchtitan's trainer the only change is `--checkpoint.folder cachetier://my-run`; here is what
the trainer does with its manager, around a model of a few layers.
"""

import argparse
import hashlib
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)

parser = argparse.ArgumentParser()
parser.add_argument("folder", help="--checkpoint.folder: cachetier://my-run, or a local one")
parser.add_argument("--steps", type=int, default=7)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--mode", choices=["disabled", "async"], default="async")
parser.add_argument("--keep", type=int, default=2)
parser.add_argument("--fail-after", type=int, default=0, help="end without a word after this step")
options = parser.parse_args()


class TrainState:
    """What the trainer saves beside model, optimizer and schedule."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


dist.init_process_group("gloo")
torch.manual_seed(0)
width = options.width
model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3)))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 1e-3})
optimizers = OptimizersContainer(
    OptimizersContainer.Config(param_groups=[group], implementation="for-loop"),
    model_parts=[model],
)
schedule = LRSchedulersContainer.Config(warmup_steps=2).build(
    optimizers=optimizers, training_steps=options.steps
)
train_state = TrainState()
manager = CheckpointManager(
    CheckpointManager.Config(
        enable=True,
        folder=options.folder,
        interval=2,
        async_mode=options.mode,
        keep_latest_k=options.keep,
        last_save_model_only=False,
    ),
    dataloader=None,
    model_parts=[model],
    optimizers=optimizers,
    lr_schedulers=schedule,
    states={"train_state": train_state},
    sd_adapter=None,
)
manager.load()
resumed_at, blocked = train_state.step, []
while train_state.step < options.steps:
    train_state.step += 1
    generator = torch.Generator().manual_seed(1000 * train_state.step + dist.get_rank())
    batch = torch.randn(8, width, generator=generator)
    (model(batch) - batch.flip(1)).square().mean().backward()
    optimizers.step()
    schedule.step()
    optimizers.zero_grad()
    began = time.perf_counter()
    if manager.save(train_state.step, last_step=train_state.step == options.steps):
        blocked.append(time.perf_counter() - began)
    if train_state.step == options.fail_after:
        manager.maybe_wait_for_saving()
        os._exit(9)
manager.maybe_wait_for_saving()
manager.close()

shards = [parameter.to_local() for parameter in model.parameters()]  # type: ignore[attr-defined]
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in shards)).hexdigest()
times = {"median": statistics.median(blocked) if blocked else 0.0}
print(json.dumps({"digest": digest, "resumed_at": resumed_at, "blocked_seconds": times}))
dist.destroy_process_group()
