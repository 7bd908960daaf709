"""The table of bytes: how few are sent and stored, how few are fetched, and at what cost."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bytes import (
    encoding,
    memory,
    restoring,
    small_shards,
    stored_size,
    time_to_durable,
    unchanged,
)
from benchmarks.measures import Result
from benchmarks.scratch import Bench

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "time_to_durable": time_to_durable.measure,
    "stored_size": stored_size.measure,
    "encoding": encoding.measure,
    "unchanged": unchanged.measure,
    "small_shards_packed": small_shards.measure,
    "restoring": restoring.measure,
    "bytes_memory": memory.measure,
}
