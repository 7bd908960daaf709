"""A rank that calls from several threads: ``putter.py URL THREADS``.

What to do, ``put`` or ``empty``, and for how many seconds is asked of it, one line each, on its
input; answers with calls a second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from cachetier_client import Client

from benchmarks.core.small import BODY

Call = Callable[[int, int], object]


def main(url: str, threads: int) -> None:
    with Client(url) as client:
        _burst(_put(client), threads, 0.05)
        print(0.0, flush=True)
        for line in sys.stdin:
            name, seconds = line.split()
            call = _put(client) if name == "put" else _ask(client)
            print(_burst(call, threads, float(seconds)), flush=True)


def _put(client: Client) -> Call:
    """Return puts into a step of their own."""
    began = time.time_ns()

    def put(thread: int, count: int) -> None:
        name = f"{thread}/{count}"
        client.put_shard(BODY, run="crowd", step=began % 2**40, name=name, rank=0, world_size=1)

    return put


def _ask(client: Client) -> Call:
    return lambda _thread, _count: client.whoami()


def _burst(call: Call, threads: int, seconds: float) -> float:
    until = time.perf_counter() + seconds
    counts = [0] * threads

    def work(thread: int) -> None:
        while time.perf_counter() < until:
            call(thread, counts[thread])
            counts[thread] += 1

    team = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    return sum(counts) / seconds


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
