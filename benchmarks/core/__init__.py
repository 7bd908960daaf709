"""The table of the core: putting, getting, committing, and what the service itself costs."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.core import (
    catalog,
    demo,
    footprint,
    http,
    large,
    memory,
    rank,
    small,
)
from benchmarks.measures import Result
from benchmarks.scratch import Bench

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "large_shards": large.measure,
    "rank": rank.measure,
    "memory": memory.measure,
    "small_shards": small.measure,
    "group_commit": small.measure_group_commit,
    "http_put": http.measure,
    "service_cpu": footprint.measure_cpu,
    "service_memory": footprint.measure_memory,
    "full_catalog": catalog.measure,
    "demo": demo.measure,
}
