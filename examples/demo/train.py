"""Train the byte transformer on all ranks, saving every few steps: a job like any other.

    torchrun --standalone --nproc-per-node 2 -m examples.demo.train --run-name demo --steps 55 \\
        --save cachetier --save-every 8 --events .demo/events

``CACHETIER_URL`` says where the node's service is. Start it again with ``--resume local`` after a
crash, or with ``--resume durable`` on a new node.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from cachetier_client import Client
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.demo.checkpointing import Part, restore, save
from examples.demo.events import EventLog
from examples.demo.model import ByteTransformer, Shape
from examples.demo.text import Windows, standard_library

SEED = 20
ROWS = 2  # windows for each rank and step
LEARNING_RATE = 1e-3

Save = Callable[[int], int]  # takes the step, returns this rank's bytes


def main() -> None:
    """Train from the start, or from the newest checkpoint, to the last step."""
    options = _arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    try:
        with EventLog(options.events, dist.get_rank()) as events:
            _train(options, events)
    finally:
        dist.destroy_process_group()


def _train(options: argparse.Namespace, events: EventLog) -> None:
    job = Job(Shape())
    first = _resume(options, job, events)
    save_step = _saver(options, job)
    dist.barrier()
    events.write("ready", step=first, pid=os.getpid(), parameters=job.parameters)
    for step in range(first + 1, options.steps + 1):
        loss = job.train_step()
        events.write("step", step=step, loss=loss.hex())
        if save_step and step % options.save_every == 0:
            began_at = time.monotonic()
            size_bytes = save_step(step)
            events.write("saved", step=step, began_at=began_at, size_bytes=size_bytes)
    events.write("finished", step=options.steps, **job.fingerprints())


class Job:
    """Model, optimizer and data of one rank, all from fixed seeds."""

    def __init__(self, shape: Shape) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(SEED)  # the same weights on every rank, which then keeps its piece
        self.model = ByteTransformer(shape)
        self.parameters = sum(each.numel() for each in self.model.parameters())
        mesh = init_device_mesh("cpu", (world_size,))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = _adamw(self.model)
        torch.manual_seed(SEED + 1 + rank)  # each rank drops out other activations
        self.windows = Windows(
            standard_library(), length=shape.window, rank=rank, world_size=world_size, seed=SEED
        )
        self.part = Part(self.model, self.optimizer, self.windows)

    def train_step(self) -> float:
        """Take one step; return this rank's loss before it."""
        inputs, targets = self.windows.next_batch(ROWS)
        loss = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def fingerprints(self) -> dict[str, str]:
        """Return the SHA-256 of this rank's weights and optimizer: equal only if every bit is."""
        self.part.pack()
        return {
            name: hashlib.sha256(buffer.numpy().data).hexdigest()
            for name, buffer in self.part.buffers.items()
        }


def _adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    """Return AdamW with its state in place before the first step, so that a restore can fill it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _resume(options: argparse.Namespace, job: Job, events: EventLog) -> int:
    if options.resume is None:
        return 0
    began_at = time.monotonic()
    step = restore(Client(), options.run_name, options.resume, job.part)
    events.write("restored", step=step, level=options.resume, began_at=began_at)
    return step


def _saver(options: argparse.Namespace, job: Job) -> Save | None:
    if options.save == "cachetier":
        client = Client()
        return lambda step: save(client, options.run_name, step, job.part)
    if options.save == "direct":
        from examples.demo.direct import DirectPut

        direct = DirectPut(*options.direct_to.split("/", 1))
        return lambda step: direct.save(step, job.part.rank, job.part.pack())
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="examples.demo.train", description=__doc__)
    parser.add_argument("--run-name", default="demo", help="names the checkpoints")
    parser.add_argument("--steps", type=int, default=55, help="last step")
    parser.add_argument("--save", choices=("none", "cachetier", "direct"), default="cachetier")
    parser.add_argument("--save-every", type=int, default=8, help="steps between two saves")
    parser.add_argument("--direct-to", help="bucket/prefix of --save direct")
    parser.add_argument("--resume", choices=("local", "durable"), help="level to resume from")
    parser.add_argument("--events", type=Path, required=True, help="folder for the ranks' events")
    return parser.parse_args()


if __name__ == "__main__":
    main()
