"""How much the benches of torch measure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scratch import Bench


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts. The state has 12 bytes for each of ``layers * width * width`` weights, in all."""

    width: int
    layers: int
    rows: int
    ring_bytes: int
    saves: int
    trainings: int
    steps: int
    remote_saves: int
    loads: int
    growing_saves: int


FULL = Sizes(
    width=2048,
    layers=24,  # 604 MB of weights and AdamW's moments for each of two ranks
    rows=16,
    ring_bytes=256 << 20,
    saves=7,
    trainings=11,
    steps=2,  # some five seconds: every way of saving has ended by then, or nearly
    remote_saves=3,
    loads=5,
    growing_saves=50,
)
QUICK = Sizes(
    width=256,
    layers=2,
    rows=2,
    ring_bytes=16 << 20,
    saves=1,
    trainings=1,
    steps=1,
    remote_saves=1,
    loads=1,
    growing_saves=5,
)


def sizes_of(bench: Bench) -> Sizes:
    return QUICK if bench.quick else FULL
