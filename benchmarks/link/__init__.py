"""The table of a link as S3's: many connections, none of them fast, and every answer late."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.link import draining, matrix, moments, parts, processor, restoring, small_puts
from benchmarks.measures import Result
from benchmarks.scratch import Bench

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {
    "link_drain": draining.measure,
    "link_restore": restoring.measure,
    "link_parts": parts.measure,
    "link_small_puts": small_puts.measure,
    "link_moments": moments.measure,
    "link_worlds": matrix.measure,
}
PROCESSOR: dict[str, Callable[[Bench], list[Result]]] = {
    "processor_plain": partial(processor.measure, processor.PLAIN),
    "processor_tls": partial(processor.measure, processor.TLS),
}
