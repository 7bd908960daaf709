"""Save a checkpoint every other second, so that there is something to watch.

Start a service and export its CACHETIER_URL: docs/tutorial.md does both. Then, again and again:

    python examples/steady.py --run tutorial --steps 30 --megabytes 64

A run that has steps already, here or in S3, goes on after its newest one.
"""

import argparse
import random
import time

from cachetier_client import Client

parser = argparse.ArgumentParser(description="Save a checkpoint every other second.")
parser.add_argument("--run", default="tutorial")
parser.add_argument("--steps", type=int, default=30, help="how many checkpoints")
parser.add_argument("--megabytes", type=int, default=64, help="size of each")
parser.add_argument("--every-seconds", type=float, default=2.0)
given = parser.parse_args()

with Client(run=given.run) as client:
    # S3 is asked only by a node that has no whole step of the run: saving needs no S3.
    newest = client.latest(given.run, level="local") or client.latest(given.run, strict=True)
    first = newest.step + 1 if newest else 1
    for step in range(first, first + given.steps):
        began = time.perf_counter()
        source = random.Random(step)  # other bytes each step
        weights = b"".join(source.randbytes(1 << 20) for _ in range(given.megabytes))
        generated = time.perf_counter()
        with client.checkpoint(None, step=step) as checkpoint:
            receipt = checkpoint.put(weights, "weights")
        blocked = time.perf_counter() - generated
        print(f"step {step}: safe here after {1000 * blocked:.0f} ms, {receipt.digest}", flush=True)
        time.sleep(max(0.0, given.every_seconds - (time.perf_counter() - began)))
