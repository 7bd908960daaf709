"""What a put takes from the rank that makes it: processor time, and how late its other threads are.

While a shard is put, a thread of the same process sleeps 0.2 ms again and again, as one does that
launches kernels: how much later than that it gets the interpreter back is what a put costs it. The
same beside plain threads that write the same bytes, and beside nothing, says what is the machine's.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cachetier_client import Client

from benchmarks import raw
from benchmarks.measures import Result, at_most, median_of
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

RUN = "rank"
SLEEP_SECONDS = 0.0002
IDLE_SECONDS = 1.0
PUT, WRITE, NOTHING = "a put of 1 GiB", "plain O_DIRECT writes of 1 GiB", "nothing"


def measure(bench: Bench) -> list[Result]:
    source = raw.random_buffer(bench.sizes.large_bytes)
    gib = len(source) / 2**30
    aligned, plain = raw.aligned_buffer(len(source)), bench.directory / "plain"
    late: dict[str, list[float]] = {PUT: [], WRITE: [], NOTHING: []}
    processor: dict[str, list[float]] = {PUT: [], WRITE: [], NOTHING: []}
    with (
        node(bench.directory / "cache") as service,
        Client(service.url) as client,
        _sleeper() as beside,
    ):

        def put() -> None:
            client.put_shard(source, run=RUN, step=step, name="shard", rank=0, world_size=1)

        works: dict[str, Callable[[], object]] = {
            NOTHING: lambda: time.sleep(IDLE_SECONDS),
            PUT: put,
            WRITE: lambda: raw.write_direct(plain, aligned),
        }
        for step in range(bench.sizes.large_runs // 2 + 1):
            for what, work in works.items():
                settle()
                seconds, last = beside(work)
                if step:  # the first round only warms up
                    late[what].append(1e3 * last)
                    processor[what].append(seconds / gib)
            client.delete_step(RUN, step)
            plain.unlink()
        for what, found in late.items():
            bench.say(f"{what}: {', '.join(f'{each:.2f}' for each in found)} ms")
    ends = "how late another thread of the rank wakes up beside"
    return [
        median_of(f"p99 of {ends} {PUT}", late[PUT], "ms", at_most(1.0)),
        median_of(f"p99 of {ends} {WRITE}", late[WRITE], "ms"),
        median_of(f"p99 of {ends} {NOTHING}", late[NOTHING], "ms"),
        median_of("the rank's processor time, put", processor[PUT], "s/GiB"),
        median_of("the same, plain O_DIRECT writes", processor[WRITE], "s/GiB"),
    ]


@contextmanager
def _sleeper() -> Iterator[Callable[[Callable[[], object]], tuple[float, float]]]:
    """Yield what does work beside the thread: it returns its processor time, and the p99."""
    late: list[float] = []
    stopping = threading.Event()

    def sleep() -> None:
        while not stopping.is_set():
            began = time.perf_counter()
            time.sleep(SLEEP_SECONDS)
            late.append(time.perf_counter() - began - SLEEP_SECONDS)

    def beside(work: Callable[[], object]) -> tuple[float, float]:
        late.clear()
        began = time.process_time()
        work()
        used = time.process_time() - began
        while len(late) < 2:  # the work may be over before the thread was woken twice
            time.sleep(SLEEP_SECONDS)
        return used, statistics.quantiles(late, n=100, method="inclusive")[-1]

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    try:
        yield beside
    finally:
        stopping.set()
        thread.join()
