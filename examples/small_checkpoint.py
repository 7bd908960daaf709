"""Save a small checkpoint, wait until it is durable in S3, restore it, and say what happened.

The demo of docker-compose.yml: `docker compose run --rm demo`. It runs against any service:

    CACHETIER_URL=unix:///nvme/cachetier/cachetier.sock python examples/small_checkpoint.py
"""

from __future__ import annotations

import os
import sys
import time
import uuid

from cachetier_client import CachetierClientError, Client

SHARDS, SHARD_BYTES = 4, 16 << 20
WAIT_SECONDS = 120.0


def main() -> int:
    """Return the exit code."""
    run = f"demo-{uuid.uuid4().hex[:8]}"  # a new one each time: a step of a run is saved once
    try:
        with Client(run=run, fallback="fail") as client:
            save_and_restore(client, run)
    except CachetierClientError as error:
        print(f"failed ({error.code}): {error.message}. Next: {error.hint}", file=sys.stderr)
        return 1
    return 0


def save_and_restore(client: Client, run: str) -> None:
    node = client.status()
    shards = {f"layer-{number}": os.urandom(SHARD_BYTES) for number in range(SHARDS)}
    mib = SHARDS * SHARD_BYTES >> 20
    remote = node["remotes"][0]["url"]
    print(f"node       cachetier {node['version']} at {node['socket']}, draining to {remote}")
    print(f"run        {run}: one step of {SHARDS} shards, {mib} MiB")

    begun = time.monotonic()
    with client.checkpoint(None, step=1) as checkpoint:  # seals at its end
        receipts = [checkpoint.put(weights, name) for name, weights in shards.items()]
    seconds = time.monotonic() - begun
    print(f"put        {seconds:.2f} s, {mib / seconds:.0f} MiB/s: training may go on")
    print(
        f"level      {receipts[-1].level}: it survives kill -9 of anything, and the loss of power"
    )
    print("seal       this rank's part is whole")

    client.wait(None, 1, level="durable", timeout_seconds=WAIT_SECONDS)
    print(f"durable    after {time.monotonic() - begun:.1f} s: it survives the loss of this node")
    print(f"object     {remote}/{run}/1/layer-0: the raw bytes, under a plain key")

    newest = client.latest(run, strict=True)
    step = newest.step if newest else None
    print(f"latest     step {step}: what a job that starts again resumes from")
    begun = time.monotonic()
    same = all(client.get_shard(None, 1, name) == weights for name, weights in shards.items())
    seconds = time.monotonic() - begun
    print(f"restore    {seconds:.2f} s, {mib / seconds:.0f} MiB/s: every digest was checked")
    if not same:
        raise SystemExit("failed: the bytes restored are not those that were saved")
    print("compared   every byte is as it was saved")


if __name__ == "__main__":
    sys.exit(main())
