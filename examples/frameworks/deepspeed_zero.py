"""DeepSpeed with ZeRO on CPU: checkpoints are steps in cachetier, and any node goes on from them.

    export CACHETIER_URL=... DS_ACCELERATOR=cpu
    torchrun --nproc-per-node 2 examples/frameworks/deepspeed_zero.py my-run /tmp/checkpoints

Needs `pip install deepspeed`. A user changes the lines marked `# cachetier`.
"""

import argparse
import hashlib
import json
import os
import statistics
import time

import deepspeed
import torch
from cachetier_client.integrations.deepspeed import restore_latest, use_cachetier  # cachetier
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("run")
parser.add_argument("folder", help="where DeepSpeed looks for checkpoints; small")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--save-every", type=int, default=2)
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--decoupled", action="store_true")
parser.add_argument("--fail-after", type=int, default=0, help="end without a word after this step")
parser.add_argument("--compare", action="store_true", help="every other save DeepSpeed's own way")
options = parser.parse_args()

deepspeed.init_distributed("gloo")
torch.manual_seed(0)
width = options.width
model = nn.Sequential(
    nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.Tanh(), nn.Linear(2 * width, width)
)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": options.stage},
        "zero_allow_untested_optimizer": True,
    },
)
own = engine.checkpoint_engine
ours = use_cachetier(engine, options.run, decoupled=options.decoupled)  # cachetier
tag = restore_latest(options.folder, options.run)  # cachetier
if tag:
    engine.load_checkpoint(options.folder, tag)
resumed_at = engine.global_steps

steps: list[float] = []  # of the optimizer, after no save
blocked: dict[str, list[float]] = {"cachetier": [], "own": []}
saved = None
for step in range(resumed_at + 1, options.steps + 1):
    generator = torch.Generator().manual_seed(1000 * step + engine.global_rank)
    batch = torch.randn(8, width, generator=generator)
    loss = (engine(batch) - batch.flip(1)).square().mean()
    engine.backward(loss)
    began = time.perf_counter()
    engine.step()  # waits for a decoupled save
    took = time.perf_counter() - began
    if saved is None:
        steps.append(took)
    else:
        blocked[saved][-1] += took - statistics.median(steps)
        saved = None
    if step % options.save_every == 0 or step == options.steps:
        saved = "own" if options.compare and step // options.save_every % 2 else "cachetier"
        engine.checkpoint_engine = own if saved == "own" else ours
        began = time.perf_counter()
        engine.save_checkpoint(f"{options.folder}-own" if saved == "own" else options.folder)
        blocked[saved].append(time.perf_counter() - began)
    if step == options.fail_after:
        os._exit(9)

# DeepSpeed saves the buffers of the first rank alone.
state = [*model.parameters(), *(model.buffers() if engine.global_rank == 0 else ())]
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in state)).hexdigest()
times = {way: statistics.median(each) for way, each in blocked.items() if each}
engine.destroy()  # commits a last decoupled save
print(json.dumps({"digest": digest, "resumed_at": resumed_at, "blocked_seconds": times}))
