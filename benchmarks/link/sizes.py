"""How much the benches of the link measure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.drain.link import Shape
from benchmarks.scratch import Bench

SLOW = Shape(each=8e6, latency=0.035)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts, and with how many threads each peer is tried."""

    shards: int
    drained_bytes: int
    restored_bytes: int
    local_bytes: int
    part_bytes: int
    small_shards: int
    runs: int
    threads: tuple[int, ...]


FULL = Sizes(
    shards=8,
    drained_bytes=2 << 30,
    restored_bytes=2 << 30,
    local_bytes=1 << 30,
    part_bytes=64 << 20,
    small_shards=512,
    runs=3,
    threads=(16, 64, 128),
)
QUICK = Sizes(
    shards=2,
    drained_bytes=36 << 20,
    restored_bytes=36 << 20,
    local_bytes=20 << 20,
    part_bytes=4 << 20,
    small_shards=8,
    runs=1,
    threads=(8,),
)


def sizes_of(bench: Bench) -> Sizes:
    return QUICK if bench.quick else FULL
