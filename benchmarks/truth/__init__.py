"""The table of the truth: what it costs a node to know what other nodes did to its steps."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measures import Result
from benchmarks.scratch import Bench
from benchmarks.truth import black_hole

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {"black_hole": black_hole.measure}
