"""How much the benches of bytes measure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scratch import Bench


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts, by bench."""

    training_steps: tuple[int, ...]
    shards: int
    fast_bytes: int
    fast_runs: int
    slow_bytes: int
    slow_runs: int
    encoded_bytes: int
    encoding_runs: int
    unchanged_bytes: int
    small_shards: int
    range_bytes: int
    restored_bytes: int
    restores: int
    memory_bytes: int


FULL = Sizes(
    training_steps=(2, 10, 30),
    shards=4,
    fast_bytes=512 << 20,
    fast_runs=3,
    slow_bytes=128 << 20,
    slow_runs=1,
    encoded_bytes=128 << 20,
    encoding_runs=5,
    unchanged_bytes=1 << 30,
    small_shards=140,
    range_bytes=1 << 20,
    restored_bytes=1 << 30,
    restores=3,
    memory_bytes=2 << 30,
)
QUICK = Sizes(
    training_steps=(1,),
    shards=2,
    fast_bytes=18 << 20,
    fast_runs=1,
    slow_bytes=9 << 20,
    slow_runs=0,  # once through is enough to prove that it works
    encoded_bytes=9 << 20,
    encoding_runs=1,
    unchanged_bytes=80 << 20,
    small_shards=10,
    range_bytes=1 << 20,
    restored_bytes=20 << 20,
    restores=1,
    memory_bytes=40 << 20,
)


def sizes_of(bench: Bench) -> Sizes:
    return QUICK if bench.quick else FULL
