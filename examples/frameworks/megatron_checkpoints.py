"""Megatron-core's dist_checkpointing on CPU: sharded tensors, saved sync or in the background.

    CACHETIER_URL=... torchrun --nproc-per-node 2 examples/frameworks/megatron_checkpoints.py \
        my-run /tmp/checkpoints

Needs `pip install --no-deps megatron-core triton`. A user changes the lines marked `# cachetier`.
On a machine without a GPU the two calls on it that Megatron's own queue of saves makes do nothing.
"""

import argparse
import hashlib
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("root", help="where Megatron writes iter_N, and reads it")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=64, help="of each rank")
    parser.add_argument("--background", action="store_true")
    parser.add_argument("--fail-after", type=int, default=0, help="end there without a word")
    parser.add_argument("--compare", action="store_true", help="every other save by Megatron")
    return parser.parse_args()


# Megatron starts processes that import this file anew, and need nothing of it.
if __name__ == "__main__":
    import torch
    import torch.distributed as dist
    from cachetier_client.integrations.megatron import (  # cachetier
        CachetierSaveStrategy,
        restore_latest,
    )
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    options = arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda *_: None
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    weights = torch.full((options.rows, 256), float(rank))
    iteration = 0

    def state() -> dict[str, Any]:
        """Rows of one tensor on each rank, and what is common to all ranks."""
        shard = ShardedTensor.from_rank_offsets("weights", weights, (0, rank, world_size))
        return {"weights": shard, "iteration": iteration}

    own = TorchDistSaveShardedStrategy()
    ours = CachetierSaveStrategy(options.run)  # cachetier
    queue = AsyncCallsQueue()
    folder = restore_latest(options.root, options.run)  # cachetier
    if folder:
        loaded = dist_checkpointing.load(state(), folder)
        weights, iteration = loaded["weights"], loaded["iteration"]
    resumed_at = iteration

    blocked: dict[str, list[float]] = {"cachetier": [], "own": []}
    for iteration in range(resumed_at + 1, options.steps + 1):
        weights.mul_(0.5).add_(iteration)
        queue.maybe_finalize_async_calls(blocking=False)
        if iteration % 2 == 0:
            way = "own" if options.compare and iteration % 4 == 0 else "cachetier"
            root = Path(f"{options.root}-own" if way == "own" else options.root)
            place = root / f"iter_{iteration:07d}"
            place.mkdir(parents=True, exist_ok=True)
            dist.barrier()
            began = time.perf_counter()
            request = dist_checkpointing.save(
                state(),
                str(place),
                own if way == "own" else ours,  # cachetier
                async_sharded_save=options.background,
                async_strategy="mcore",
            )
            if request is not None:
                queue.schedule_async_request(request)
            blocked[way].append(time.perf_counter() - began)
        if iteration == options.fail_after:
            queue.maybe_finalize_async_calls(blocking=True)
            ours.wait()
            dist.barrier()
            os._exit(9)
    queue.maybe_finalize_async_calls(blocking=True)
    ours.wait()  # cachetier: raises what went wrong
    queue.close()

    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    times = {way: statistics.median(each) for way, each in blocked.items() if each}
    print(json.dumps({"digest": digest, "resumed_at": resumed_at, "blocked_seconds": times}))
    dist.destroy_process_group()
