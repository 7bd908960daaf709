"""The table of the S3 door: what programs gain that speak S3, and what the door costs them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measures import Result
from benchmarks.s3 import memory, mounts, multipart, reading, small, torch_saves, whole
from benchmarks.scratch import Bench

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "s3_small": small.measure,
    "s3_whole": whole.measure,
    "s3_multipart": multipart.measure,
    "s3_reading": reading.measure,
    "s3_torch": torch_saves.measure,
    "s3_memory": memory.measure,
    "s3_mounts": mounts.measure,
}
