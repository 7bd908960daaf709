"""Where benchmarks keep their files, and what else each of them is given."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTORY_VARIABLE = "CACHETIER_BENCH_DIR"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    large_bytes: int
    large_runs: int
    small_rounds: int
    small_puts: int
    warm_up_puts: int
    bursts: int
    burst_seconds: float
    concurrent_puts: int
    catalog_shards: int
    starts: int


FULL = Sizes(
    large_bytes=1 << 30,
    large_runs=11,
    small_rounds=9,
    small_puts=150,
    warm_up_puts=1200,  # SQLite's log has then grown to its lasting size
    bursts=7,
    burst_seconds=1.2,
    concurrent_puts=8,
    catalog_shards=1_000_000,
    starts=5,
)
QUICK = Sizes(
    large_bytes=9 << 20,
    large_runs=2,
    small_rounds=2,
    small_puts=5,
    warm_up_puts=5,
    bursts=2,
    burst_seconds=0.2,
    concurrent_puts=2,
    catalog_shards=2_000,
    starts=1,
)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark is given: a directory of its own, how much to do, and how to tell of it."""

    directory: Path
    sizes: Sizes
    quick: bool
    say: Callable[[str], None]


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a fresh directory on the disk that is measured; it goes when the block ends."""
    parent = Path(os.environ.get(DIRECTORY_VARIABLE, ROOT / ".bench")).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def settle() -> None:
    """Write out what is pending, so that one run's leftovers do not slow the next."""
    os.sync()


def touch_memory(size_bytes: int) -> None:
    """Have so much free memory at hand, whoever used it last.

    On a virtual machine free memory goes back to the host after a while, and whoever takes it again
    pays for that: a run that comes behind one that freed as much as it needs would be faster.
    """
    with mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON) as memory:
        for start in range(0, size_bytes, mmap.PAGESIZE):
            memory[start] = 1
