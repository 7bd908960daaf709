"""Ray Train on two workers: checkpoints go into cachetier, and a failed attempt goes on from them.

    CACHETIER_URL=... python examples/frameworks/ray_train.py my-run --storage /tmp/ray --fail-at 3

Needs `pip install 'ray[train]' torch`. A user changes the lines marked `# cachetier`.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any

import ray
import ray.train
import torch
from cachetier_client.integrations.ray import CachetierUpload, as_directory  # cachetier
from ray.train import Checkpoint, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    weights, done = torch.full((config["values"],), float(rank)), 0
    upload = CachetierUpload(config["run"], ranks="all")  # cachetier
    found = ray.train.get_checkpoint()
    if found:
        with as_directory(found) as folder:  # cachetier
            state = torch.load(f"{folder}/rank-{rank}.pt", weights_only=True)
            weights, done = state["weights"], int(state["step"])
    blocked: dict[str, list[float]] = {"cachetier": [], "own": []}
    for step in range(done + 1, config["steps"] + 1):
        if not done and step == config["fail_at"]:
            ray.train.get_all_reported_checkpoints()  # waits until Ray has taken them
            os._exit(1)  # no word to anybody
        weights = weights * 0.5 + step
        own = config["compare"] and step % 2 == 1
        folder = tempfile.mkdtemp()
        torch.save({"weights": weights, "step": step}, f"{folder}/rank-{rank}.pt")
        summary = {"step": step, "resumed_at": done, "sum": float(weights.sum())}
        times = {way: statistics.median(t) for way, t in blocked.items() if t}
        began = time.perf_counter()
        ray.train.report(
            {**summary, "blocked_seconds": times},
            checkpoint=Checkpoint.from_directory(folder),
            checkpoint_dir_name=f"checkpoint_{step}",  # cachetier
            checkpoint_upload_mode=CheckpointUploadMode[config["mode"]],
            checkpoint_upload_fn=None if own else upload,  # cachetier
            delete_local_checkpoint_after_upload=True,
        )
        blocked["own" if own else "cachetier"].append(time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--storage", required=True, help="Ray's storage_path: lines and pointers")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--values", type=int, default=1_000, help="floats of each worker")
    parser.add_argument("--mode", choices=["SYNC", "ASYNC"], default="ASYNC")
    parser.add_argument("--fail-at", type=int, default=0, help="a worker ends itself there, once")
    parser.add_argument("--compare", action="store_true", help="every other one by Ray's own way")
    config = vars(parser.parse_args())
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name=config["run"],
            storage_path=config["storage"],
            failure_config=FailureConfig(max_failures=1),
        ),
    )
    result = trainer.fit()
    print(json.dumps({**(result.metrics or {}), "checkpoint": str(result.checkpoint)}))


if __name__ == "__main__":
    main()
