"""The table of the drain: how fast, how fair, and how little training feels of it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.drain import adopting, memory, outage, sharing, speed, throttling, training
from benchmarks.measures import Result
from benchmarks.scratch import Bench

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "drain_speed": speed.measure,
    "throttled": throttling.measure,
    "sharing": sharing.measure,
    "training": training.measure,
    "adopting": adopting.measure,
    "drain_memory": memory.measure,
    "outage": outage.measure,
}
