"""Train with FSDP2, save while training goes on, and go on where the last run ended.

Start a service first, in another terminal: `cachetier dev` needs nothing but itself, and says which
CACHETIER_URL to export. Then, as often as you like:

    torchrun --standalone --nproc-per-node 2 examples/fsdp.py my-run 20
    torchrun --standalone --nproc-per-node 2 examples/fsdp.py my-run 40    # resumes at 20
"""

import argparse
from concurrent.futures import Future

import torch
import torch.distributed as dist
from cachetier_client.torch import (
    CachetierReader,
    CachetierWriter,
    LazyStager,
    latest_common_step,
    wait_for_step,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("run", help="a run is one training, however often resumed")
parser.add_argument("steps", type=int)
parser.add_argument("--save-every", type=int, default=5)
options = parser.parse_args()

dist.init_process_group("gloo")
saving = dist.new_group(backend="gloo")  # saves go on in a thread of their own
mesh = init_device_mesh("cpu", (dist.get_world_size(),))

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def state() -> dict[str, object]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def train_once(step: int) -> float:
    batch = torch.randn(32, 256, generator=torch.Generator().manual_seed(step))
    loss = (model(batch) - batch.flip(1)).square().mean()
    loss.backward()
    optimizer.step()  # the stager waits here if a save has not yet copied what this changes
    optimizer.zero_grad()
    return float(loss.detach())


done = latest_common_step(options.run, strict=True) or 0  # not past what another node holds
if done:
    found = state()
    load(found, storage_reader=CachetierReader(f"cachetier://{options.run}/{done}"))
    set_state_dict(
        model,
        optimizer,
        model_state_dict=found["model"],  # type: ignore[arg-type]
        optim_state_dict=found["optimizer"],  # type: ignore[arg-type]
    )
if dist.get_rank() == 0:
    print(f"going on after step {done}" if done else "starting anew", flush=True)

saved: Future[None] | None = None
with LazyStager(optimizer, ring_bytes=64 << 20) as stager:
    writer = CachetierWriter(stager=stager)
    for step in range(done + 1, options.steps + 1):
        loss = train_once(step)
        if step % options.save_every == 0 or step == options.steps:
            if saved is not None:
                saved.result()  # raises what went wrong with the save before
            address = f"cachetier://{options.run}/{step}"
            saved = async_save(  # type: ignore[assignment]  # a future, as the writer stages
                state(), checkpoint_id=address, storage_writer=writer, process_group=saving
            )
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss:.6f}, saving", flush=True)
    if saved is not None:
        saved.result()  # safe on this node
        wait_for_step(options.run, options.steps, "durable")
        if dist.get_rank() == 0:
            print(f"step {options.steps} is durable", flush=True)

dist.destroy_process_group()
