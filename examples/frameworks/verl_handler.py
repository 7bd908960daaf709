"""verl's checkpoint handler and FSDP checkpoint manager on CPU, with a run as remote directory.

    CACHETIER_URL=... torchrun --nproc-per-node 2 examples/frameworks/verl_handler.py my-run /tmp/ck

Needs verl and transformers. A user changes the lines marked `# cachetier`; here is what verl's
trainer does with its handler, around an engine of a few lines and a tiny model.
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
from cachetier_client.integrations.verl import CachetierCheckpointHandler  # cachetier
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchdata.stateful_dataloader import StatefulDataLoader
from transformers import GPT2Config, GPT2LMHeadModel
from verl.utils.checkpoint.checkpoint_handler import CheckpointHandler
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

parser = argparse.ArgumentParser()
parser.add_argument("run")
parser.add_argument("folder", help="trainer.default_local_dir")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--keep", type=int, default=1, help="trainer.max_ckpt_to_keep")
parser.add_argument("--fail-after", type=int, default=0, help="end without a word after this step")
parser.add_argument("--compare", action="store_true", help="every other save verl's own way")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=16, n_embd=options.width, n_layer=2, n_head=2)
)
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = StatefulDataLoader(list(range(64)), batch_size=4)


class Engine:
    """What the handler asks of verl's engines, which hand it to the same manager."""

    def __init__(self) -> None:
        self.manager = FSDPCheckpointManager(model, optimizer)

    def is_mp_src_rank_with_outputs(self) -> bool:
        return True

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank()

    def save_checkpoint(self, local_path: str, **options: Any) -> None:
        self.manager.save_checkpoint(local_path=local_path, **options)

    def load_checkpoint(self, local_path: str) -> None:
        self.manager.load_checkpoint(local_path=local_path)


handler = CachetierCheckpointHandler(  # cachetier
    Engine(),
    loader,
    default_local_dir=options.folder,
    default_hdfs_dir=f"cachetier://{options.run}",  # cachetier
    max_ckpt_to_keep=options.keep,
)
own = CheckpointHandler(
    Engine(),
    loader,
    default_local_dir=f"{options.folder}-own",
    default_hdfs_dir=f"{options.folder}-remote",
    max_ckpt_to_keep=options.keep,
)
resumed_at = handler.load_checkpoint()
blocked: dict[str, list[float]] = {"cachetier": [], "own": []}
for step in range(resumed_at + 1, options.steps + 1):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    tokens = torch.randint(64, (4, 16), generator=generator)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        way = "own" if options.compare and step % 4 == 0 else "cachetier"
        began = time.perf_counter()
        (own if way == "own" else handler).save_checkpoint(step)
        blocked[way].append(time.perf_counter() - began)
    if step == options.fail_after:
        handler.wait()
        dist.barrier()
        os._exit(9)
handler.wait()  # cachetier: raises what went wrong

shards = [each.to_local() for each in model.state_dict().values()]
digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in shards)).hexdigest()
times = {way: statistics.median(each) for way, each in blocked.items() if each}
print(json.dumps({"digest": digest, "resumed_at": resumed_at, "blocked_seconds": times}))
dist.destroy_process_group()
