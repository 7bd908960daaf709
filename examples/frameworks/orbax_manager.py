"""Orbax's CheckpointManager on CPU: what it saves is a step too, and comes back elsewhere.

    CACHETIER_URL=... python examples/frameworks/orbax_manager.py my-run /tmp/checkpoints

Needs `pip install orbax-checkpoint`. A user changes the lines marked `# cachetier`.
"""

import argparse
import json
import os
import statistics
import time

import jax.numpy as jnp
import orbax.checkpoint as ocp
from cachetier_client.integrations.orbax import (  # cachetier
    CachetierHandler,
    CachetierRestore,
    CachetierSave,
    restore_latest,
)

parser = argparse.ArgumentParser()
parser.add_argument("run")
parser.add_argument("folder")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--values", type=int, default=1_000)
parser.add_argument("--keep", type=int, default=1)
parser.add_argument("--fail-after", type=int, default=0, help="end without a word after this step")
parser.add_argument("--compare", action="store_true", help="every other save Orbax's own way")
options = parser.parse_args()

restore_latest(options.folder, options.run)  # cachetier
keep = ocp.CheckpointManagerOptions(max_to_keep=options.keep)
manager = ocp.CheckpointManager(
    os.path.abspath(options.folder),
    options=keep,
    item_handlers=CachetierHandler(options.run),  # cachetier
)
own = ocp.CheckpointManager(
    os.path.abspath(f"{options.folder}-own"),
    options=keep,
    item_handlers=ocp.StandardCheckpointHandler(),
)
state = {"weights": jnp.zeros(options.values), "bias": jnp.ones(3)}
resumed_at = manager.latest_step() or 0
if resumed_at:
    state = manager.restore(resumed_at, args=CachetierRestore(state))  # cachetier
blocked: dict[str, list[float]] = {"cachetier": [], "own": []}
for step in range(resumed_at + 1, options.steps + 1):
    state = {"weights": state["weights"] * 0.5 + step, "bias": state["bias"] + 1}
    if step % 2 == 0:
        way = "own" if options.compare and step % 4 == 0 else "cachetier"
        began = time.perf_counter()
        if way == "own":
            own.save(step, args=ocp.args.StandardSave(state))
        else:
            manager.save(step, args=CachetierSave(state))  # cachetier
        blocked[way].append(time.perf_counter() - began)
    if step == options.fail_after:
        manager.wait_until_finished()
        os._exit(9)
manager.wait_until_finished()
manager.close()
own.close()

times = {way: statistics.median(each) for way, each in blocked.items() if each}
summary = {"sum": float(state["weights"].sum()), "bias": float(state["bias"][0])}
print(json.dumps({**summary, "resumed_at": resumed_at, "blocked_seconds": times}))
