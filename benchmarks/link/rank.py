"""A rank that restores one shard into its own buffer: ``rank.py URL RUN STEP NAME SIZE_BYTES``.

Says ``ready`` once the buffer is there and touched, begins at a line of input, prints for how many
seconds ``get_shard`` took, and ends with its input.
"""

from __future__ import annotations

import sys
import time

from cachetier_client import Client
from cachetier_client.io.aligned import aligned_memory

PATIENCE_SECONDS = 600.0


def main(url: str, run: str, step: str, name: str, size_bytes: str) -> None:
    out = aligned_memory(int(size_bytes))[: int(size_bytes)]
    out[:] = bytes(len(out))
    with Client(url) as client:
        client.status()
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.perf_counter()
        client.get_shard(
            run=run, step=int(step), name=name, out=out, timeout_seconds=PATIENCE_SECONDS
        )
        print(time.perf_counter() - began, flush=True)
        sys.stdin.read()  # until all are through: what it takes to end is no part of a restore


if __name__ == "__main__":
    main(*sys.argv[1:])
