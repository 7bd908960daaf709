"""A rank that puts small shards from several threads: ``putter.py URL THREADS``.

Says how many seconds to put for are asked of it, one line each, on its input; answers with puts
a second.
"""

from __future__ import annotations

import sys
import threading
import time

from cachetier_client import Client

from benchmarks.core.small import BODY


def main(url: str, threads: int) -> None:
    with Client(url) as client:
        _burst(client, threads, 0.05)
        print(0.0, flush=True)
        for line in sys.stdin:
            print(_burst(client, threads, float(line)), flush=True)


def _burst(client: Client, threads: int, seconds: float) -> float:
    until = time.perf_counter() + seconds
    counts = [0] * threads
    began = time.time_ns()

    def put(thread: int) -> None:
        while time.perf_counter() < until:
            name = f"{began}/{thread}/{counts[thread]}"
            client.put_shard(BODY, run="crowd", step=began % 2**40, name=name, rank=0, world_size=1)
            counts[thread] += 1

    team = [threading.Thread(target=put, args=(number,)) for number in range(threads)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    return sum(counts) / seconds


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
