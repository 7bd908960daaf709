"""The table of torch: what a save costs training, what a load takes, what memory it needs."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measures import Result
from benchmarks.scratch import Bench
from benchmarks.torch import beside_s3, blocking, loading, memory, saving


def on_a_gpu(bench: Bench) -> list[Result]:
    from benchmarks.torch import gpu  # with torch, which the others leave to their ranks

    return gpu.measure(bench)


BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "saving": saving.measure,
    "blocking": blocking.measure,
    "beside_s3": beside_s3.measure,
    "loading": loading.measure,
    "torch_memory": memory.measure,
    "gpu": on_a_gpu,
}
