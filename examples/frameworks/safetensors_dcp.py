"""DCP saves safetensors: a killed training goes on from files that any tool for safetensors reads.

    export CACHETIER_URL=...
    torchrun --nproc-per-node 2 examples/frameworks/safetensors_dcp.py my-model /tmp/models

Needs `pip install safetensors`. The lines marked `# cachetier` are what a user changes.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cachetier_client.integrations.step_folders import load_folder  # cachetier
from cachetier_client.torch.huggingface import HuggingFaceWriter  # cachetier
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)

parser = argparse.ArgumentParser()
parser.add_argument("run")
parser.add_argument("under", help="where steps are brought to")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--kill-at", type=int, default=-1, help="every rank ends itself there")
parser.add_argument("--compare", action="store_true", help="every other save by torch's own writer")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(options.width, options.width) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

folder = load_folder(f"cachetier://{options.run}/latest", options.under)  # cachetier
resumed_at = int(folder.name) if folder else 0
if folder:
    state = model.state_dict()
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))
    model.load_state_dict(state)

blocked: dict[str, list[float]] = {"cachetier": [], "own": []}
for step in range(resumed_at + 1, options.steps + 1):
    if step == options.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    batch = torch.full((4, options.width), float(step))  # the same on all ranks, as gradients are
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        way = "own" if options.compare and step % 4 == 0 else "cachetier"
        writer = (
            HuggingFaceStorageWriter(f"{options.under}-own/{step}", save_distributed=True)
            if way == "own"
            else HuggingFaceWriter(f"cachetier://{options.run}/{step}")  # cachetier
        )
        dist.barrier()
        began = time.perf_counter()
        dcp.save(model.state_dict(), storage_writer=writer)
        blocked[way].append(time.perf_counter() - began)

weights = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
times = {way: statistics.median(each) for way, each in blocked.items() if each}
result = {"resumed_at": resumed_at, "weights": hashlib.sha256(weights).hexdigest()}
print(json.dumps({**result, "blocked_seconds": times}))
dist.destroy_process_group()
