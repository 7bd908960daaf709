"""The remote goes away, in the middle of an upload, and comes back.

Twice. For real: the sink resets every connection for half a minute (or as long as
``CACHETIER_BENCH_OUTAGE_SECONDS`` says) while a rank goes on saving. And for ten minutes of a
simulated clock, with the drain's own circuit and pace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat

from cachetier_client import CachetierClientError, Client

from benchmarks.drain.payload import weights
from benchmarks.drain.remote import (
    Counts,
    RunningSink,
    put_held,
    seconds_until_durable,
    sink,
)
from benchmarks.drain.simulated_shares import shares
from benchmarks.drain.sizes import outage_seconds, sizes_of
from benchmarks.measures import Result, at_most
from benchmarks.node import node
from benchmarks.scratch import Bench
from cachetier.simulate.events import Events
from cachetier.simulate.node import SimulatedWork, crowd
from cachetier.simulate.store import SimulatedStore

RUN = "outage"
SHARDS = 16
BACK_TO = 0.8  # of the normal rate
PATIENCE_SECONDS = 90.0
LOOK_SECONDS = 0.1
WINDOW_SECONDS = 0.5
SILENT_SECONDS = 5.0  # nothing more comes then
SIMULATED_SECONDS = 600.0
SIMULATED_RATE = 25.0


def measure(bench: Bench) -> list[Result]:
    """Measure both; what has no bar is there for context."""
    return [*_real(bench), *_simulated(bench)]


# --- for real ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Saves:
    """What a rank saw that saved all the time."""

    steps: int = 0
    errors: int = 0
    slowest_seconds: float = 0.0

    def one(self, save: Callable[[], None]) -> None:
        began = time.perf_counter()
        try:
            save()
        except CachetierClientError:
            self.errors += 1
        self.steps += 1
        self.slowest_seconds = max(self.slowest_seconds, time.perf_counter() - began)


def _real(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    away_seconds = outage_seconds(sizes)
    source = weights(sizes.outage_bytes // SHARDS)
    with (
        sink() as remote,
        node(bench.directory / "cache", remote=remote.endpoint) as service,
        Client(service.url) as client,
    ):
        size_bytes = put_held(client, RUN, 0, repeat(source, SHARDS))
        normal = size_bytes / seconds_until_durable(client, RUN, 0)
        bench.say(f"normally {normal / 1e9:.2f} GB/s")
        saves, knocks = _outage(client, remote, source, away_seconds)
        bench.say(
            f"{saves.steps} steps saved meanwhile, the slowest in {saves.slowest_seconds:.2f} s"
        )
        back_after = _seconds_until_back(remote, BACK_TO * normal)
        for step in range(1, saves.steps + 2):
            client.wait(RUN, step, "durable", timeout_seconds=PATIENCE_SECONDS)
    what = f"an outage of {away_seconds:g} s"
    return [
        Result(
            f"{what}: errors that a saving rank saw", saves.errors, "", at_most(0), (saves.errors,)
        ),
        Result(f"{what}: slowest save", saves.slowest_seconds, "s", None, (saves.slowest_seconds,)),
        Result(f"{what}: knocks at the store, later half", knocks, "1/s", at_most(1), (knocks,)),
        Result(
            f"{what}: until the drain is at 80 % of its rate again",
            back_after,
            "s",
            at_most(60),
            () if back_after is None else (back_after,),
            f"not within {PATIENCE_SECONDS:g} s",
        ),
    ]


def _outage(
    client: Client, remote: RunningSink, source: memoryview, seconds: float
) -> tuple[_Saves, float]:
    """Take the sink away amid an upload; save ``SHARDS`` steps meanwhile, and bring it back.

    Returns what the rank saw, and the knocks a second in the later half.
    """
    put_held(client, RUN, 1, repeat(source, SHARDS))
    before = remote.counts()
    client.seal(RUN, 1, rank=0, world_size=1)
    while remote.counts().accepted == before.accepted:
        time.sleep(0.002)
    remote.go_down()
    began = time.monotonic()
    saves, half = _Saves(), None
    for number in range(SHARDS):
        due_at = began + seconds * (number + 1) / (SHARDS + 1)
        time.sleep(max(0.0, due_at - time.monotonic()))
        if half is None and number >= SHARDS // 2:
            half = remote.counts()
        saves.one(partial(_save, client, source, 2 + number))
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    assert half is not None
    end = remote.come_back()
    gaps = max(0, end.knocks - half.knocks - 1)  # between so many knocks
    return saves, gaps / (end.at - half.at)


def _save(client: Client, source: memoryview, step: int) -> None:
    with client.checkpoint(RUN, step, rank=0, world_size=1) as checkpoint:
        checkpoint.put(source, "shard")


def _seconds_until_back(remote: RunningSink, rate: float) -> float | None:
    """Return after how long half a second's worth of bytes came at ``rate``; None if never.

    Where there was less than that to bring, it is when the last of it came.
    """
    last = began = remote.counts()
    seen = [began]
    while seen[-1].at - began.at < PATIENCE_SECONDS:
        time.sleep(LOOK_SECONDS)
        now = remote.counts()
        seen = [each for each in seen if now.at - each.at <= WINDOW_SECONDS + LOOK_SECONDS] + [now]
        if now.at - seen[0].at >= WINDOW_SECONDS and _rate(seen[0], now) >= rate:
            return now.at - began.at
        if now.bytes > last.bytes:
            last = now
        elif last.bytes > began.bytes and now.at - last.at >= SILENT_SECONDS:
            return last.at - began.at
    return None


def _rate(first: Counts, last: Counts) -> float:
    return (last.bytes - first.bytes) / (last.at - first.at)


# --- simulated -----------------------------------------------------------------------------------


def _simulated(bench: Bench) -> list[Result]:
    """Ten minutes without the store, one node, a bucket of 25 parts/s before and after."""
    begins = 120.0
    ends = begins + SIMULATED_SECONDS
    events = Events()
    store = SimulatedStore(events, SIMULATED_RATE, away=lambda now: begins <= now < ends)
    nodes = crowd(events, store, 1, SimulatedWork(), seed=0)
    events.run(ends + 120.0)
    normal = shares(nodes, begins - 60.0, begins).per_second
    knocks = [instant for instant in nodes[0].knocked_at if instant > begins + 10.0]
    per_second = round(1 / min(later - earlier for earlier, later in pairwise(knocks)), 3)
    back_after = next(
        second + 1.0
        for second in range(120)
        if shares(nodes, ends + second, ends + second + 1.0).per_second >= BACK_TO * normal
    )
    bench.say(f"simulated: {len(knocks)} knocks, back after {back_after:g} s")
    what = "an outage of 600 s, simulated"
    return [
        Result(
            f"{what}: knocks at the store, at most", per_second, "1/s", at_most(1), (per_second,)
        ),
        Result(
            f"{what}: until the drain is at 80 % of its rate again",
            back_after,
            "s",
            at_most(60),
            (back_after,),
        ),
    ]
