"""How soon a drain is at its speed: for a small step right after its start, and after its death."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from dataclasses import replace
from itertools import repeat
from math import inf

from cachetier_client import Client

from benchmarks import raw
from benchmarks.drain.remote import RunningSink, put_held, sink
from benchmarks.link import matrix
from benchmarks.link.sizes import SLOW, sizes_of
from benchmarks.link.worlds import World
from benchmarks.measures import Result, at_least, at_most, median_of
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

SMALL = "512 MiB from the seal until published, fresh drain / the best peer's upload"
RESTART = "restart of the drain in the middle of 4 GiB: until 80 % of the rate before"
SMALL_BYTES = 512 << 20
RESTARTED_BYTES, SHARDS = 4 << 30, 8
LOOK_SECONDS, SPAN_SECONDS, PATIENCE_SECONDS = 0.02, 0.4, 60.0
BACK = 0.8
RUN = "moments"
WORLDS = (
    World("8 MB/s a connection, answers 35 ms late", SLOW),
    World("the same, whole bodies", replace(SLOW, ahead=inf)),
)


def measure(bench: Bench) -> list[Result]:
    size_bytes = 36 << 20 if bench.quick else SMALL_BYTES
    results = []
    for world in WORLDS[: 1 if bench.quick else None]:
        beside = matrix.drained_beside(bench, world, size_bytes, 2 if bench.quick else 4)
        note = f"{beside.mb_per_second:g} MB/s; {beside.peer}: {beside.peer_mb_per_second:g}"
        results.append(
            Result(f"{SMALL}, {world.name}", beside.ratio, "", at_least(1.0), (beside.ratio,), note)
        )
    seconds = [_restarted(bench, number) for number in range(1 if bench.quick else 3)]
    return [*results, median_of(RESTART, seconds, "s", at_most(2.0))]


def _restarted(bench: Bench, number: int) -> float:
    """Kill a drain that is at its speed; return how long it takes until the next one is."""
    size_bytes = sizes_of(bench).drained_bytes if bench.quick else RESTARTED_BYTES
    source = raw.random_buffer(size_bytes // SHARDS)
    with (
        sink() as remote,
        node(bench.directory / f"restarted-{number}", remote=remote.endpoint) as service,
        Client(service.url) as client,
    ):
        put_held(client, RUN, 1, repeat(source, SHARDS))
        settle()
        remote.take_shape(SLOW)
        client.seal(RUN, 1, rank=0, world_size=1)
        speed = _Speed(remote)
        while speed.bytes < size_bytes / 3:
            speed.look()
        before = speed.now
        drain, *_ = service.drain_pids()
        os.kill(drain, signal.SIGKILL)
        killed_at = time.monotonic()
        for is_over in (_is_away, _is_back):  # what lies in the kernel's buffers still arrives
            while not is_over(speed.now, before) and speed.bytes < size_bytes:
                speed.look()
        seconds = time.monotonic() - killed_at
        client.wait(RUN, 1, "durable", timeout_seconds=PATIENCE_SECONDS)
        bench.say(f"{seconds:.2f} s until {speed.now / 1e6:.0f} MB/s, {before / 1e6:.0f} before")
        return seconds


def _is_away(speed: float, before: float) -> bool:
    return speed < before / 4


def _is_back(speed: float, before: float) -> bool:
    return speed >= BACK * before


class _Speed:
    """What a sink has taken lately."""

    def __init__(self, remote: RunningSink) -> None:
        self._remote = remote
        self._seen: deque[tuple[float, int]] = deque()
        self.look()

    def look(self) -> None:
        time.sleep(LOOK_SECONDS)
        counts = self._remote.counts()
        self._seen.append((counts.at, counts.arrived_bytes))
        while counts.at - self._seen[0][0] > SPAN_SECONDS:
            self._seen.popleft()

    @property
    def bytes(self) -> int:
        return self._seen[-1][1]

    @property
    def now(self) -> float:
        """Bytes a second over the last span."""
        (began, before), (ended, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(SPAN_SECONDS, ended - began)
