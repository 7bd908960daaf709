"""accelerate: save_state writes to a folder that becomes a step, load_state reads one that was.

    export CACHETIER_URL=...
    accelerate launch --cpu --num_processes 2 examples/frameworks/accelerate_state.py my-run

Needs `pip install accelerate`. The lines marked `# cachetier` are what a user changes.
"""

import argparse
import hashlib
import json
import os
import signal

import torch
from accelerate import Accelerator
from cachetier_client.integrations.step_folders import load_folder, save_folder  # cachetier

parser = argparse.ArgumentParser()
parser.add_argument("run")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--save-every", type=int, default=2)
parser.add_argument("--under", default="restored", help="where steps are brought to")
parser.add_argument("--kill-at", type=int, default=-1, help="every rank ends itself there")
options = parser.parse_args()

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)

folder = load_folder(f"cachetier://{options.run}/latest", options.under)  # cachetier
done = int(folder.name) if folder else 0
if folder:
    accelerator.load_state(folder)

for step in range(done + 1, options.steps + 1):
    if step == options.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    batch = torch.randn(4, 8) + accelerator.process_index  # of the generator that is saved, too
    loss = (model(batch) - batch.flip(1)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % options.save_every == 0:
        with save_folder(f"cachetier://{options.run}/{step}") as folder:  # cachetier
            accelerator.save_state(folder)

weights = b"".join(each.numpy().tobytes() for each in model.state_dict().values())
result = {"resumed_at": done, "step": options.steps, "weights": hashlib.sha256(weights).hexdigest()}
print(json.dumps(result))
accelerator.end_training()
