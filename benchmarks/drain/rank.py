"""A busy rank: ``rank.py ENDPOINT BUCKET``.

Steps are a fixed number of matrix products, on as many threads as the environment says. Told
``{"seconds": 5, "naive": null}``, one line of JSON each, it runs steps for that long and answers
with the seconds of each. With ``"naive"`` the path of a file, a background thread meanwhile does
what is done without a cache: it compresses the whole file, uploads it, and begins again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import zstandard

from benchmarks.drain.remote import ANYBODY
from cachetier.remote.s3.boto_client import connect

SIDE = 768
PRODUCTS = 8


def main(endpoint: str, bucket: str) -> None:
    chance = np.random.default_rng(os.getpid())
    left, right = (chance.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(2))
    _steps(left, right, 0.5)  # warms up
    print(flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        naive = _Naive(endpoint, bucket, Path(command["naive"])) if command["naive"] else None
        taken = _steps(left, right, command["seconds"])
        print(json.dumps([taken, naive.stop() if naive is not None else 0]), flush=True)


def _steps(left: np.ndarray, right: np.ndarray, seconds: float) -> list[float]:
    taken: list[float] = []
    over_at = time.perf_counter() + seconds
    while (began := time.perf_counter()) < over_at:
        for _ in range(PRODUCTS):
            left @ right
        taken.append(time.perf_counter() - began)
    return taken


class _Naive:
    """Compresses and uploads a whole file on a thread, again and again, until stopped."""

    def __init__(self, endpoint: str, bucket: str, path: Path) -> None:
        self._client = connect(endpoint=endpoint, credentials=ANYBODY)
        self._bucket, self._path = bucket, path
        self._compressed_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> int:
        """Return how many bytes it has compressed and uploaded in time."""
        done = self._compressed_bytes
        self._over.set()
        self._thread.join()
        return done

    def _run(self) -> None:
        while not self._over.is_set():
            data = self._path.read_bytes()
            body = zstandard.ZstdCompressor(level=1).compress(data)
            self._client.put_object(Bucket=self._bucket, Key=f"naive-{os.getpid()}", Body=body)
            self._compressed_bytes += len(data)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
