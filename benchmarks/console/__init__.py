"""The table of the console: what a person sees of very many shards, and how soon."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.console import grid
from benchmarks.measures import Result
from benchmarks.scratch import Bench

BENCHES: dict[str, Callable[[Bench], list[Result]]] = {"console_grid": grid.measure}
