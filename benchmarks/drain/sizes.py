"""How much the benches of the drain measure."""

from __future__ import annotations

import os
from dataclasses import dataclass

from benchmarks.scratch import Bench

OUTAGE_VARIABLE = "CACHETIER_BENCH_OUTAGE_SECONDS"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts, by bench."""

    speed_shards: int
    speed_shard_bytes: int
    speed_runs: int
    threads: tuple[int, ...]
    writers: int
    parts_of_a_writer: int
    part_bytes: int
    parts_a_second: int
    bucket_runs: int
    simulated_seconds: float
    simulations: int
    crowd: int
    restoring: int
    restored_bytes: int
    training_rounds: int
    training_seconds: float
    training_lead_in_seconds: float
    training_shards: int
    adopted_bytes: int
    memory_shard_bytes: int
    outage_seconds: float
    outage_bytes: int


FULL = Sizes(
    speed_shards=8,
    speed_shard_bytes=512 << 20,
    speed_runs=5,
    threads=(2, 4, 8, 16),
    writers=64,
    parts_of_a_writer=8,
    part_bytes=1 << 20,
    parts_a_second=25,
    bucket_runs=3,
    simulated_seconds=600.0,
    simulations=5,
    crowd=1000,
    restoring=256,
    restored_bytes=2 * 10**12,
    training_rounds=4,
    training_seconds=6.0,
    training_lead_in_seconds=8.0,  # a starved drain has found its lasting place by then
    training_shards=384,
    adopted_bytes=64 << 20,
    memory_shard_bytes=2 << 30,
    outage_seconds=30.0,
    outage_bytes=2 << 30,
)
QUICK = Sizes(
    speed_shards=2,
    speed_shard_bytes=17 << 20,
    speed_runs=1,
    threads=(2,),
    writers=4,
    parts_of_a_writer=4,
    part_bytes=70_000,
    parts_a_second=20,
    bucket_runs=1,
    simulated_seconds=120.0,
    simulations=1,
    crowd=16,
    restoring=64,
    restored_bytes=10**11,
    training_rounds=1,
    training_seconds=0.3,
    training_lead_in_seconds=0.1,
    training_shards=16,
    adopted_bytes=16 << 20,
    memory_shard_bytes=20 << 20,
    outage_seconds=1.0,
    outage_bytes=20 << 20,
)


def sizes_of(bench: Bench) -> Sizes:
    return QUICK if bench.quick else FULL


def outage_seconds(sizes: Sizes) -> float:
    """Return how long the real outage takes: what the environment says, or the usual."""
    return float(os.environ.get(OUTAGE_VARIABLE, sizes.outage_seconds))
